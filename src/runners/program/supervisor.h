// SPDX-License-Identifier: Apache-2.0
// The supervisor of one job, from the daemon's Begin to the durable end.
//
// One thread, one poll loop, a handful of descriptors; nothing in it waits for the job, the user's files or a peer. Its
// promises and their reasons: docs/decisions/0011-one-runner-per-job.md.
//
//   claim (durable) > [terminal process] > child > ... main process ends > end (durable) > leftovers ended > told >
//   exit
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "os/durable_file.h"
#include "os/file_descriptor.h"
#include "os/system_clock.h"
#include "runners/program/job_processes.h"
#include "runners/program/oom_kills.h"
#include "runners/program/report.h"
#include "runners/program/terminal.h"
#include "wire/runner_messages.h"
#include "wire/runner_records.h"

namespace gpumux::runners {

class Supervisor {
 public:
  // `daemon`: the connection that it was started with.
  explicit Supervisor(os::FileDescriptor daemon);

  // All of the job's life. Returns the runner's own exit status, which says nothing of the job.
  int run();

 private:
  // The command's process is not there yet: its terminal is being made.
  struct Waiting {};
  // How far the job's suspension has come; the first: it is not suspended.
  struct Freezing {
    base::TimePoint until;
  };
  struct Frozen {
    base::TimePoint since;
  };
  struct FreezeFailed {
    std::uint32_t unstoppable = 0;  // processes that could not be stopped; the others are
  };
  using Freeze = std::variant<std::monostate, Freezing, Frozen, FreezeFailed>;
  // It is there.
  struct Running {
    // kSetup: it is the set-up command's shell. kLaunched: it is the command.
    enum class Progress { kForked, kSetup, kLaunched };
    Progress progress = Progress::kForked;
    bool is_stopping = false;                // Terminate has come
    std::optional<base::TimePoint> kill_at;  // the end of Terminate's grace
    Freeze freeze;                           // changed by change_freeze alone
  };
  // It has ended, or there never will be one. The processes that it has left are being ended.
  struct Cleaning {
    std::optional<base::TimePoint> kill_at;
    std::optional<base::TimePoint> give_up_at;   // on processes that cannot be killed; none: nothing has been done yet
    std::optional<base::TimePoint> drain_until;  // for the terminal's last output
    std::optional<base::TimePoint> release_until;  // for the kernel to let the cgroup go
  };
  // The daemon is told the end.
  struct Ended {
    base::TimePoint terminal_until;  // the terminal's process is killed then
    bool is_noted = false;           // the daemon has stored the end
  };
  using Phase = std::variant<Waiting, Running, Cleaning, Ended>;

  // The process that holds the job's terminal.
  struct Terminal {
    pid_t process = 0;        // 0: there is none, or it has ended
    os::FileDescriptor link;  // to it; may be closed before it ends
    bool is_drained = false;  // its last output is written
  };

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
  void never_started(std::uint32_t code, const std::string& why, std::optional<base::TimePoint> kill_at = {});
  void release_spec();

  // ---- the loop (supervisor.cc)
  void loop();
  bool is_over() const;
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

  // ---- work of several steps: one step, and when the next one is due
  void tick();
  void tick(Waiting&) {}
  void tick(Running& running);
  void tick(Cleaning& cleaning);
  void tick(Ended& ended);
  base::Duration kill(base::TimePoint at);
  bool has_cleaned(Cleaning& cleaning);

  // ---- ending
  std::uint32_t memory_flag(std::uint32_t status) const;
  void write_end();
  void finish();

  template <class Message>
  void tell_all(const Message& message);
  template <class Message>
  bool tell(os::FileDescriptor& peer, const Message& message);
  wire::RunnerState state() const;
  wire::RunnerPhase phase() const;
  void change_freeze(Running& running, Freeze freeze);

  os::SystemClock clock_;
  std::vector<os::FileDescriptor> peers_;
  os::FileDescriptor directory_;
  os::FileDescriptor claim_;  // its lock says that this runner lives
  os::FileDescriptor control_;
  os::FileDescriptor signals_;
  os::FileDescriptor report_;
  int reports_ = 0;                // read from it
  os::FileDescriptor report_end_;  // the children's end, until both have it
  os::FileDescriptor program_;     // this program, for after the set-up command
  os::ReservedFile end_file_;

  wire::RunnerSpec spec_;  // without its long parts once the child has it
  JobProcesses processes_;
  OomKills oom_kills_;
  Terminal terminal_;
  pid_t main_ = 0;                            // the command's process, also when it has ended
  std::optional<wire::RunnerEnded> failure_;  // why there will be no command, as the child said

  Phase phase_;
  std::uint64_t sequence_ = 0;  // of the last Suspend or Resume
  wire::EndReason reason_ = wire::EndReason::kNone;
  wire::RunnerEnded end_;
  bool end_written_ = false;

  std::uint64_t started_wall_ns_ = 0;
  base::TimePoint started_;
  base::Duration suspended_{0};  // in suspensions that are over
  std::optional<base::TimePoint> next_tick_;
};

}  // namespace gpumux::runners
