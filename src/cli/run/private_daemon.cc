// SPDX-License-Identifier: Apache-2.0
#include "cli/run/private_daemon.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "os/file_descriptor.h"
#include "os/installation.h"
#include "os/preload_list.h"
#include "os/runtime_dir.h"
#include "os/system_clock.h"

namespace gpumux::cli {
namespace {

using base::Code;
using base::Duration;
using base::Result;
using base::Status;
using base::TimePoint;

// Where the daemon finds the pipe: the lowest number after the standard three, so that everything above can be closed.
constexpr int kNotifyFd = 3;

// How much of the daemon's log is shown when it fails to start.
constexpr std::size_t kShownLogBytes = 4096;

// A private daemon's log starts anew when it is larger than this: no program rotates a file in a user's runtime
// directory.
constexpr off_t kMaxLogBytes = 8 << 20;

// Between two looks at something that gives no notice (a lock with a deadline, a socket that comes back).
constexpr auto kRetryInterval = std::chrono::milliseconds(20);

// Says to the daemon at `runtime_dir` that this process uses it. kUnavailable: no daemon answers.
Status use_daemon(const std::string& runtime_dir) {
  const auto client = api_client::Client::connect({.runtime_dir = runtime_dir});
  if (!client) return tl::unexpected(client.error());
  Status held = client->hold();
  // A daemon that does not know the request answers all the same.
  if (!held && (held.error().code == Code::kNotFound || held.error().code == Code::kUnsupported)) return {};
  return held;
}

Result<os::FileDescriptor> lock_start(const std::string& dir, TimePoint deadline) {
  const std::string path = dir + "/" + kStartLock;
  os::FileDescriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return base::fail_errno(errno, "cannot create " + path);
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return base::fail_errno(errno, "cannot lock " + path);
    if (os::now() >= deadline) {
      return base::fail(Code::kUnavailable, "another `gpumux run` has been starting a daemon for too long (it holds " +
                                                path + "): look at " + dir + "/" + kPrivateLog);
    }
    std::this_thread::sleep_for(kRetryInterval);
  }
  return lock;
}

// In the child, between fork and exec: nothing but system calls.
[[noreturn]] void become_daemon(const char* const* argv, char* const* environment, int log, int notify) {
  ::setsid();
  const pid_t child = ::fork();
  if (child != 0) ::_exit(child < 0 ? 1 : 0);
  // The daemon must not inherit ignored or blocked signals from its caller (nohup, a job's shell).
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int number = 1; number < NSIG; ++number) {
    if (number != SIGKILL && number != SIGSTOP) ::signal(number, SIG_DFL);
  }
  // The working directory stays: LD_LIBRARY_PATH may be relative to it.
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, STDIN_FILENO);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  // The pipe moves to its place last; dup2 onto itself would keep close-on-exec.
  if (notify == kNotifyFd) {
    ::fcntl(notify, F_SETFD, 0);
  } else {
    ::dup2(notify, kNotifyFd);
  }
  if (::syscall(SYS_close_range, kNotifyFd + 1, ~0u, 0) != 0) {
    const long limit = ::sysconf(_SC_OPEN_MAX);
    for (int fd = kNotifyFd + 1; fd < (limit < 0 || limit > 65536 ? 65536 : static_cast<int>(limit)); ++fd) ::close(fd);
  }
  ::execve(argv[0], const_cast<char* const*>(argv), environment);
  const char* reason = ::strerror(errno);
  const char text[] = "cannot be executed: ";
  if (::write(STDERR_FILENO, text, sizeof text - 1) < 0 || ::write(STDERR_FILENO, reason, ::strlen(reason)) < 0)
    ::_exit(126);
  ::_exit(127);
}

// Waits for the daemon's word. kUnavailable: it ended without one; kTimeout.
Status wait_until_ready(int pipe, TimePoint deadline) {
  for (;;) {
    const Duration left = deadline - os::now();
    if (left <= Duration::zero()) return base::fail(Code::kTimeout, "it did not say that it serves");
    pollfd item{pipe, POLLIN, 0};
    const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    if (::poll(&item, 1, static_cast<int>(milliseconds)) <= 0) continue;
    char byte = 0;
    const ssize_t got = ::read(pipe, &byte, 1);
    if (got > 0) return {};
    if (got == 0) return base::fail(Code::kUnavailable, "it ended");
    if (errno != EINTR && errno != EAGAIN) return base::fail_errno(errno, "cannot read from it");
  }
}

