// SPDX-License-Identifier: Apache-2.0
// Signals as something to poll for, each as often as it came: two presses of Ctrl+C must not melt into one.
//
// While one lives, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT and SIGWINCH are written into a pipe instead of
// acting. SIGPIPE is ignored. Its end restores the earlier handlers. Ignored signals stay ignored (nohup). One at a
// time in a process. poll() is interrupted by all of them, other system calls by those that end a program.
#pragma once

#include <signal.h>

#include <array>
#include <optional>

#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::cli {

class SignalPipe {
 public:
  SignalPipe();
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  int fd() const { return read_.get(); }
  // The oldest that has not been taken yet.
  std::optional<int> take();
  // SIGTERM, SIGHUP or SIGQUIT, once one has come; 0: none has.
  static int ending();

 private:
  static constexpr std::array<int, 7> kCaught{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH};

  os::FileDescriptor read_;
  os::FileDescriptor write_;
  std::array<struct sigaction, kCaught.size()> before_{};
  struct sigaction pipe_before_ {};
};

}  // namespace gpumux::cli
