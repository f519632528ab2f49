// SPDX-License-Identifier: Apache-2.0
#include "cli/jobs/interactive.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>

#include "cli/frame/command.h"
#include "cli/frame/terminal.h"
#include "cli/jobs/job_calls.h"
#include "cli/jobs/job_view.h"
#include "cli/jobs/signal_pipe.h"
#include "cli/jobs/waiting_line.h"
#include "cli/run/program_lookup.h"
#include "os/system_clock.h"

namespace gpumux::cli {
namespace {

using api_client::Job;
using base::Code;

// How long one question to the daemon may wait for an answer: a press of Ctrl+C is noticed after that.
constexpr base::Duration kAskFor = std::chrono::milliseconds(400);

// A job that runs and whose terminal is not there yet, or not any more, is looked at again after this.
constexpr base::Duration kLookAgain = std::chrono::milliseconds(100);

// The job has ended, and the daemon says so a moment later. The reason that it adds is worth this long a wait.
constexpr base::Duration kLastWords = std::chrono::seconds(3);

class Session {
 public:
  Session(const char* command, std::string id, const FindClient& connect, const DetachKeys& detach_keys)
      : command_(command),
        id_(std::move(id)),
        connect_(connect),
        patient_(connect),
        terminal_({.label = id_,
                   .input = STDIN_FILENO,
                   .output = STDOUT_FILENO,
                   .detach_keys = detach_keys,
                   .cancel = [this] { return cancel(); },
                   .say = [this](const std::string& line) { say(line); }},
                  signals_) {}

  // The exit status, and the signal to die by (0: none).
  int run(int& signal) {
    const int status = go();
    line_.clear();
    signal = signal_;
    return status;
  }

 private:
  int go() {
    for (;;) {
      if (const auto status = hear_signals()) return *status;
      auto job = patient_.wait(id_, api_client::JobMoment::kStarted, kAskFor);
      if (!job) return report_error(command_, job.error());
      if (!*job) {
        // The job is held by its runner, not by the daemon: its terminal is where it was.
        if (socket_path_.empty()) line_.show("the daemon is away; waiting for it to come back");
      } else {
        if (const auto status = look_at(**job)) return *status;
      }
      if (socket_path_.empty()) {
        pause(kLookAgain, *job && !(*job)->waits());
        continue;
      }
      line_.clear();
      const auto outcome = terminal_.run(socket_path_);
      if (!outcome && outcome.error().code == Code::kDenied) return report_error(command_, outcome.error());
      if (!outcome && outcome.error().code == Code::kProtocol) return report_error(command_, outcome.error());
      if (!outcome || outcome->how == AttachedHow::kDisconnected) {
        pause(kLookAgain, !outcome);
        continue;
      }
      if (outcome->how == AttachedHow::kLeft) return leave_job(outcome->signal);
      return finish(outcome->ended);
    }
  }

  // Acts on the daemon's answer about the job. A value: the session is over, with this exit status.
  std::optional<int> look_at(const Job& job) {
    socket_path_.clear();
    if (job.is_done()) {
      line_.clear();
      // A user who comes too late for the job's terminal is told where its output is.
      if (attempt_ == 0 && !job.log.empty() && job.started_unix_ns > 0) {
        const std::string own = printable(own_command());
        say_error(command_, "job " + id_ + " has ended already; `" + own + " logs " + id_ + "` shows what it printed");
      }
      return tell_end(command_, job);
    }
    if (job.attempt != attempt_ && attempt_ != 0) terminal_.begin_anew();
    attempt_ = job.attempt;
    if (job.log.empty() && job.arguments.empty() && job.attach.empty()) {
      say_error(command_, "job " + id_ + " is " + (job.user.empty() ? "another user" : job.user) +
                              "'s: you may not attach to it");
      return kExitDenied;
    }
    if (!job.interactive) {
      say_error(command_, "job " + id_ + " has no terminal: it was submitted without --interactive. `gpumux logs -f " +
                              id_ + "` shows what it prints");
      return kExitFailed;
    }
    socket_path_ = job.attach;
    if (socket_path_.empty()) line_.show(waiting_text(job) + "  (Ctrl+C leaves, twice cancels)");
    return std::nullopt;
  }