std::string log_since(int log, off_t begin) {
  struct stat status {};
  if (::fstat(log, &status) != 0) return {};
  const off_t limit = static_cast<off_t>(kShownLogBytes);
  if (status.st_size - begin > limit) begin = status.st_size - limit;
  std::string text(kShownLogBytes, '\0');
  const ssize_t got = ::pread(log, text.data(), text.size(), begin);
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// The environment that the daemon gets: ours, with its directory, without our library, which is for programs.
class DaemonEnvironment {
 public:
  explicit DaemonEnvironment(const std::string& runtime_dir) {
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string_view text = *variable;
      if (text.starts_with("GPUMUX_RUNTIME_DIR=")) continue;
      if (text.starts_with("LD_PRELOAD=") && os::has_library(os::variable_entries(text.substr(11)))) continue;
      storage_.emplace_back(text);
    }
    storage_.push_back("GPUMUX_RUNTIME_DIR=" + runtime_dir);
    for (std::string& variable : storage_) pointers_.push_back(variable.data());
    pointers_.push_back(nullptr);
  }
  char* const* get() const { return pointers_.data(); }

 private:
  std::vector<std::string> storage_;
  std::vector<char*> pointers_;
};

Result<os::FileDescriptor> open_log(const std::string& path) {
  os::FileDescriptor log(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!log) return base::fail_errno(errno, "cannot open " + path);
  struct stat status {};
  if (::fstat(log.get(), &status) == 0 && status.st_size > kMaxLogBytes && ::ftruncate(log.get(), 0) != 0) {
    return base::fail_errno(errno, "cannot shorten " + path);
  }
  return log;
}

// Starts the daemon and waits until it serves.
Status start_daemon(const std::string& binary, const std::string& dir, TimePoint deadline) {
  const std::string log_path = dir + "/" + kPrivateLog;
  auto log = open_log(log_path);
  if (!log) return tl::unexpected(std::move(log).error());
  const off_t log_begin = ::lseek(log->get(), 0, SEEK_END);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return base::fail_errno(errno, "cannot create a pipe");
  os::FileDescriptor read_end(ends[0]);
  os::FileDescriptor write_end(ends[1]);
  const DaemonEnvironment environment(dir);
  const std::string notify = std::to_string(kNotifyFd);
  const char* const argv[] = {binary.c_str(),         "--private",   "--exit-when-unused", kExitWhenUnused,
                              "--restart-on-failure", "--notify-fd", notify.c_str(),       nullptr};
  const pid_t child = ::fork();
  if (child < 0) return base::fail_errno(errno, "cannot fork");
  if (child == 0) become_daemon(argv, environment.get(), log->get(), write_end.get());
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  write_end.reset();
  const Status ready = wait_until_ready(read_end.get(), deadline);
  if (ready) return {};
  std::string text =
      "no gpumux daemon is running and one for you could not be started: " + ready.error().message() + ". ";
  const std::string said = log_since(log->get(), log_begin);
  text += said.empty() ? binary + " said nothing" : binary + " said:\n  ";
  for (const char c : said) {
    text += c;
    if (c == '\n') text += "  ";
  }
  text += "\n  The log is " + log_path + "; `gpumux doctor` checks the installation";
  return base::fail(Code::kUnavailable, text);
}

Result<DaemonChoice> wait_for_system_daemon(const base::Error& first_error) {
  const TimePoint deadline = os::now() + kRestartPatience;
  while (os::now() < deadline) {
    std::this_thread::sleep_for(kRetryInterval);
    if (use_daemon(os::kSystemRuntimeDir)) return DaemonChoice{os::kSystemRuntimeDir, false};
  }
  return base::fail(Code::kUnavailable,
                    first_error.what +
                        ". Only the system's daemon has its place there, so none is started for you: start it, or "
                        "set GPUMUX_RUNTIME_DIR to a directory of yours to run under a daemon of your own");
}

