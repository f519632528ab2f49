// SPDX-License-Identifier: Apache-2.0
#include "jobs/runner/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "os/unix_socket.h"

namespace gpumux::runner {
namespace {

using namespace std::chrono_literals;
using base::Duration;
using base::TimePoint;

// The daemon, the one before it, and a few that look.
constexpr std::size_t kMostPeers = 8;
// Nobody's grace is longer; what overflows would be no grace at all.
constexpr std::uint64_t kMostGraceMs = 7ull * 24 * 3600 * 1000;
// Stopping takes a process to its next return from the kernel. What takes longer waits for a disk or a driver.
constexpr auto kFreezeTime = 10s;
// What cannot be killed in this time after its main process has ended (it hangs in a driver, or is not ours to kill)
// will not be waited for: the job has ended, and its end says that something is left.
constexpr auto kKillTime = 60s;
// For the terminal's process to write the last output to a log that may be on a slow disk, and then to end itself.
constexpr auto kDrainTime = 5s;
constexpr auto kTerminalEndTime = 4s;
// The kernel lets who has ended out of his group when it gets to it.
constexpr auto kReleaseTime = 1s;
// Between steps of freezing and killing; the first is short, for mostly the first step has done it.
constexpr auto kFirstTick = 2ms;
constexpr auto kSlowestTick = 200ms;
constexpr auto kEndRetry = 1s;

std::uint64_t microseconds(const timeval& time) {
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000u + static_cast<std::uint64_t>(time.tv_usec);
}

std::uint64_t nanoseconds(Duration duration) { return static_cast<std::uint64_t>(duration.count()); }

Duration grace_of(std::uint64_t milliseconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::min(milliseconds, kMostGraceMs)));
}

}  // namespace

// ---- the loop ---------------------------------------------------------------------------------------------

void Supervisor::loop() {
  while (true) {
    if (finished_ && terminal_ == 0) {
      // Where the directory was removed, nobody will ever look.
      struct stat status {};
      const bool removed = ::fstat(directory_.get(), &status) == 0 && status.st_nlink == 0;
      if (end_written_ || noted_ || removed) return;
    }
    std::vector<pollfd> polled = {
        {signals_.get(), POLLIN, 0}, {report_.get(), POLLIN, 0}, {link_.get(), POLLIN, 0}, {control_.get(), POLLIN, 0}};
    const std::size_t known = peers_.size();
    for (const os::FileDescriptor& peer : peers_) polled.push_back({peer.get(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), poll_timeout()) < 0 && errno != EINTR) return;
    if (polled[1].revents != 0) {
      serve_report();
      if ((polled[1].revents & POLLIN) == 0) report_.reset();  // every holder of the other end is gone
    }
    if (polled[2].revents != 0) serve_link();
    if (polled[0].revents != 0) serve_signals();
    for (std::size_t i = 0; i < known; ++i) {
      if (polled[4 + i].revents != 0) serve_peer(peers_[i]);
    }
    if (polled[3].revents != 0) accept_peer();
    std::erase_if(peers_, [](const os::FileDescriptor& peer) { return !peer; });
    if (needs_tick_ && clock_.now() >= next_tick_) tick();
  }
}

int Supervisor::poll_timeout() const {
  TimePoint next = TimePoint::max();
  if (needs_tick_) next = next_tick_;
  if (kill_at_) next = std::min(next, std::max(*kill_at_, next_tick_));
  if (next == TimePoint::max()) return -1;
  const Duration left = next - clock_.now();
  if (left <= Duration(0)) return 0;
  return static_cast<int>(std::min<std::int64_t>((left + 999'999ns) / 1ms, 60'000));
}

void Supervisor::serve_signals() {
  signalfd_siginfo info;
  bool child = false;
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo == SIGCHLD) {
      child = true;
    } else {
      terminate(wire::EndReason::kShutdown, grace_of(spec_.leftover_grace_ms));
    }
  }
  if (!child) return;
  reap();
  // Who has gone may have been the last one.
  if (needs_tick_) next_tick_ = std::min(next_tick_, clock_.now());
}

void Supervisor::reap() {
  int status = 0;
  pid_t pid;
  while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0) {
    if (pid == terminal_) {
      terminal_ended();
    } else if (pid == main_ && !main_reaped_) {
      main_ended(status);
    }
  }
}

void Supervisor::serve_report() {
  Report report;
  while (report_) {
    const Received received = receive_report(report_.get(), report);
    if (received == Received::kNothing) return;
    if (++reports_ > kMostReports) {
      // The set-up command writes what it likes. From here on its status is as good as the command's.
      report_.reset();
      return take_report(ReportKind::kLaunching, 0, "");
    }
    if (received == Received::kReport) take_report(report.kind, report.code, report.text);
  }
}

