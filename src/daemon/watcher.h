// SPDX-License-Identifier: Apache-2.0
// A process that starts the daemon, and starts it again when it fails. It does for a private daemon what systemd does
// for the system's: programs that wait for a lease would otherwise wait until a person starts the next daemon.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "base/clock.h"

namespace gpumux::daemon {

// How long to wait before a daemon that has failed is started again. One that has served is started again soon. One
// that fails each time before it serves is started less and less often, and then no more.
class RestartPause {
 public:
  // Nothing: no more.
  std::optional<base::Duration> after(bool has_served);

 private:
  // As systemd does (packaging/systemd/gpumuxd.service). Then a daemon serves within a second of another one's death.
  static constexpr base::Duration kFirst = std::chrono::milliseconds(100);
  static constexpr int kMostInVain = 8;  // a guess: the last pause is 13 s

  base::Duration next_ = kFirst;
  int in_vain_ = 0;
};

// Calls `run(fd)` in a child process, and in another one each time that it fails: by a signal, or with kExitFailed. The
// child writes to `fd` when it serves. The first such word is passed on to `notify_fd` (-1: to none). A child that
// fails before that is not followed by another one. Passes SIGTERM, SIGINT and SIGHUP on to the child. Returns the exit
// status of the last child. REQUIRES: the process has one thread.
int watch(int notify_fd, const std::function<int(int fd)>& run);

}  // namespace gpumux::daemon
