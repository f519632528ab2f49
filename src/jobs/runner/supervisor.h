// SPDX-License-Identifier: Apache-2.0
// The supervisor of one job, from the daemon's Begin to the durable end.
//
// One thread, one poll loop, a handful of descriptors; nothing in it waits for the job, the user's files or a peer.
// docs/decisions/0011-one-runner-per-job.md says what it promises and why.
//
//   claim (durable) > [terminal process] > child > ... main process ends > end (durable) > leftovers ended > told >
//   exit
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "jobs/runner/job_processes.h"
#include "jobs/runner/report.h"
#include "jobs/runner/terminal.h"
#include "os/durable_file.h"
#include "os/file_descriptor.h"
#include "os/system_clock.h"
#include "wire/runner_messages.h"
#include "wire/runner_records.h"

namespace gpumux::runner {

class Supervisor {
 public:
  // `daemon`: the connection that it was started with.
  explicit Supervisor(os::FileDescriptor daemon);

  // All of the job's life. Returns the runner's own exit status, which nobody needs.
  int run();

 private:
  // ---- beginning (supervisor_begin.cc)
  std::optional<wire::Begin> receive_begin();
  base::Status begin(const wire::Begin& begin);
  base::Status open_job_directory(const std::string& path);
  base::Status claim(const std::string& cgroup);
  base::Status set_up(const std::string& cgroup);
  void refuse(const base::Error& error);
  base::Status start_terminal();
  base::Status start_main(int terminal);
  void start();
  void never_started(std::uint32_t code, const std::string& why);
  void release_spec();

  // ---- the loop (supervisor.cc)
  void loop();
  int poll_timeout() const;
  void serve_signals();
  void reap();
  void main_ended(int status);
  void terminal_ended();
  void serve_report();
  void take_report(ReportKind kind, std::uint32_t code, std::string_view text);
  void serve_link();
  void accept_peer();
  void serve_peer(os::FileDescriptor& peer);
  void obey(const wire::ToRunner& message);
  void terminate(wire::EndReason reason, base::Duration grace);
  void suspend(std::uint64_t sequence);
  void resume(std::uint64_t sequence);
  void tick();
  void end_leftovers();

  // ---- ending
  void write_end();
  void finish();

  template <class Message>
  void tell_all(const Message& message);
  template <class Message>
  bool tell(os::FileDescriptor& peer, const Message& message);
  wire::RunnerState state() const;
  void change_phase(wire::RunnerPhase phase);
  void change_suspension(wire::Suspension suspension);

  os::SystemClock clock_;
  std::vector<os::FileDescriptor> peers_;
  os::FileDescriptor directory_;
  os::FileDescriptor claim_;  // its lock says that this runner lives
  os::FileDescriptor control_;
  os::FileDescriptor signals_;
  os::FileDescriptor report_;
  int reports_ = 0;                // read from it
  os::FileDescriptor report_end_;  // the children's end, until both have it
  os::FileDescriptor link_;        // to the terminal process
  os::FileDescriptor program_;     // this program, for after the set-up command
  os::ReservedFile end_file_;

  wire::RunnerSpec spec_;  // emptied of what is long once the child has it
  JobProcesses processes_;
  pid_t terminal_ = 0;
  pid_t main_ = 0;
  bool main_reaped_ = false;
  bool launched_ = false;                     // the command itself was about to be executed
  bool in_setup_ = false;                     // the set-up command's shell was
  std::optional<wire::RunnerEnded> failure_;  // why there will be no command, as the child said
  bool terminal_drained_ = false;

  wire::RunnerPhase phase_ = wire::RunnerPhase::kStarting;
  wire::Suspension suspension_ = wire::Suspension::kNone;
  std::uint64_t sequence_ = 0;
  std::uint32_t unstoppable_ = 0;
  wire::EndReason reason_ = wire::EndReason::kNone;
  wire::RunnerEnded end_;
  bool end_written_ = false;
  bool noted_ = false;  // the daemon has stored the end
  bool finished_ = false;

  std::uint64_t started_wall_ns_ = 0;
  base::TimePoint started_;
  base::TimePoint suspended_since_;
  base::Duration suspended_{0};
  std::optional<base::TimePoint> kill_at_;
  std::optional<base::TimePoint> freeze_until_;
  std::optional<base::TimePoint> drain_until_;
  std::optional<base::TimePoint> give_up_at_;
  std::optional<base::TimePoint> release_until_;
  base::TimePoint next_tick_;
  bool needs_tick_ = false;
};

}  // namespace gpumux::runner
