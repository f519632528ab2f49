// SPDX-License-Identifier: Apache-2.0
#include "daemon/watcher.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <utility>

#include "daemon/daemon.h"
#include "daemon/loop/log.h"
#include "os/system_clock.h"

namespace gpumux::daemon {
namespace {

constexpr int kPassedOn[] = {SIGTERM, SIGINT, SIGHUP};

sigset_t watched_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGCHLD);
  for (const int number : kPassedOn) sigaddset(&signals, number);
  return signals;
}

struct Seen {
  std::optional<int> status;  // the child's, as waitpid gives it
  bool is_stopped = false;    // a signal asked to stop in the meantime
};
// Waits for the child's end or, without a child (0), until `until` or until a signal asks to stop.
Seen wait_for(pid_t child, std::optional<base::TimePoint> until) {
  const sigset_t signals = watched_signals();
  Seen seen;
  for (;;) {
    int status = 0;
    if (child != 0 && ::waitpid(child, &status, WNOHANG) == child) {
      seen.status = status;
      return seen;
    }
    timespec left{3600, 0};
    if (until) {
      const base::Duration rest = *until - os::now();
      if (rest <= base::Duration::zero()) return seen;
      left = {rest.count() / 1'000'000'000, rest.count() % 1'000'000'000};
    }
    const int number = ::sigtimedwait(&signals, nullptr, &left);
    if (number <= 0 || number == SIGCHLD) continue;
    if (number != SIGHUP) seen.is_stopped = true;
    if (child != 0) ::kill(child, number);
    if (child == 0 && seen.is_stopped) return seen;
  }
}

}  // namespace

std::optional<base::Duration> RestartPause::after(base::Duration life) {
  if (life >= kSoon) *this = RestartPause();
  if (++soon_deaths_ > kMostSoonDeaths) return std::nullopt;
  return std::exchange(next_, 2 * next_);
}

int watch(int notify_fd, const std::function<int(int notify_fd)>& run) {
  const sigset_t signals = watched_signals();
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  RestartPause pauses;
  for (;;) {
    const base::TimePoint start = os::now();
    const pid_t child = ::fork();
    if (child == 0) {
      ::sigprocmask(SIG_SETMASK, &before, nullptr);
      return run(notify_fd);
    }
    if (child < 0) {
      log_error("cannot fork", {{"why", std::strerror(errno)}});
      return kExitFailed;
    }
    // So that no person takes it for the daemon.
    ::prctl(PR_SET_NAME, "gpumux-watcher");
    if (notify_fd >= 0) ::close(std::exchange(notify_fd, -1));
    const Seen end = wait_for(child, std::nullopt);
    if (WIFEXITED(*end.status)) return WEXITSTATUS(*end.status);
    const int number = WTERMSIG(*end.status);
    if (end.is_stopped) return kExitFailed;
    const auto pause = pauses.after(os::now() - start);
    if (!pause) {
      log_error("the daemon is killed again and again soon after its start; it is not started again",
                {{"signal", number}});
      return kExitFailed;
    }
    log_error("the daemon was killed; starting it again", {{"pid", child}, {"signal", number}});
    if (wait_for(0, os::now() + *pause).is_stopped) return kExitFailed;
  }
}

}  // namespace gpumux::daemon