// The daemon that was started for the user has ended, for another daemon has the GPUs: it has left a link to that one's
// folder. If that is the folder itself, it was emptied, and the daemon there makes its sockets anew.
Result<DaemonChoice> wait_for_other_daemon(const std::string& dir, const base::Error& failed) {
  const std::string other = os::linked_dir(dir);
  const char* const named = ::secure_getenv("GPUMUX_RUNTIME_DIR");
  const bool is_named = named != nullptr && named[0] != '\0';
  if (other.empty() || (is_named && other != dir)) return tl::unexpected(failed);
  const TimePoint deadline = os::now() + kRestartPatience;
  do {
    if (use_daemon(other)) return DaemonChoice{other, false};
    std::this_thread::sleep_for(kRetryInterval);
  } while (os::now() < deadline);
  return tl::unexpected(failed);
}

std::string absolute_dir(const std::string& dir) {
  char buffer[PATH_MAX];
  return ::realpath(dir.c_str(), buffer) == nullptr ? dir : std::string(buffer);
}

bool is_systems_place(std::string dir) {
  while (dir.ends_with('/')) dir.pop_back();
  return absolute_dir(dir) == os::kSystemRuntimeDir;
}

}  // namespace

Result<std::string> find_daemon_binary() {
  if (const char* named = std::getenv("GPUMUX_DAEMON"); named != nullptr && named[0] != '\0') {
    if (::access(named, X_OK) == 0) return absolute_dir(named);
    return base::fail_errno(errno, "GPUMUX_DAEMON names " + std::string(named) + ", which cannot be executed");
  }
  std::string looked;
  if (const auto dir = os::executable_dir()) {
    for (const char* place : {"/gpumuxd", "/../sbin/gpumuxd", "/../libexec/gpumux/gpumuxd"}) {
      const std::string path = *dir + place;
      if (::access(path.c_str(), X_OK) == 0) return absolute_dir(path);
      looked += path + ", ";
    }
  }
  for (const char* place : {"/usr/sbin/gpumuxd", "/usr/bin/gpumuxd", "/usr/local/sbin/gpumuxd"}) {
    if (::access(place, X_OK) == 0) return std::string(place);
  }
  return base::fail(Code::kNotFound,
                    "gpumuxd was not found (looked at " + looked +
                        "/usr/sbin, /usr/bin and /usr/local/sbin): install gpumux again, or name it in GPUMUX_DAEMON");
}

bool private_daemon_has_run() {
  struct stat status {};
  const std::string dir = os::private_state_dir(::getenv);
  return !dir.empty() && ::stat(dir.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

Result<DaemonChoice> find_or_start_daemon() {
  auto found = os::find_runtime_dir();
  if (!found) return tl::unexpected(std::move(found).error());
  const Status first = use_daemon(*found);
  if (first) return DaemonChoice{absolute_dir(*found), false};
  if (first.error().code != Code::kUnavailable) return tl::unexpected(first.error());
  // Every job of the system's daemon has the place's name in its environment.
  if (is_systems_place(*found)) {
    // A program needs no more of it than a container has.
    if (os::is_containers_view(*found)) return DaemonChoice{os::kSystemRuntimeDir, false};
    return wait_for_system_daemon(first.error());
  }

  auto binary = find_daemon_binary();
  if (!binary)
    return tl::unexpected(
        base::Error{Code::kUnavailable, 0, "no gpumux daemon is running, and " + binary.error().message()});
  auto made = os::make_user_runtime_dir();
  if (!made) return tl::unexpected(std::move(made).error());
  const std::string dir = absolute_dir(*made);
  const TimePoint deadline = os::now() + kDaemonStartLimit;
  const auto lock = lock_start(dir, deadline);
  if (!lock && lock.error().code == Code::kDenied) {
    return base::fail(Code::kUnavailable,
                      "no gpumux daemon is running, and you cannot start one there: " + lock.error().message());
  }
  if (!lock) return tl::unexpected(lock.error());
  const Status second = use_daemon(dir);
  if (second) return DaemonChoice{dir, false};
  if (second.error().code != Code::kUnavailable) return tl::unexpected(second.error());
  ::unlink((dir + "/" + os::kElsewhere).c_str());
  if (const Status started = start_daemon(*binary, dir, deadline); !started)
    return wait_for_other_daemon(dir, started.error());
  const Status third = use_daemon(dir);
  if (!third) {
    return base::fail(Code::kUnavailable, "the daemon that was started for you does not answer (" +
                                              third.error().message() + "); its log is " + dir + "/" + kPrivateLog);
  }
  return DaemonChoice{dir, true};
}

}  // namespace gpumux::cli
