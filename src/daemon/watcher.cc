// SPDX-License-Identifier: Apache-2.0
#include "daemon/watcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "daemon/daemon.h"
#include "os/file_descriptor.h"
#include "os/system_clock.h"
#include "server/loop/log.h"

namespace gpumux::daemon {
namespace {

constexpr int kPassedOn[] = {SIGTERM, SIGINT, SIGHUP};

class Watcher {
 public:
  explicit Watcher(int notify_fd) : notify_fd_(notify_fd) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGCHLD);
    for (const int number : kPassedOn) sigaddset(&signals, number);
    ::sigprocmask(SIG_BLOCK, &signals, &before_);
    signals_ = os::FileDescriptor(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  int run(const std::function<int(int fd)>& run) {
    for (RestartPause pauses;;) {
      if (!signals_ || !start(run)) {
        server::log_error("the daemon cannot be started", {{"why", std::strerror(errno)}});
        return kExitFailed;
      }
      const int status = await_end();
      const bool has_failed = WIFSIGNALED(status) || WEXITSTATUS(status) == kExitFailed;
      const int exit_status = WIFSIGNALED(status) ? int{kExitFailed} : WEXITSTATUS(status);
      if (!has_failed || is_stopped_ || !was_ready_) return exit_status;
      const auto pause = pauses.after(has_served_);
      if (!pause) {
        server::log_error("the daemon fails again and again before it serves; it is not started again",
                          {{"status", status}});
        return exit_status;
      }
      if (WIFSIGNALED(status)) {
        server::log_error("the daemon was killed; starting it again", {{"pid", child_}, {"signal", WTERMSIG(status)}});
      } else {
        server::log_error("the daemon has failed; starting it again", {{"pid", child_}});
      }
      child_ = 0;
      rest(*pause);
      if (is_stopped_) return exit_status;
    }
  }

 private:
  bool start(const std::function<int(int fd)>& run) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    word_ = os::FileDescriptor(ends[0]);
    const os::FileDescriptor write_end(ends[1]);
    has_served_ = false;
    child_ = ::fork();
    if (child_ == 0) {
      word_.reset();
      signals_.reset();
      if (notify_fd_ >= 0) ::close(notify_fd_);
      ::sigprocmask(SIG_SETMASK, &before_, nullptr);
      // The daemon closes it itself, when it has written to it.
      std::exit(run(::dup(write_end.get())));
    }
    // So that no person takes it for the daemon.
    ::prctl(PR_SET_NAME, "gpumux-watcher");
    return child_ > 0;
  }

  // The child's, as waitpid gives it.
  int await_end() {
    int status = 0;
    while (::waitpid(child_, &status, WNOHANG) != child_) look(-1);
    hear_word();  // it may have come with the end
    return status;
  }
  void rest(base::Duration pause) {
    const base::TimePoint until = os::now() + pause;
    for (base::Duration left = pause; left > base::Duration::zero() && !is_stopped_; left = until - os::now())
      look(static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
  }

  // Waits for a signal or the child's word.
  void look(int timeout_ms) {
    pollfd items[] = {{signals_.get(), POLLIN, 0}, {word_ ? word_.get() : -1, POLLIN, 0}};
    ::poll(items, 2, timeout_ms);
    if (items[1].revents != 0) hear_word();
    signalfd_siginfo told{};
    while (::read(signals_.get(), &told, sizeof told) == sizeof told) {
      const int number = static_cast<int>(told.ssi_signo);
      if (number == SIGCHLD) continue;
      if (number != SIGHUP) is_stopped_ = true;
      if (child_ > 0) ::kill(child_, number);
    }
  }
  void hear_word() {
    char word[64];
    const ssize_t got = word_ ? ::read(word_.get(), word, sizeof word) : 0;
    if (got < 0 && errno == EAGAIN) return;
    word_.reset();
    if (got <= 0) return;
    has_served_ = true;
    was_ready_ = true;
    if (notify_fd_ < 0) return;
    [[maybe_unused]] const ssize_t written = ::write(notify_fd_, word, static_cast<std::size_t>(got));
    ::close(std::exchange(notify_fd_, -1));
  }

  int notify_fd_;
  sigset_t before_{};
  os::FileDescriptor signals_;
  os::FileDescriptor word_;  // of the child that runs, until it serves
  pid_t child_ = 0;
  bool has_served_ = false;  // this child
  bool was_ready_ = false;   // any
  bool is_stopped_ = false;  // by a signal
};

}  // namespace

std::optional<base::Duration> RestartPause::after(bool has_served) {
  if (has_served) *this = RestartPause();
  if (!has_served && ++in_vain_ > kMostInVain) return std::nullopt;
  return std::exchange(next_, has_served ? kFirst : 2 * next_);
}

int watch(int notify_fd, const std::function<int(int fd)>& run) { return Watcher(notify_fd).run(run); }

}  // namespace gpumux::daemon
