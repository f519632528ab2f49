// SPDX-License-Identifier: Apache-2.0
// The daemon's side of jobs' runners (docs/decisions/0011-one-runner-per-job.md): starting one, finding it again, and
// knowing what became of it. Functions on directories and descriptors, without an event loop and without state. The
// directories hold everything, so a restarted daemon knows as much as the one before.
//
// One directory per job and attempt: RunnerPlaces::jobs_dir/ID.ATTEMPT, mode 0700, owned by the daemon's user.
//
//   the daemon's view                          what is in the directory
//   prepared, never begun (kUnclaimed)         spec
//   no runner may begin it now (kAbandoned)    spec, claim (abandoned)
//   alive (kAlive)                             spec, claim (locked), control; with `end` too: it is cleaning up
//   ended (kEnded)                             spec, claim, end
//   lost (kLost)                               spec, claim: its runner died without a word, or the machine did
//
// Any thread may call these, one at a time for a directory. None waits for a job. start() and look() take a few system
// calls on local files. prepare() syncs nothing: until the runner's claim is durable, the job has not begun.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "os/file_descriptor.h"
#include "os/unix_socket.h"
#include "wire/runner_messages.h"
#include "wire/runner_records.h"

namespace gpumux::runners {

struct RunnerPlaces {
  std::string jobs_dir;        // e.g. /var/lib/gpumux/jobs; absolute, below kRunnerPathBytes with what is added
  std::string runner_program;  // e.g. /usr/libexec/gpumux/gpumux-runner
  // The service manager's starter (gpumux-runner.socket); empty, or no socket there: the daemon forks.
  std::string starter_socket;
};

enum class RunnerStanding { kUnclaimed, kAbandoned, kAlive, kEnded, kLost };

struct FoundRunner {
  RunnerStanding standing = RunnerStanding::kUnclaimed;
  std::optional<wire::RunnerClaim> claim;
  std::int64_t claimed_wall_ns = 0;    // milliseconds before its main process was started
  std::optional<wire::RunnerEnd> end;  // kEnded; and kAlive while it cleans up
  bool machine_rebooted = false;       // kLost, kEnded: claimed before the machine's last start
};

// One directory of a job, whatever is in it.
struct RunnerDirectory {
  std::uint64_t job = 0;
  std::uint32_t attempt = 0;
  std::string path;
};

// With the runner program and the starter of this installation. A private daemon forks. Errors: of
// os::find_own_program().
base::Result<RunnerPlaces> runner_places(std::string jobs_dir, bool is_private);

std::string runner_directory(const RunnerPlaces& places, std::uint64_t job, std::uint32_t attempt);

// Makes the directory and writes the spec. kExists: this attempt has a directory already.
base::Status prepare_runner(const RunnerPlaces& places, const wire::RunnerSpec& spec);

// Starts a runner for a prepared directory and tells it to begin. Returns the connection (SOCK_SEQPACKET,
// non-blocking), from which RunnerState, RunnerEnded and RunnerRefused come. An error means that nothing was started,
// and that nothing will: the caller may start it again, or abandon_runner() it to be sure.
base::Result<os::FileDescriptor> start_runner(const RunnerPlaces& places, const std::string& directory);

// Connects to a runner that is alive. kUnavailable: not listening yet (it has just claimed; try again in some
// milliseconds) or no longer (look again).
base::Result<os::FileDescriptor> connect_runner(const std::string& directory);

// The same at the daemon's start. Waits for a runner that lives and does not listen yet, for seconds at most.
base::Result<os::FileDescriptor> await_runner(const std::string& directory);

// The standing of the directory's runner. Never waits.
base::Result<FoundRunner> look_at_runner(const std::string& directory);

// Makes sure that no runner ever begins in this directory, however late it comes. kExists: one has begun.
base::Status abandon_runner(const std::string& directory);

// After kLost: kills the rest of the job, by its cgroup if it had one. Otherwise it kills the processes of its user
// with its GPUMUX_RUN_ID (from the spec) in their environment. Returns how many were signalled; call until it is zero.
base::Result<std::size_t> kill_strays(const std::string& directory);

// Kills the members of a control group, where the kernel has no cgroup.kill (before 5.14). A process may end when the
// group has been read, and its number may mean another process when that is opened. So the group is read once more when
// all are opened. A number that is still in it, and whose opened process has not ended since, has meant that process
// all the time. `read_members`: cgroup.procs, as it is now.
base::Status kill_one_by_one(const std::function<base::Result<std::string>()>& read_members);

// Every job directory there is, in no particular order. Names that are not ours are left out.
base::Result<std::vector<RunnerDirectory>> list_runners(const RunnerPlaces& places);

// Removes the directory, when the end is in the store. kUnavailable: its runner is alive.
base::Status forget_runner(const std::string& directory);

// Messages over a connection. receive_from_runner: kUnavailable with EAGAIN: none now; kNotFound: it has closed.
template <class Message>
base::Status send_to_runner(int connection, const Message& message) {
  return os::send_message(connection, wire::encode(message).bytes());
}
base::Result<wire::FromRunner> receive_from_runner(int connection);

}  // namespace gpumux::runners
