// SPDX-License-Identifier: Apache-2.0
#include "cli/frame/keys.h"

#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <string_view>

namespace gpumux::cli {
namespace {

constexpr int kInput = STDIN_FILENO;
constexpr std::array<int, 5> kEnding{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};

// For the handler, which finds nothing else.
termios before;

// Gives the terminal back, then lets the signal do what it does. tcsetattr and raise are async-signal-safe. The handler
// is gone by then (SA_RESETHAND), and the signal waits until this returns.
extern "C" void give_back(int signal) {
  const int saved = errno;
  ::tcsetattr(kInput, TCSANOW, &before);
  ::raise(signal);
  errno = saved;
}
// Only so that poll() returns.
extern "C" void wake(int) {}

void handle(int signal, void (*handler)(int), int flags) {
  struct sigaction old {};
  if (::sigaction(signal, nullptr, &old) != 0 || old.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigaction(signal, &action, nullptr);
}

struct Sequence {
  std::string_view bytes;
  Key key;
};
constexpr std::array<Sequence, 22> kSequences{{
    {"q", Key::kQuit},         {"Q", Key::kQuit},       {"\x1b[A", Key::kUp},        {"\x1bOA", Key::kUp},
    {"k", Key::kUp},           {"\x1b[B", Key::kDown},  {"\x1bOB", Key::kDown},      {"j", Key::kDown},
    {"\x1b[5~", Key::kPageUp}, {"b", Key::kPageUp},     {"\x1b[6~", Key::kPageDown}, {" ", Key::kPageDown},
    {"f", Key::kPageDown},     {"\x1b[H", Key::kFirst}, {"\x1bOH", Key::kFirst},     {"\x1b[1~", Key::kFirst},
    {"g", Key::kFirst},        {"\x1b[F", Key::kLast},  {"\x1bOF", Key::kLast},      {"\x1b[4~", Key::kLast},
    {"G", Key::kLast},         {"\n", Key::kDown},
}};

}  // namespace

void Keys::take() {
  if (::isatty(kInput) != 1 || ::tcgetpgrp(kInput) != ::getpgrp()) {
    taken_ = false;
    return;
  }
  if (!taken_ && ::tcgetattr(kInput, &before) != 0) return;
  // Again each time: a stopped process that goes on finds the terminal given back, and the handler gone.
  for (const int signal : kEnding) handle(signal, give_back, static_cast<int>(SA_RESETHAND));
  handle(SIGWINCH, wake, 0);
  termios quiet = before;
  quiet.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  quiet.c_cc[VMIN] = 1;
  quiet.c_cc[VTIME] = 0;
  taken_ = ::tcsetattr(kInput, TCSANOW, &quiet) == 0;
}

Keys::~Keys() {
  if (!taken_) return;
  ::tcsetattr(kInput, TCSANOW, &before);
  for (const int signal : kEnding) handle(signal, SIG_DFL, 0);
  handle(SIGWINCH, SIG_DFL, 0);
}

Key Keys::read() {
  std::array<char, 64> bytes{};
  const ssize_t size = ::read(kInput, bytes.data(), bytes.size());
  if (size <= 0) {
    taken_ = false;  // the terminal is gone
    return Key::kNone;
  }
  // Several keys at once: the last one counts.
  std::string_view rest(bytes.data(), static_cast<std::size_t>(size));
  Key key = Key::kNone;
  while (!rest.empty()) {
    std::size_t used = 1;
    for (const Sequence& one : kSequences) {
      if (!rest.starts_with(one.bytes)) continue;
      if (one.key == Key::kQuit) return one.key;
      key = one.key;
      used = one.bytes.size();
      break;
    }
    rest.remove_prefix(used);
  }
  return key;
}

Key Keys::wait(base::Duration patience) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + patience;
  for (;;) {
    take();
    const base::Duration left = std::max<base::Duration>(deadline - Clock::now(), base::Duration::zero());
    const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    pollfd input{.fd = taken_ ? kInput : -1, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&input, 1, static_cast<int>(std::min<std::int64_t>(milliseconds, INT32_MAX)));
    if (ready <= 0) return Key::kNone;
    if (const Key key = read(); key != Key::kNone) return key;
  }
}

}  // namespace gpumux::cli
