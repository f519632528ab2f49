// SPDX-License-Identifier: Apache-2.0
#include "runners/runners.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <map>
#include <set>

#include "base/split.h"
#include "base/units.h"
#include "os/durable_file.h"
#include "os/installation.h"
#include "os/pidfd.h"
#include "os/spawn.h"
#include "os/system_clock.h"
#include "os/unix_socket.h"

namespace gpumux::runners {
namespace {

constexpr char kStarterSocket[] = "/run/gpumux-runner/runner.sock";  // packaging/systemd/gpumux-runner.socket

using base::Code;
using base::Result;
using base::Status;

// A runner listens some milliseconds after its claim; later on a machine that has just started. The daemon's start
// waits no longer for a runner that was stopped in between.
constexpr base::Duration kListenPatience = std::chrono::seconds(2);
constexpr int kListenLookMilliseconds = 5;
constexpr char kRunIdVariable[] = "GPUMUX_RUN_ID=";
// An environment may be megabytes; the variable that we look for stands among the last ones.
constexpr std::size_t kMostEnvironmentBytes = 16u << 20;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// Sockets in a job's directory are named through its descriptor: their names may have 107 bytes.
std::string name_in(const os::FileDescriptor& directory, const char* name) {
  return "/proc/self/fd/" + std::to_string(directory.get()) + "/" + name;
}

bool is_there(const os::FileDescriptor& directory, const char* name) {
  struct stat status {};
  return ::fstatat(directory.get(), name, &status, AT_SYMLINK_NOFOLLOW) == 0;
}

// Spawns the runner. The started process only detaches the real runner and ends at once: the daemon waits for it, so it
// leaves no zombie. The runner closes all descriptors of ours that are left open. Nothing of the daemon's environment
// is the runner's or its job's business.
Status spawn(const std::string& program, int connection) {
  const auto started = os::spawn(program, {"gpumux-runner", "--detach"}, {}, connection);
  if (!started) return tl::unexpected(started.error());
  int status = 0;
  while (::waitpid(*started, &status, 0) < 0) {
    // ECHILD: the daemon ignores SIGCHLD, and the system has waited for us.
    if (errno != EINTR) return errno == ECHILD ? Status() : base::fail_errno(errno, "cannot wait for " + program);
  }
  if (status != 0) return base::fail(Code::kInternal, program + " could not detach itself");
  return {};
}

Result<os::FileDescriptor> spawn_connected(const std::string& program) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return base::fail_errno(errno, "cannot make a pair of sockets");
  os::FileDescriptor ours(ends[0]);
  const os::FileDescriptor theirs(ends[1]);
  GPUMUX_TRY(spawn(program, theirs.get()));
  return ours;
}

// A starter that is there and refuses is an error; none at all means that there is no service manager.
Result<os::FileDescriptor> connect_to_new_runner(const RunnerPlaces& places) {
  if (!places.starter_socket.empty()) {
    auto connection = os::connect_seqpacket(places.starter_socket);
    if (connection || connection.error().code != Code::kNotFound) return connection;
  }
  return spawn_connected(places.runner_program);
}

// The processes of `uid` whose environment has `marker`. An error: one that has not ended cannot be opened or visited.
template <class Visit>
Status for_each_marked(uid_t uid, std::string_view marker, Visit visit) {
  Status all;
  for (const std::string& name : os::list_directory("/proc").value_or(std::vector<std::string>())) {
    const auto pid = base::parse_integer(name, 1, INT_MAX);
    if (!pid) continue;
    // Opened before it is looked at: the signal goes to the process of that look, or to none.
    const auto pidfd = os::open_pidfd(static_cast<pid_t>(*pid));
    struct stat status {};
    const std::string folder = "/proc/" + name;
    if (::stat(folder.c_str(), &status) != 0 || status.st_uid != uid) continue;
    const auto environment = os::read_unsized_at(AT_FDCWD, (folder + "/environ").c_str(), kMostEnvironmentBytes);
    if (!environment) continue;
    const std::string text = '\0' + *environment;
    if (text.find(marker) == std::string::npos) continue;
    if (pidfd && os::has_ended(pidfd->get())) continue;
    const Status visited = pidfd ? visit(pidfd->get()) : Status(tl::unexpected(pidfd.error()));
    if (!visited && visited.error().system_errno != ESRCH) all = visited;
  }
  return all;
}

// "\0GPUMUX_RUN_ID=value\0", as it stands in an environment; empty: the spec has none.
std::string marker_of(const wire::RunnerSpec& spec) {
  for (const wire::LateVariable& late : spec.late_environment) {
    if (late.entry.starts_with(kRunIdVariable) && late.entry.size() > sizeof kRunIdVariable - 1)
      return std::string(1, '\0') + late.entry + '\0';
  }
  return {};
}

std::set<pid_t> numbers_in(std::string_view procs) {
  std::set<pid_t> pids;
  for (const std::string_view line : base::split(procs, '\n')) {
    if (const auto pid = base::parse_integer(line, 1, INT_MAX)) pids.insert(static_cast<pid_t>(*pid));
  }
  return pids;
}

// How many processes the group has; its directory is named by our own claim file.
Result<std::size_t> kill_cgroup(const std::string& path) {
  const auto directory = os::open_directory(path);
  if (!directory) {
    if (directory.error().code == Code::kNotFound) return 0u;
    return tl::unexpected(directory.error());
  }
  const auto members = os::read_unsized_at(directory->get(), "cgroup.procs");
  if (!members) return tl::unexpected(members.error());
  const auto count = static_cast<std::size_t>(std::count(members->begin(), members->end(), '\n'));
  if (count == 0) {
    ::rmdir(path.c_str());
    return 0u;
  }
  const os::FileDescriptor kill(::openat(directory->get(), "cgroup.kill", O_WRONLY | O_CLOEXEC));
  if (kill) {
    if (::write(kill.get(), "1", 1) != 1) return base::fail_errno(errno, "cannot kill what is in " + path);
    return count;
  }
  GPUMUX_TRY(kill_one_by_one([&] { return os::read_unsized_at(directory->get(), "cgroup.procs"); }));
  return count;
}

}  // namespace

