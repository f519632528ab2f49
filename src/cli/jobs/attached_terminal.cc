// SPDX-License-Identifier: Apache-2.0
#include "cli/jobs/attached_terminal.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <utility>

#include "base/split.h"
#include "os/system_clock.h"
#include "os/unix_socket.h"
#include "wire/runner_messages.h"

namespace gpumux::cli {

// A terminal that hands on every key as it is, until this goes.
class RawTerminal {
 public:
  explicit RawTerminal(int fd) : fd_(fd), known_(::tcgetattr(fd, &before_) == 0) { enter(); }
  ~RawTerminal() { leave(); }
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

  void enter() {
    if (!known_ || raw_) return;
    termios raw = before_;
    ::cfmakeraw(&raw);
    raw_ = ::tcsetattr(fd_, TCSADRAIN, &raw) == 0;
  }
  void leave() {
    if (!raw_) return;
    while (::tcsetattr(fd_, TCSADRAIN, &before_) != 0 && errno == EINTR) {
    }
    raw_ = false;
  }

 private:
  int fd_;
  termios before_{};
  bool known_;
  bool raw_ = false;
};

namespace {

using base::Code;
using base::Result;
using base::Status;

constexpr char kCtrlC = '\x03';

// Input that the job does not read is kept up to here. A terminal's user who types more loses it, as on any terminal;
// anything else is simply not read further.
constexpr std::size_t kMostPendingInput = 64 << 10;

// Messages that are taken in one go before keys and signals are looked at again.
constexpr int kMessagesInARow = 16;

wire::WindowSize window_of(int input, int output) {
  winsize size{};
  if (::ioctl(input, TIOCGWINSZ, &size) != 0 && ::ioctl(output, TIOCGWINSZ, &size) != 0) return {};
  return {size.ws_row, size.ws_col};
}

}  // namespace

InterruptRule::Meaning InterruptRule::press(base::TimePoint now) {
  if (cancelling_) return Meaning::kLeaveNow;
  if (leave_at_ && now < *leave_at_) {
    leave_at_.reset();
    cancelling_ = true;
    return Meaning::kCancel;
  }
  leave_at_ = now + kSecondPress;
  return Meaning::kLeaveSoon;
}

Result<DetachKeys> DetachKeys::parse(std::string_view text) {
  constexpr std::string_view kControl = "ctrl-";
  constexpr char kControlBits = 0x1f;
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  DetachKeys keys;
  for (const std::string_view word : base::split(text, ',')) {
    const bool is_control =
        word.starts_with(kControl) && word.size() == kControl.size() + 1 &&
        (is_letter(word.back()) || std::string_view("@[\\]^_").find(word.back()) != std::string_view::npos);
    if (!is_control && (word.size() != 1 || !is_letter(word[0])))
      return base::fail(Code::kInvalid, "write keys with commas between them, such as ctrl-p,ctrl-q");
    keys.keys_ += is_control ? static_cast<char>(word.back() & kControlBits) : word[0];
  }
  return keys;
}

bool DetachKeys::typed(std::string_view keys, std::string& others) {
  for (const char key : keys) {
    if (key != keys_[matched_]) {
      others.append(keys_, 0, std::exchange(matched_, 0));
      if (key != keys_[0]) {
        others += key;
        continue;
      }
    }
    if (++matched_ < keys_.size()) continue;
    matched_ = 0;
    return true;
  }
  return false;
}

std::optional<int> exit_status_of_end(const wire::AttachEnded& ended) {
  const int code = static_cast<int>(ended.code & 0xff);
  switch (static_cast<wire::EndHow>(ended.how)) {
    case wire::EndHow::kExited:
    case wire::EndHow::kNotStarted: return code;
    case wire::EndHow::kSignaled: return 128 + code;
    case wire::EndHow::kSetupFailed: return code == 0 ? 1 : code;
  }
  return std::nullopt;
}

Result<AttachedOutcome> AttachedTerminal::run(const std::string& socket_path) {
  auto socket = os::connect_seqpacket(socket_path);
  if (!socket) return tl::unexpected(std::move(socket).error());
  socket_ = std::move(*socket);
  input_is_terminal_ = ::isatty(options_.input) == 1;
  std::optional<RawTerminal> raw;
  if (input_is_terminal_) raw.emplace(options_.input);
  raw_ = raw ? &*raw : nullptr;
  wire::AttachHello hello;
  hello.window = window_of(options_.input, options_.output);
  hello.from = next_;
  if (const auto sent = os::send_message(socket_.get(), wire::encode(hello).bytes()); !sent) return AttachedOutcome{};

  for (;;) {
    const bool wants_input = input_open_ && (input_is_terminal_ || pending_.size() < kMostPendingInput);
    std::array<pollfd, 3> polled{{{signals_.fd(), POLLIN, 0},
                                  {socket_.get(), static_cast<short>(POLLIN | (pending_.empty() ? 0 : POLLOUT)), 0},
                                  {wants_input ? options_.input : -1, POLLIN, 0}}};
    int timeout = -1;
    if (const auto leave_at = interrupts_.leave_at()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*leave_at - os::now()).count();
      timeout = static_cast<int>(std::max<long long>(0, left));
    }
    if (::poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR)
      return base::fail_errno(errno, "cannot wait for the terminal");
    if (auto outcome = hear_signals()) return *outcome;
    if (interrupts_.leaves(os::now())) return AttachedOutcome{.how = AttachedHow::kLeft, .ended = {}, .signal = 0};
    if ((polled[2].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
      if (auto outcome = hear_user()) return *outcome;
    }
    if (!pending_.empty()) send_input();
    if ((polled[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
      auto outcome = hear_job();
      if (!outcome) return tl::unexpected(std::move(outcome).error());
      if (*outcome) return **outcome;
    }
  }
}

Result<std::optional<AttachedOutcome>> AttachedTerminal::hear_job() {
  std::array<std::byte, wire::kMaxAttachMessageBytes> buffer;
  for (int i = 0; i < kMessagesInARow; ++i) {
    const auto received = os::receive_message(socket_.get(), buffer);
    if (!received && received.error().code == Code::kUnavailable && received.error().system_errno == EAGAIN)
      return std::nullopt;
    if (!received || received->bytes == 0) return AttachedOutcome{};
    const auto message = wire::decode_to_attached(std::span(buffer.data(), received->bytes));
    if (!message) return tl::unexpected(message.error());
    if (const auto* output = std::get_if<wire::AttachOutput>(&*message)) {
      next_ += output->bytes.size();
      if (!show(output->bytes)) {
        if (SignalPipe::ending() != 0) return std::nullopt;  // hear_signals() acts on it
        return base::fail_errno(errno, "cannot write to the standard output");
      }
    } else if (const auto* welcome = std::get_if<wire::AttachWelcome>(&*message)) {
      if (welcome->from > next_) {
        options_.say("[" + std::to_string(welcome->from - next_) + " bytes of output are not shown; `gpumux logs " +
                     options_.label + "` has all]");
      }
      next_ = welcome->from;
    } else if (const auto* lagging = std::get_if<wire::AttachLagging>(&*message)) {
      next_ = lagging->next;
      return AttachedOutcome{};
    } else if (const auto* ended = std::get_if<wire::AttachEnded>(&*message)) {
      return AttachedOutcome{.how = AttachedHow::kEnded, .ended = *ended, .signal = 0};
    }
  }
  return std::nullopt;
}

std::optional<AttachedOutcome> AttachedTerminal::hear_signals() {
  while (const auto signal = signals_.take()) {
    switch (*signal) {
      case SIGWINCH: send_window(); break;
      case SIGTSTP: stop_here(); break;
      case SIGCONT: break;
      case SIGINT:
        if (auto outcome = interrupted()) return outcome;
        break;
      default: return AttachedOutcome{.how = AttachedHow::kLeft, .ended = {}, .signal = *signal};
    }
  }
  return std::nullopt;
}

std::optional<AttachedOutcome> AttachedTerminal::hear_user() {
  char buffer[wire::kMaxAttachInputBytes];
  const ssize_t got = ::read(options_.input, buffer, sizeof buffer);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return std::nullopt;
  if (got <= 0) {
    input_open_ = false;
    // A terminal that is gone has no reader left.
    if (input_is_terminal_) return AttachedOutcome{.how = AttachedHow::kLeft, .ended = {}, .signal = SIGHUP};
    return std::nullopt;
  }
  std::string_view typed(buffer, static_cast<std::size_t>(got));
  if (input_is_terminal_ && options_.detach_keys.are_set()) {
    std::string others;
    if (options_.detach_keys.typed(typed, others)) return AttachedOutcome{.how = AttachedHow::kLeft, .ended = {}};
    if (pending_.size() < kMostPendingInput) pending_ += others;
    return std::nullopt;
  }
  while (!typed.empty()) {
    const std::size_t end = input_is_terminal_ ? typed.find(kCtrlC) : std::string_view::npos;
    const std::string_view keys = typed.substr(0, end);
    if (!input_is_terminal_ || pending_.size() < kMostPendingInput) pending_ += keys;
    if (end == std::string_view::npos) break;
    if (auto outcome = interrupted()) return outcome;
    typed.remove_prefix(end + 1);
  }
  return std::nullopt;
}

std::optional<AttachedOutcome> AttachedTerminal::interrupted() {
  switch (interrupts_.press(os::now())) {
    case InterruptRule::Meaning::kLeaveSoon:
      options_.say("[Ctrl+C: leaving job " + options_.label + ", which goes on; once more within a second cancels it]");
      return std::nullopt;
    case InterruptRule::Meaning::kCancel: {
      const Status cancelled = options_.cancel();
      if (cancelled) {
        options_.say("[job " + options_.label + " is being cancelled; Ctrl+C does not wait for its end]");
        return std::nullopt;
      }
      options_.say("[job " + options_.label + " could not be cancelled: " + cancelled.error().message() + "]");
      break;
    }
    case InterruptRule::Meaning::kLeaveNow: break;
  }
  return AttachedOutcome{.how = AttachedHow::kLeft, .ended = {}, .signal = 0};
}

void AttachedTerminal::send_input() {
  std::string message;
  while (!pending_.empty()) {
    const std::size_t length = std::min(pending_.size(), wire::kMaxAttachInputBytes);
    const wire::Header header = wire::attach_header(wire::AttachType::kInput, length);
    message.assign(reinterpret_cast<const char*>(&header), sizeof header);
    message.append(pending_, 0, length);
    // A full buffer is tried again when there is room; that the other side is gone is seen when it is read from.
    if (!os::send_message(socket_.get(), std::as_bytes(std::span(message)))) return;
    pending_.erase(0, length);
  }
}

void AttachedTerminal::send_window() {
  const wire::AttachResize resize{window_of(options_.input, options_.output)};
  if (resize.window.rows != 0) static_cast<void>(os::send_message(socket_.get(), wire::encode(resize).bytes()));
}

// Shows all of it, however slow the reader is. False: it cannot, or a signal ends us before.
bool AttachedTerminal::show(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(options_.output, bytes.data(), bytes.size());
    if (wrote >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(wrote));
      continue;
    }
    if (SignalPipe::ending() != 0) return false;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return false;
    pollfd item{options_.output, POLLOUT, 0};
    ::poll(&item, 1, -1);
  }
  return true;
}

// Stops us as the shell stops any program: with the terminal as it was. It is raw again when we go on.
void AttachedTerminal::stop_here() {
  if (raw_ != nullptr) raw_->leave();
  ::kill(::getpid(), SIGSTOP);
  if (raw_ != nullptr) raw_->enter();
  send_window();
}

}  // namespace gpumux::cli