void Supervisor::take_report(ReportKind kind, std::uint32_t code, std::string_view text) {
  if (main_reaped_ && main_ != 0) return;
  switch (kind) {
    case ReportKind::kNoCgroup: processes_.release_cgroup(); break;
    case ReportKind::kSetup:
      if (!launched_) in_setup_ = true;
      if (phase_ == wire::RunnerPhase::kStarting) change_phase(wire::RunnerPhase::kSetup);
      break;
    case ReportKind::kLaunching:
      launched_ = true;
      if (phase_ == wire::RunnerPhase::kStarting || phase_ == wire::RunnerPhase::kSetup)
        change_phase(wire::RunnerPhase::kRunning);
      break;
    case ReportKind::kFailed:
      if (failure_) break;
      failure_.emplace();
      failure_->code = code == wire::kExitNotFound || code == wire::kExitNotExecutable ? code : wire::kExitNotStarted;
      wire::set_text(failure_->text, printable(text));
      break;
  }
}

void Supervisor::serve_link() {
  LinkMessage message;
  std::byte buffer[sizeof message];
  auto received = os::receive_message(link_.get(), buffer);
  if (!received && received.error().system_errno == EAGAIN) return;
  if (!received || received->bytes != sizeof message) {
    link_.reset();  // its end is seen by reap()
    return;
  }
  std::copy_n(buffer, sizeof message, reinterpret_cast<std::byte*>(&message));
  if (message.kind == LinkKind::kDrained) {
    terminal_drained_ = true;
    next_tick_ = clock_.now();
  } else if (message.kind == LinkKind::kReady && main_ == 0 && !main_reaped_ && received->fd) {
    const base::Status started = start_main(received->fd.get());
    if (!started) never_started(wire::kExitNotStarted, started.error().message());
  }
}