Status kill_one_by_one(const std::function<Result<std::string>()>& read_members) {
  const auto members = read_members();
  if (!members) return tl::unexpected(members.error());
  std::map<pid_t, os::FileDescriptor> opened;
  for (const pid_t pid : numbers_in(*members)) {
    if (auto pidfd = os::open_pidfd(pid)) opened.emplace(pid, std::move(*pidfd));
  }
  const auto again = read_members();
  if (!again) return tl::unexpected(again.error());
  const std::set<pid_t> now = numbers_in(*again);
  for (const auto& [pid, pidfd] : opened) {
    if (now.contains(pid) && !os::has_ended(pidfd.get())) static_cast<void>(os::kill_process(pidfd.get()));
  }
  return {};
}

Result<RunnerPlaces> runner_places(std::string jobs_dir, bool is_private) {
  const auto executables = os::executable_dir();
  if (!executables) return tl::unexpected(executables.error());
  auto program = os::find_own_program(*executables, "gpumux-runner");
  if (!program) return tl::unexpected(program.error());
  return RunnerPlaces{.jobs_dir = std::move(jobs_dir),
                      .runner_program = std::move(*program),
                      .starter_socket = is_private ? "" : kStarterSocket};
}

std::string runner_directory(const RunnerPlaces& places, std::uint64_t job, std::uint32_t attempt) {
  return places.jobs_dir + "/" + std::to_string(job) + "." + std::to_string(attempt);
}

