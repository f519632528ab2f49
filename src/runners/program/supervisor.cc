// SPDX-License-Identifier: Apache-2.0
#include "runners/program/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/deadline.h"
#include "os/unix_socket.h"
#include "os/wall_clock.h"

namespace gpumux::runners {
namespace {

using namespace std::chrono_literals;
using base::Duration;
using base::TimePoint;

// The daemon, the one before it, and a few that look.
constexpr std::size_t kMostPeers = 8;
// No job's grace is longer. A number that overflows would be no grace at all.
constexpr std::uint64_t kMostGraceMs = 7ull * 24 * 3600 * 1000;
// A process stops when it next returns from the kernel. If that takes longer, it waits for a disk or a driver.
constexpr auto kFreezeTime = 10s;
// A process that cannot be killed in this time after the main process has ended hangs in a driver, or is not ours to
// kill. The runner does not wait for it: the job has ended, and its end says that something is left.
constexpr auto kKillTime = 60s;
// For the terminal's process to write the last output to a log that may be on a slow disk, and then to end itself.
constexpr auto kDrainTime = 5s;
constexpr auto kTerminalEndTime = 4s;
// The kernel takes a process that has ended out of its cgroup when it gets to it.
constexpr auto kReleaseTime = 1s;
// Between steps of freezing and killing; the first is short, for mostly the first step has done it.
constexpr auto kFirstTick = 2ms;
constexpr auto kSlowestTick = 200ms;
// A guess: a full disk is seen to have room again this late, and each try is one write.
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
  while (!is_over()) {
    std::vector<pollfd> polled = {{signals_.get(), POLLIN, 0},
                                  {report_.get(), POLLIN, 0},
                                  {terminal_.link.get(), POLLIN, 0},
                                  {control_.get(), POLLIN, 0}};
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
    if (next_tick_ && clock_.now() >= *next_tick_) tick();
  }
}

// The daemon has been told the end, and the end is in the directory, or the daemon has stored it. Where the directory
// was removed, no daemon will ever look.
bool Supervisor::is_over() const {
  const Ended* const ended = std::get_if<Ended>(&phase_);
  if (ended == nullptr || terminal_.process != 0) return false;
  struct stat status {};
  return end_written_ || ended->is_noted || (::fstat(directory_.get(), &status) == 0 && status.st_nlink == 0);
}

int Supervisor::poll_timeout() const {
  if (!next_tick_) return -1;
  const Duration left = *next_tick_ - clock_.now();
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
  // The process that has gone may have been the last one.
  if (next_tick_) next_tick_ = std::min(*next_tick_, clock_.now());
}

void Supervisor::reap() {
  int status = 0;
  pid_t pid;
  while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0) {
    if (pid == terminal_.process) {
      terminal_ended();
    } else if (pid == main_ && std::holds_alternative<Running>(phase_)) {
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
  using Progress = Running::Progress;
  Running* const running = std::get_if<Running>(&phase_);
  if (running == nullptr && !std::holds_alternative<Waiting>(phase_)) return;
  const auto advance = [&](Progress progress) {
    if (running == nullptr || running->progress >= progress) return;
    running->progress = progress;
    if (!running->is_stopping) tell_all(state());
  };
  switch (kind) {
    case ReportKind::kNoCgroup: processes_.release_cgroup(); break;
    case ReportKind::kSetup: advance(Progress::kSetup); break;
    case ReportKind::kLaunching: advance(Progress::kLaunched); break;
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
  auto received = os::receive_message(terminal_.link.get(), buffer);
  if (!received && received.error().system_errno == EAGAIN) return;
  if (!received || received->bytes != sizeof message) {
    terminal_.link.reset();  // its end is seen by reap()
    return;
  }
  std::copy_n(buffer, sizeof message, reinterpret_cast<std::byte*>(&message));
  if (message.kind == LinkKind::kDrained) {
    terminal_.is_drained = true;
    next_tick_ = clock_.now();
  } else if (message.kind == LinkKind::kReady && std::holds_alternative<Waiting>(phase_) && received->fd) {
    const base::Status started = start_main(received->fd.get());
    if (!started) never_started(wire::kExitNotStarted, started.error().message());
  }
}

void Supervisor::accept_peer() {
  os::FileDescriptor socket = os::accept_connection(control_.get());
  if (!socket || peers_.size() >= kMostPeers) return;
  const auto credentials = os::peer_credentials(socket.get());
  if (!credentials || (credentials->uid != 0 && credentials->uid != ::geteuid())) return;
  os::FileDescriptor& peer = peers_.emplace_back(std::move(socket));
  if (tell(peer, state()) && std::holds_alternative<Ended>(phase_)) tell(peer, end_);
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
  } else if (const auto* signal = std::get_if<wire::Signal>(&message)) {
    if (std::holds_alternative<Running>(phase_)) processes_.signal_all(static_cast<int>(signal->number));
  } else if (Ended* const ended = std::get_if<Ended>(&phase_); ended && std::holds_alternative<wire::Noted>(message)) {
    ended->is_noted = true;
    claim_.reset();  // the directory may go
  }
}

// ---- orders -----------------------------------------------------------------------------------------------

void Supervisor::terminate(wire::EndReason reason, Duration grace) {
  if (std::holds_alternative<Ended>(phase_)) return;
  const TimePoint now = clock_.now();
  next_tick_ = now;
  // The end is written once the main process has ended: from then on no reason can be given for it.
  if (Cleaning* const cleaning = std::get_if<Cleaning>(&phase_)) {
    cleaning->kill_at = base::earliest(cleaning->kill_at, now + grace);
    return;
  }
  if (reason_ == wire::EndReason::kNone) reason_ = reason;
  Running* const running = std::get_if<Running>(&phase_);
  if (running == nullptr)
    return never_started(wire::kExitNotStarted, "it was ended before its command was started", now + grace);
  running->kill_at = base::earliest(running->kill_at, now + grace);
  if (running->is_stopping) return;
  running->is_stopping = true;
  tell_all(state());
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
  Running* const running = std::get_if<Running>(&phase_);
  // It is not there yet, is not going to run on, or is suspended already.
  if (running == nullptr || running->is_stopping || std::holds_alternative<Frozen>(running->freeze))
    return tell_all(state());
  change_freeze(*running, Freezing{.until = clock_.now() + kFreezeTime});
  tick();
}

void Supervisor::resume(std::uint64_t sequence) {
  Running* const running = std::get_if<Running>(&phase_);
  const bool asked = sequence != sequence_;
  sequence_ = sequence;
  if (running != nullptr && !std::holds_alternative<std::monostate>(running->freeze)) {
    processes_.thaw();
    change_freeze(*running, {});
  } else if (asked) {
    tell_all(state());
  }
}

// ---- what takes several steps -----------------------------------------------------------------------------

void Supervisor::tick() {
  next_tick_.reset();
  std::visit([this](auto& phase) { tick(phase); }, phase_);
}

void Supervisor::tick(Running& running) {
  const TimePoint now = clock_.now();
  Duration wait = Duration::max();
  if (const Freezing* const freezing = std::get_if<Freezing>(&running.freeze)) {
    const std::size_t left = processes_.freeze_step();
    if (left == 0) {
      change_freeze(running, Frozen{.since = clock_.now()});
    } else if (now >= freezing->until) {
      change_freeze(running, FreezeFailed{.unstoppable = static_cast<std::uint32_t>(left)});
    } else {
      wait = std::clamp<Duration>((kFreezeTime - (freezing->until - now)) / 8, kFirstTick, kSlowestTick);
    }
  }
  if (running.kill_at) wait = std::min(wait, kill(*running.kill_at));
  if (wait != Duration::max()) next_tick_ = now + wait;
}

// One step of killing all that there is, once it is time; returns how long it is to the next one.
Duration Supervisor::kill(TimePoint at) {
  const TimePoint now = clock_.now();
  if (now < at) return std::min<Duration>(kSlowestTick, at - now);
  return processes_.kill_step() == 0 ? Duration(kSlowestTick)
                                     : std::clamp<Duration>((now - at) / 8, kFirstTick, kSlowestTick);
}

void Supervisor::tick(Cleaning& cleaning) {
  next_tick_ = clock_.now() + (cleaning.kill_at ? kill(*cleaning.kill_at) : Duration(kSlowestTick));
  if (!has_cleaned(cleaning)) return;
  finish();  // `cleaning` is gone
  tick();
}

// Processes that the main one has left get TERM once, then KILL. Then the terminal's last output is written, and the
// cgroup released.
bool Supervisor::has_cleaned(Cleaning& cleaning) {
  const TimePoint now = clock_.now();
  reap();
  const bool gone = processes_.is_gone();
  const std::size_t left = gone ? 0 : processes_.count();
  if (!cleaning.give_up_at) {
    end_.leftovers = static_cast<std::uint32_t>(left);
    cleaning.kill_at = base::earliest(cleaning.kill_at, now + grace_of(spec_.leftover_grace_ms));
    cleaning.give_up_at = *cleaning.kill_at + kKillTime;
    if (left > 0 && now < *cleaning.kill_at) {
      processes_.signal_all(SIGTERM);
      processes_.signal_all(SIGCONT);
    }
    next_tick_ = now + kFirstTick;
  }
  if (!gone && now < *cleaning.give_up_at) return false;
  if (!gone) wire::set_text(end_.text, std::to_string(left) + " of its processes could not be ended");
  if (terminal_.process != 0 && !terminal_.is_drained && terminal_.link) {
    if (!cleaning.drain_until) {
      cleaning.drain_until = now + kDrainTime;
      const LinkMessage drain{.kind = LinkKind::kDrain};
      static_cast<void>(::send(terminal_.link.get(), &drain, sizeof drain, MSG_NOSIGNAL | MSG_DONTWAIT));
    }
    if (now < *cleaning.drain_until) return false;
  }
  if (!cleaning.release_until) cleaning.release_until = now + kReleaseTime;
  if (processes_.release_cgroup() || now >= *cleaning.release_until) return true;
  next_tick_ = now + kFirstTick;
  return false;
}

void Supervisor::tick(Ended& ended) {
  const TimePoint now = clock_.now();
  if (!end_written_) {
    write_end();
    next_tick_ = now + kEndRetry;
  }
  if (terminal_.process != 0) {
    if (now >= ended.terminal_until) ::kill(terminal_.process, SIGKILL);
    next_tick_ = now + kSlowestTick;
  }
}

// ---- the end ----------------------------------------------------------------------------------------------

void Supervisor::main_ended(int status) {
  // Its last words are in the pipe before it ends.
  serve_report();
  rusage usage{};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  end_.ended_wall_ns = static_cast<std::uint64_t>(os::wall_clock_ns());
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
  } else if (std::get<Running>(phase_).progress == Running::Progress::kSetup &&
             (!signaled || reason_ == wire::EndReason::kNone)) {
    end_.how = wire::EndHow::kSetupFailed;
    end_.code = signaled ? 128 + code : code;
  } else {
    end_.how = signaled ? wire::EndHow::kSignaled : wire::EndHow::kExited;
    end_.code = code;
  }
  if (signaled || code != 0) end_.flags |= memory_flag(signaled ? 128 + code : code);
#ifdef WCOREDUMP
  if (signaled && WCOREDUMP(status)) end_.flags |= wire::kDumpedCore;
#endif
  write_end();
  resume(sequence_);
  phase_ =
      Cleaning{.kill_at = std::get<Running>(phase_).kill_at, .give_up_at = {}, .drain_until = {}, .release_until = {}};
  next_tick_ = clock_.now();
  tell_all(state());
}

// `status`: as a shell gives it. A shell ends with that of the command that was killed.
std::uint32_t Supervisor::memory_flag(std::uint32_t status) const {
  switch (oom_kills_.look(processes_.cgroup())) {
    case OomKill::kNone: return 0;
    case OomKill::kOfJob: return wire::kOutOfMemory;
    case OomKill::kNearJob: break;
  }
  if (reason_ != wire::EndReason::kNone) return 0;  // the daemon has told it to end
  return status == 128 + SIGKILL ? wire::kOutOfMemory : wire::kPerhapsOutOfMemory;
}

void Supervisor::terminal_ended() {
  terminal_.process = 0;
  processes_.except(0);
  terminal_.link.reset();
  serve_report();
  if (std::holds_alternative<Waiting>(phase_)) {
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
  phase_ = Ended{.terminal_until = clock_.now() + kTerminalEndTime};
  if (!spec_.attach_path.empty()) ::unlink(spec_.attach_path.c_str());
  tell_all(state());
  // Before the end is told: a daemon that hears it may look, and finds the claim free.
  if (end_written_) claim_.reset();
  tell_all(end_);
  if (terminal_.link) {
    const LinkMessage ended{.kind = LinkKind::kEnded, .how = static_cast<std::uint32_t>(end_.how), .code = end_.code};
    static_cast<void>(::send(terminal_.link.get(), &ended, sizeof ended, MSG_NOSIGNAL | MSG_DONTWAIT));
  }
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
  state.phase = phase();
  state.sequence = sequence_;
  state.runner_pid = static_cast<std::uint32_t>(::getpid());
  state.main_pid = static_cast<std::uint32_t>(main_);
  state.started_wall_ns = started_wall_ns_;
  const TimePoint now = clock_.now();
  Duration suspended = suspended_;
  if (const Running* const running = std::get_if<Running>(&phase_)) {
    if (std::holds_alternative<Freezing>(running->freeze)) state.suspension = wire::Suspension::kFreezing;
    if (const Frozen* const frozen = std::get_if<Frozen>(&running->freeze)) {
      state.suspension = wire::Suspension::kFrozen;
      suspended += now - frozen->since;
    }
    if (const FreezeFailed* const failed = std::get_if<FreezeFailed>(&running->freeze)) {
      state.suspension = wire::Suspension::kFailed;
      state.unstoppable = failed->unstoppable;
    }
  }
  state.suspended_ns = nanoseconds(suspended);
  if (main_ != 0) state.running_ns = nanoseconds(std::max(now - started_ - suspended, Duration(0)));
  state.uses_cgroup = processes_.uses_cgroup() ? 1 : 0;
  return state;
}

wire::RunnerPhase Supervisor::phase() const {
  if (std::holds_alternative<Ended>(phase_)) return wire::RunnerPhase::kEnded;
  if (std::holds_alternative<Cleaning>(phase_)) return wire::RunnerPhase::kCleaning;
  const Running* const running = std::get_if<Running>(&phase_);
  if (running == nullptr) return wire::RunnerPhase::kStarting;
  if (running->is_stopping) return wire::RunnerPhase::kStopping;
  switch (running->progress) {
    case Running::Progress::kForked: break;
    case Running::Progress::kSetup: return wire::RunnerPhase::kSetup;
    case Running::Progress::kLaunched: return wire::RunnerPhase::kRunning;
  }
  return wire::RunnerPhase::kStarting;
}

void Supervisor::change_freeze(Running& running, Freeze freeze) {
  if (const Frozen* const frozen = std::get_if<Frozen>(&running.freeze)) suspended_ += clock_.now() - frozen->since;
  running.freeze = freeze;
  tell_all(state());
}

}  // namespace gpumux::runners