void Supervisor::accept_peer() {
  os::FileDescriptor socket(::accept4(control_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket || peers_.size() >= kMostPeers) return;
  const auto credentials = os::peer_credentials(socket.get());
  if (!credentials || (credentials->uid != 0 && credentials->uid != ::geteuid())) return;
  os::FileDescriptor& peer = peers_.emplace_back(std::move(socket));
  if (tell(peer, state()) && finished_) tell(peer, end_);
}

void Supervisor::serve_peer(os::FileDescriptor& peer) {
  std::byte buffer[base::kMaxMessageBytes];
  const auto received = os::receive_message(peer.get(), buffer);
  if (!received && received.error().system_errno == EAGAIN) return;
  if (!received || received->bytes == 0) return peer.reset();
  const auto message = wire::decode_to_runner(std::span(buffer, received->bytes));
  if (!message) return peer.reset();
  obey(*message);
}

void Supervisor::obey(const wire::ToRunner& message) {
  if (const auto* order = std::get_if<wire::Terminate>(&message)) {
    terminate(order->reason, grace_of(order->grace_ms));
  } else if (const auto* suspended = std::get_if<wire::Suspend>(&message)) {
    suspend(suspended->sequence);
  } else if (const auto* resumed = std::get_if<wire::Resume>(&message)) {
    resume(resumed->sequence);
  } else if (std::holds_alternative<wire::Noted>(message) && finished_) {
    noted_ = true;
    claim_.reset();  // the directory may go
  }
}

// ---- orders -----------------------------------------------------------------------------------------------

void Supervisor::terminate(wire::EndReason reason, Duration grace) {
  if (finished_) return;
  const TimePoint now = clock_.now();
  kill_at_ = std::min(kill_at_.value_or(TimePoint::max()), now + grace);
  needs_tick_ = true;
  next_tick_ = now;
  // The end is written once the main process has ended: from then on there is nothing to give a reason for.
  if (main_reaped_) return;
  if (reason_ == wire::EndReason::kNone) reason_ = reason;
  if (main_ == 0) {
    never_started(wire::kExitNotStarted, "it was ended before its command was started");
    return;
  }
  if (phase_ == wire::RunnerPhase::kStopping) return;
  change_phase(wire::RunnerPhase::kStopping);
  if (grace > Duration(0)) {
    processes_.signal_all(SIGTERM);
    // A shell at a terminal does not end for TERM.
    if (spec_.interactive) processes_.signal_all(SIGHUP);
    processes_.signal_all(SIGCONT);
  }
  resume(sequence_);
}

void Supervisor::suspend(std::uint64_t sequence) {
  sequence_ = sequence;
  if (main_ == 0 || main_reaped_ || phase_ == wire::RunnerPhase::kStopping || finished_) {
    change_suspension(wire::Suspension::kNone);  // it is not going to run on, or not there yet
    return;
  }
  if (suspension_ == wire::Suspension::kFrozen) return change_suspension(wire::Suspension::kFrozen);
  freeze_until_ = clock_.now() + kFreezeTime;
  change_suspension(wire::Suspension::kFreezing);
  needs_tick_ = true;
  next_tick_ = clock_.now();
  tick();
}

void Supervisor::resume(std::uint64_t sequence) {
  const bool was_suspended = suspension_ != wire::Suspension::kNone;
  const bool asked = sequence != sequence_;
  sequence_ = sequence;
  if (was_suspended) processes_.thaw();
  freeze_until_.reset();
  if (was_suspended || asked) change_suspension(wire::Suspension::kNone);
}

// ---- what takes several steps -----------------------------------------------------------------------------

void Supervisor::tick() {
  const TimePoint now = clock_.now();
  needs_tick_ = false;
  Duration wait = kSlowestTick;
  if (freeze_until_) {
    const std::size_t left = processes_.freeze_step();
    if (left == 0 || now >= *freeze_until_) {
      freeze_until_.reset();
      unstoppable_ = static_cast<std::uint32_t>(left);
      change_suspension(left == 0 ? wire::Suspension::kFrozen : wire::Suspension::kFailed);
    } else {
      needs_tick_ = true;
      wait = std::clamp<Duration>((kFreezeTime - (*freeze_until_ - now)) / 8, kFirstTick, kSlowestTick);
    }
  }
  if (kill_at_ && !finished_) {
    needs_tick_ = true;
    if (now >= *kill_at_) {
      const std::size_t left = processes_.kill_step();
      if (left > 0) wait = std::clamp<Duration>((now - *kill_at_) / 8, kFirstTick, kSlowestTick);
    } else {
      wait = std::min<Duration>(wait, *kill_at_ - now);
    }
  }
  next_tick_ = now + wait;
  if (phase_ == wire::RunnerPhase::kCleaning && !finished_) end_leftovers();
  if (!end_written_ && main_reaped_) {
    needs_tick_ = true;
    if (finished_) {
      write_end();
      next_tick_ = now + kEndRetry;
    }
  }
  if (finished_ && terminal_ != 0) {
    needs_tick_ = true;
    if (drain_until_ && now >= *drain_until_) ::kill(terminal_, SIGKILL);
  }
}

// After the main process: what is left gets TERM once, then KILL; then the terminal's last output; then it is over.
void Supervisor::end_leftovers() {
  needs_tick_ = true;
  const TimePoint now = clock_.now();
  reap();
  const bool gone = processes_.is_gone();
  const std::size_t left = gone ? 0 : processes_.count();
  if (!give_up_at_) {
    end_.leftovers = static_cast<std::uint32_t>(left);
    const TimePoint killed = now + grace_of(spec_.leftover_grace_ms);
    kill_at_ = std::min(kill_at_.value_or(TimePoint::max()), killed);
    give_up_at_ = *kill_at_ + kKillTime;
    if (left > 0 && now < *kill_at_) {
      processes_.signal_all(SIGTERM);
      processes_.signal_all(SIGCONT);
    }
    next_tick_ = now + kFirstTick;
  }
  if (!gone && now < *give_up_at_) return;
  if (!gone) wire::set_text(end_.text, std::to_string(left) + " of its processes could not be ended");
  if (terminal_ != 0 && !terminal_drained_ && link_) {
    if (!drain_until_) {
      drain_until_ = now + kDrainTime;
      const LinkMessage drain{.kind = LinkKind::kDrain};
      static_cast<void>(::send(link_.get(), &drain, sizeof drain, MSG_NOSIGNAL | MSG_DONTWAIT));
    }
    if (now < *drain_until_) return;
  }
  if (!release_until_) release_until_ = now + kReleaseTime;
  if (!processes_.release_cgroup() && now < *release_until_) {
    next_tick_ = now + kFirstTick;
    return;
  }
  finish();
}

// ---- the end ----------------------------------------------------------------------------------------------

void Supervisor::main_ended(int status) {
  // Its last words are in the pipe before it ends.
  serve_report();
  main_reaped_ = true;
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  end_.ended_wall_ns =
      static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
  end_.user_us = microseconds(usage.ru_utime);
  end_.system_us = microseconds(usage.ru_stime);
  end_.peak_rss_kib = static_cast<std::uint64_t>(usage.ru_maxrss);
  end_.reason = reason_;
  const bool signaled = WIFSIGNALED(status);
  const auto code = static_cast<std::uint32_t>(signaled ? WTERMSIG(status) : WEXITSTATUS(status));
  if (failure_ && !signaled) {
    end_.how = wire::EndHow::kNotStarted;
    end_.code = failure_->code;
    wire::set_text(end_.text, wire::text_of(failure_->text));
  } else if (in_setup_ && !launched_ && (!signaled || reason_ == wire::EndReason::kNone)) {
    end_.how = wire::EndHow::kSetupFailed;
    end_.code = signaled ? 128 + code : code;
  } else {
    end_.how = signaled ? wire::EndHow::kSignaled : wire::EndHow::kExited;
    end_.code = code;
  }
#ifdef WCOREDUMP
  if (signaled && WCOREDUMP(status)) end_.flags |= wire::kDumpedCore;
#endif
  write_end();
  freeze_until_.reset();
  if (suspension_ != wire::Suspension::kNone) {
    processes_.thaw();
    change_suspension(wire::Suspension::kNone);
  }
  change_phase(wire::RunnerPhase::kCleaning);
  needs_tick_ = true;
  next_tick_ = clock_.now();
}

void Supervisor::terminal_ended() {
  terminal_ = 0;
  processes_.except(0);
  link_.reset();
  serve_report();
  if (main_ == 0 && !main_reaped_) {
    never_started(
        failure_ ? failure_->code : wire::kExitNotStarted,
        failure_ ? std::string(wire::text_of(failure_->text)) : "the process that holds its terminal has ended");
  }
}

void Supervisor::write_end() {
  wire::RunnerEnded record = end_;
  record.flags &= ~wire::kEndNotDurable;
  if (!end_written_) end_written_ = end_file_.publish(wire::encode_end(record)).has_value();
  end_.flags = end_written_ ? record.flags : record.flags | wire::kEndNotDurable;
}

void Supervisor::finish() {
  if (!end_written_) write_end();
  finished_ = true;
  kill_at_.reset();
  if (!spec_.attach_path.empty()) ::unlink(spec_.attach_path.c_str());
  change_phase(wire::RunnerPhase::kEnded);
  // Before it is told: whoever hears it may look, and finds the claim free.
  if (end_written_) claim_.reset();
  tell_all(end_);
  if (link_) {
    const LinkMessage ended{.kind = LinkKind::kEnded, .how = static_cast<std::uint32_t>(end_.how), .code = end_.code};
    static_cast<void>(::send(link_.get(), &ended, sizeof ended, MSG_NOSIGNAL | MSG_DONTWAIT));
  }
  drain_until_ = clock_.now() + kTerminalEndTime;
}

// ---- telling ----------------------------------------------------------------------------------------------

template <class Message>
bool Supervisor::tell(os::FileDescriptor& peer, const Message& message) {
  if (!peer) return false;
  if (os::send_message(peer.get(), wire::encode(message).bytes())) return true;
  // Gone, or it has not read for hundreds of messages: it will connect again, and hear how things are.
  peer.reset();
  return false;
}

template <class Message>
void Supervisor::tell_all(const Message& message) {
  for (os::FileDescriptor& peer : peers_) tell(peer, message);
}

template bool Supervisor::tell(os::FileDescriptor&, const wire::RunnerRefused&);
template void Supervisor::tell_all(const wire::RunnerState&);

wire::RunnerState Supervisor::state() const {
  wire::RunnerState state;
  state.job = spec_.job;
  state.attempt = spec_.attempt;
  state.phase = phase_;
  state.suspension = suspension_;
  state.sequence = sequence_;
  state.runner_pid = static_cast<std::uint32_t>(::getpid());
  state.main_pid = static_cast<std::uint32_t>(main_);
  state.started_wall_ns = started_wall_ns_;
  const TimePoint now = clock_.now();
  Duration suspended = suspended_;
  if (suspension_ == wire::Suspension::kFrozen) suspended += now - suspended_since_;
  state.suspended_ns = nanoseconds(suspended);
  if (main_ != 0) state.running_ns = nanoseconds(std::max(now - started_ - suspended, Duration(0)));
  state.uses_cgroup = processes_.uses_cgroup() ? 1 : 0;
  state.unstoppable = suspension_ == wire::Suspension::kFailed ? unstoppable_ : 0;
  return state;
}

void Supervisor::change_phase(wire::RunnerPhase phase) {
  phase_ = phase;
  tell_all(state());
}

void Supervisor::change_suspension(wire::Suspension suspension) {
  const TimePoint now = clock_.now();
  if (suspension_ == wire::Suspension::kFrozen && suspension != wire::Suspension::kFrozen)
    suspended_ += now - suspended_since_;
  if (suspension_ != wire::Suspension::kFrozen && suspension == wire::Suspension::kFrozen) suspended_since_ = now;
  suspension_ = suspension;
  tell_all(state());
}

}  // namespace gpumux::runner
