// SPDX-License-Identifier: Apache-2.0
#include "cli/jobs/signal_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace gpumux::cli {
namespace {

// Written before the handlers are set and after they are gone; read by the handlers.
volatile sig_atomic_t pipe_end = -1;
volatile sig_atomic_t ending_signal = 0;

extern "C" void note_signal(int number) {
  const int saved = errno;
  if (number == SIGTERM || number == SIGHUP || number == SIGQUIT) ending_signal = number;
  const auto byte = static_cast<unsigned char>(number);
  // A full pipe holds more presses than any caller waits for.
  if (::write(static_cast<int>(pipe_end), &byte, 1) < 0) errno = 0;
  errno = saved;
}

}  // namespace

SignalPipe::SignalPipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) std::abort();  // no descriptors: nothing of this program would work
  read_ = os::FileDescriptor(ends[0]);
  write_ = os::FileDescriptor(ends[1]);
  pipe_end = write_.get();
  ending_signal = 0;
  for (std::size_t i = 0; i < kCaught.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = note_signal;
    // A write goes on after a signal, for the C++ streams give up for ever at an interrupted call. Exception: signals
    // that end us, for a reader that reads nothing must not keep us.
    const bool is_an_end = kCaught[i] == SIGTERM || kCaught[i] == SIGHUP || kCaught[i] == SIGQUIT;
    action.sa_flags = is_an_end ? 0 : SA_RESTART;
    ::sigaction(kCaught[i], &action, &before_[i]);
    if (before_[i].sa_handler == SIG_IGN) ::sigaction(kCaught[i], &before_[i], nullptr);
  }
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &pipe_before_);
}

SignalPipe::~SignalPipe() {
  for (std::size_t i = 0; i < kCaught.size(); ++i) ::sigaction(kCaught[i], &before_[i], nullptr);
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  pipe_end = -1;
}

std::optional<int> SignalPipe::take() {
  unsigned char number = 0;
  if (::read(read_.get(), &number, 1) != 1) return std::nullopt;
  return number;
}

int SignalPipe::ending() { return static_cast<int>(ending_signal); }

}  // namespace gpumux::cli