  std::optional<int> hear_signals() {
    while (const auto signal = signals_.take()) {
      if (*signal == SIGINT) {
        switch (interrupts_.press(os::now())) {
          case InterruptRule::Meaning::kLeaveSoon:
            say("[Ctrl+C: leaving job " + id_ + ", which goes on; once more within a second cancels it]");
            break;
          case InterruptRule::Meaning::kCancel:
            if (const auto cancelled = cancel(); !cancelled) return report_error(command_, cancelled.error());
            say("[job " + id_ + " is being cancelled; Ctrl+C does not wait for its end]");
            break;
          case InterruptRule::Meaning::kLeaveNow: return leave_job(0);
        }
      } else if (*signal == SIGTSTP) {
        line_.clear();
        ::kill(::getpid(), SIGSTOP);
      } else if (*signal == SIGTERM || *signal == SIGHUP || *signal == SIGQUIT) {
        return leave_job(*signal);
      }
    }
    if (interrupts_.leaves(os::now())) return leave_job(0);
    return std::nullopt;
  }

  // Until a signal comes, or the time is over.
  void pause(base::Duration duration, bool wanted) const {
    pollfd item{signals_.fd(), POLLIN, 0};
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
    if (wanted) ::poll(&item, 1, static_cast<int>(limit));
  }

  base::Status cancel() {
    const auto client = connect_();
    if (!client) return tl::unexpected(client.error());
    const auto changes = client->change_jobs(id_, R"({"cancel":true})");
    if (!changes) return tl::unexpected(changes.error());
    for (const auto& change : *changes) {
      if (change.error) return tl::unexpected(*change.error);
    }
    return {};
  }

  // The terminal may be raw: a line ends with both characters everywhere.
  void say(const std::string& text) {
    line_.clear();
    std::cerr << "\r\n" << printable(text) << "\r\n" << std::flush;
  }

  int leave_job(int signal) {
    std::cerr.clear();  // a message that the signal interrupted
    line_.clear();
    signal_ = signal;
    const std::string own = printable(own_command());
    std::cerr << "[left job " << id_ << ", which goes on; `" << own << " attach " << id_ << "` comes back, `" << own
              << " cancel " << id_ << "` ends it]\n"
              << std::flush;
    return kExitLeft;
  }

  int finish(const wire::AttachEnded& ended) {
    const auto told = exit_status_of_end(ended);
    const base::TimePoint until = os::now() + kLastWords;
    for (;;) {
      auto job = patient_.wait(id_, api_client::JobMoment::kDone, kAskFor);
      if (job && *job && (*job)->is_done()) return tell_end(command_, **job);
      if (told && (!job || os::now() >= until)) return *told;
      if (!job) return report_error(command_, job.error());
      // The daemon does not know how it ended, or it runs again: then it is not over.
      if (const auto status = hear_signals()) return *status;
      if (!told && *job && !(*job)->is_done() && os::now() >= until) return go_on();
    }
  }

  int go_on() {
    socket_path_.clear();
    return go();
  }

  const char* command_;
  std::string id_;
  FindClient connect_;
  PatientClient patient_;
  SignalPipe signals_;
  InterruptRule interrupts_;
  WaitingLine line_;
  AttachedTerminal terminal_;
  std::string socket_path_;
  std::uint64_t attempt_ = 0;
  int signal_ = 0;
};

}  // namespace

int attach_to_job(const char* command, const std::string& id, const FindClient& connect,
                  const DetachKeys& detach_keys) {
  int signal = 0;
  const int status = [&] {
    Session session(command, id, connect, detach_keys);
    return session.run(signal);
  }();
  if (signal != 0) {
    // The process that started us sees the signal that ended us.
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  }
  return status;
}

}  // namespace gpumux::cli