Status prepare_runner(const RunnerPlaces& places, const wire::RunnerSpec& spec) {
  const std::string path = runner_directory(places, spec.job, spec.attempt);
  if (path.size() >= wire::kRunnerPathBytes)
    return base::fail(Code::kInvalid, "the path of the jobs' directory is too long: " + places.jobs_dir);
  // A spec that the runner would refuse is refused here, where the caller can still be told.
  const std::string text = wire::encode_spec(spec);
  if (const auto read = wire::decode_spec(bytes_of(text)); !read) return tl::unexpected(read.error());
  if (::mkdir(path.c_str(), 0700) != 0) return base::fail_errno(errno, "cannot create " + path);
  const auto directory = os::open_directory(path);
  Status written = directory ? os::write_new_file_at(directory->get(), wire::kSpecFile, text, 0600)
                             : Status(tl::unexpected(directory.error()));
  if (!written) ::rmdir(path.c_str());
  return written;
}

Result<os::FileDescriptor> start_runner(const RunnerPlaces& places, const std::string& directory) {
  wire::Begin begin{.protocol = wire::kRunnerProtocolVersion};
  if (directory.size() >= sizeof begin.directory)
    return base::fail(Code::kInvalid, "the path of the job's directory is too long: " + directory);
  wire::set_text(begin.directory, directory);
  auto connection = connect_to_new_runner(places);
  if (!connection) return connection;
  GPUMUX_TRY(os::send_message(connection->get(), wire::encode(begin).bytes()));
  return connection;
}

Result<os::FileDescriptor> connect_runner(const std::string& path) {
  const auto directory = os::open_directory(path);
  if (!directory) return tl::unexpected(directory.error());
  auto connection = os::connect_seqpacket(name_in(*directory, wire::kControlSocket));
  if (!connection && connection.error().code == Code::kNotFound) {
    return base::fail_errno(EAGAIN, "the runner of " + path + " does not listen yet");
  }
  return connection;
}

Result<os::FileDescriptor> await_runner(const std::string& path) {
  const os::SystemClock clock;
  const base::TimePoint until = clock.now() + kListenPatience;
  for (;;) {
    auto connection = connect_runner(path);
    if (connection || connection.error().code != Code::kUnavailable || clock.now() >= until) return connection;
    const auto found = look_at_runner(path);
    if (!found || found->standing != RunnerStanding::kAlive || found->end) return connection;
    ::poll(nullptr, 0, kListenLookMilliseconds);
  }
}

Result<FoundRunner> look_at_runner(const std::string& path) {
  const auto directory = os::open_directory(path);
  if (!directory) return tl::unexpected(directory.error());
  FoundRunner found;
  if (!is_there(*directory, wire::kClaimFile)) return found;
  // The lock before the end: a runner that ends in between has written its end first.
  const auto locked = os::is_claim_locked(directory->get(), wire::kClaimFile);
  if (!locked) return tl::unexpected(locked.error());
  const auto text = os::read_file_at(directory->get(), wire::kClaimFile, wire::kMaxSmallRecordBytes);
  if (!text) return tl::unexpected(text.error());
  auto claim = wire::decode_claim(bytes_of(*text));
  if (!claim) return tl::unexpected(claim.error());
  struct stat status {};
  if (::fstatat(directory->get(), wire::kClaimFile, &status, AT_SYMLINK_NOFOLLOW) == 0)
    found.claimed_wall_ns = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  found.machine_rebooted = !claim->boot_id.empty() && claim->boot_id != os::boot_id();
  found.claim = std::move(*claim);
  if (is_there(*directory, wire::kEndFile)) {
    const auto end_text = os::read_file_at(directory->get(), wire::kEndFile, wire::kMaxSmallRecordBytes);
    if (!end_text) return tl::unexpected(end_text.error());
    const auto end = wire::decode_end(bytes_of(*end_text));
    if (!end) return tl::unexpected(end.error());
    found.end = *end;
  }
  if (found.claim->abandoned) {
    found.standing = RunnerStanding::kAbandoned;
  } else if (*locked) {
    found.standing = RunnerStanding::kAlive;
  } else {
    found.standing = found.end ? RunnerStanding::kEnded : RunnerStanding::kLost;
  }
  return found;
}

