// SPDX-License-Identifier: Apache-2.0
// A process that starts the daemon, and starts it again if it is killed. It does for a private daemon what systemd does
// for the system's: programs that wait for a lease would otherwise wait until a person starts the next daemon.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "base/clock.h"

namespace gpumux::daemon {

// How long to wait before the daemon is started again, which has lived for so long.
class RestartPause {
 public:
  // Nothing: it has died too often, each time soon after its start.
  std::optional<base::Duration> after(base::Duration life);

 private:
  static constexpr base::Duration kFirst = std::chrono::milliseconds(100);
  // A daemon that has lived for longer has done its work: its death is a new one. A guess, as are the others.
  static constexpr base::Duration kSoon = std::chrono::seconds(10);
  static constexpr int kMostSoonDeaths = 8;

  base::Duration next_ = kFirst;
  int soon_deaths_ = 0;
};

// Calls `run(notify_fd)` in a child process, and again in another one for as long as the child is killed by a signal.
// Passes SIGTERM, SIGINT and SIGHUP on to it. Returns the exit status of the child that ended by itself. `notify_fd`
// (-1: none) is the first child's alone. REQUIRES: the process has one thread.
int watch(int notify_fd, const std::function<int(int notify_fd)>& run);

}  // namespace gpumux::daemon