Status abandon_runner(const std::string& path) {
  const auto directory = os::open_directory(path);
  if (!directory) return tl::unexpected(directory.error());
  wire::RunnerClaim claim;
  claim.abandoned = true;
  claim.boot_id = os::boot_id();
  const auto claimed = os::claim_file_at(directory->get(), wire::kClaimFile, wire::encode_claim(claim));
  if (!claimed) return tl::unexpected(claimed.error());
  return {};
}

Result<std::size_t> kill_strays(const std::string& path) {
  const auto found = look_at_runner(path);
  if (!found) return tl::unexpected(found.error());
  if (found->standing == RunnerStanding::kAlive)
    return base::fail(Code::kUnavailable, "the runner of " + path + " is alive and ends its job itself");
  // Processes from before the machine was started anew do not run any more, and their numbers mean others.
  if (found->machine_rebooted || !found->claim || found->claim->abandoned) return 0u;
  std::size_t signalled = 0;
  if (!found->claim->cgroup.empty()) {
    const auto killed = kill_cgroup(found->claim->cgroup);
    if (killed) signalled += *killed;
  }
  const auto directory = os::open_directory(path);
  if (!directory) return tl::unexpected(directory.error());
  const auto text = os::read_file_at(directory->get(), wire::kSpecFile, wire::kMaxSpecBytes);
  if (!text) return tl::unexpected(text.error());
  const auto spec = wire::decode_spec(bytes_of(*text));
  if (!spec) return tl::unexpected(spec.error());
  if (const std::string marker = marker_of(*spec); !marker.empty()) {
    GPUMUX_TRY(for_each_marked(spec->uid, marker, [&](int pidfd) {
      Status killed = os::kill_process(pidfd);
      if (killed) ++signalled;
      return killed;
    }));
  }
  return signalled;
}

Result<std::vector<RunnerDirectory>> list_runners(const RunnerPlaces& places) {
  const auto names = os::list_directory(places.jobs_dir);
  if (!names) return tl::unexpected(names.error());
  std::vector<RunnerDirectory> found;
  for (const std::string& name : *names) {
    const std::size_t dot = name.find('.');
    const auto job = base::parse_integer(name.substr(0, dot), 0, UINT64_MAX);
    const auto attempt = base::parse_integer(dot == std::string::npos ? "" : name.substr(dot + 1), 0, UINT32_MAX);
    if (job && attempt) found.push_back({*job, static_cast<std::uint32_t>(*attempt), places.jobs_dir + "/" + name});
  }
  return found;
}

Status forget_runner(const std::string& path) {
  const auto found = look_at_runner(path);
  if (!found) {
    if (found.error().code == Code::kNotFound) return {};
    // A directory that cannot be read is kept for a person to look at.
    return tl::unexpected(found.error());
  }
  if (found->standing == RunnerStanding::kAlive)
    return base::fail(Code::kUnavailable, "the runner of " + path + " is alive");
  const auto directory = os::open_directory(path);
  if (!directory) return tl::unexpected(directory.error());
  const auto names = os::list_directory(path);
  if (!names) return tl::unexpected(names.error());
  for (const std::string& name : *names) {
    // The claim goes last: without it, what is left would look as if it had never begun.
    if (name != wire::kClaimFile) ::unlinkat(directory->get(), name.c_str(), 0);
  }
  ::unlinkat(directory->get(), wire::kClaimFile, 0);
  if (::rmdir(path.c_str()) != 0 && errno != ENOENT) return base::fail_errno(errno, "cannot remove " + path);
  return {};
}

Result<wire::FromRunner> receive_from_runner(int connection) {
  std::byte buffer[base::kMaxMessageBytes];
  const auto received = os::receive_message(connection, buffer);
  if (!received) return tl::unexpected(received.error());
  if (received->bytes == 0) return base::fail(Code::kNotFound, "the runner has closed its connection");
  return wire::decode_from_runner(std::span(buffer, received->bytes));
}

}  // namespace gpumux::runners
