// SPDX-License-Identifier: Apache-2.0
#include "shim/process/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <ctime>
#include <new>
#include <string_view>

#include "base/lock.h"
#include "base/units.h"
#include "os/kept_descriptor.h"

namespace gpumux::shim {
namespace {

// Where messages go. Never closed: they may come until the last moment.
struct Log {
  base::Mutex mutex;
  int standard GPUMUX_GUARDED_BY(mutex) = -1;  // standard output or error, by its number
  os::KeptDescriptor kept GPUMUX_GUARDED_BY(mutex);
  // Opened anew if the program closes it. Empty: it cannot be, it was a descriptor of the program's.
  std::string file GPUMUX_GUARDED_BY(mutex);
};
std::atomic<Log*> g_log{nullptr};

void write_all(int fd, const std::string& line) {
  const int saved_errno = errno;
  std::size_t at = 0;
  while (at < line.size()) {
    const ssize_t written = ::write(fd, line.data() + at, line.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;  // nowhere left to complain to
    at += static_cast<std::size_t>(written);
  }
  errno = saved_errno;
}

// The descriptor that a name stands for; -1: it names a file. In a container it may be a pipe or a socket, which cannot
// be opened by its name.
int descriptor_named(const std::string& destination) {
  if (destination == "stderr" || destination == "/dev/stderr") return STDERR_FILENO;
  if (destination == "stdout" || destination == "/dev/stdout") return STDOUT_FILENO;
  for (const std::string_view folder : {"/proc/self/fd/", "/dev/fd/"}) {
    if (!destination.starts_with(folder)) continue;
    const auto number = base::parse_integer(std::string_view(destination).substr(folder.size()), 0, INT_MAX);
    if (number) return static_cast<int>(*number);
  }
  return -1;
}

os::KeptDescriptor open_file(const std::string& name) {
  return os::KeptDescriptor(
      os::FileDescriptor(::open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600)));
}

// Standard output and error are used as the program has them, also if it redirects them later. The number of any other
// descriptor may soon stand for a file of the program's, so the library keeps a copy.
void open_log(const std::string& destination, Log& log) GPUMUX_REQUIRES(log.mutex) {
  const int named = descriptor_named(destination);
  if (named == STDOUT_FILENO || named == STDERR_FILENO) {
    log.standard = named;
  } else if (named >= 0) {
    log.kept = os::KeptDescriptor(os::FileDescriptor(::fcntl(named, F_DUPFD_CLOEXEC, 0)));
  } else {
    log.kept = open_file(destination);
    log.file = destination;
  }
}

std::string prefix_of(wire::Severity severity) {
  static constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  char prefix[96];
  std::snprintf(prefix, sizeof prefix, "gpumux[%d] %lld.%06ld %s: ", static_cast<int>(::getpid()),
                static_cast<long long>(t.tv_sec), t.tv_nsec / 1000, kNames[static_cast<std::uint32_t>(severity) & 3]);
  return prefix;
}

// Negative: there is none any more.
int descriptor_of(Log& log) GPUMUX_REQUIRES(log.mutex) {
  if (log.standard >= 0) return log.standard;
  if (!log.kept.is_lost()) return log.kept.get();
  log.kept = log.file.empty() ? os::KeptDescriptor() : open_file(log.file);
  const int fd = log.kept.get();
  if (fd < 0) {
    tell_user("the program has closed the log of GPUMUX_LOG; messages go to the daemon only");
  } else {
    write_all(fd, prefix_of(wire::Severity::kWarning) + "the program has closed this log, which was opened anew\n");
  }
  return fd;
}

}  // namespace

void set_log(const std::string& destination) {
  if (destination.empty()) return;
  auto* const log = new (std::nothrow) Log;
  if (log == nullptr) return;
  bool is_open;
  {
    const base::Locked locked(log->mutex);
    open_log(destination, *log);
    is_open = log->standard >= 0 || log->kept;
  }
  if (!is_open) {
    delete log;
    tell_user("cannot open the log " + destination + " named by GPUMUX_LOG; messages go to the daemon only");
    return;
  }
  g_log.store(log, std::memory_order_release);  // a forked child's own, with a mutex that no thread has locked
}

void write_log(wire::Severity severity, const std::string& text) {
  Log* const log = g_log.load(std::memory_order_acquire);
  if (log == nullptr) return;
  const std::string line = prefix_of(severity) + text + "\n";
  const base::Locked locked(log->mutex);
  const int fd = descriptor_of(*log);
  if (fd >= 0) write_all(fd, line);
}

void tell_user(const std::string& text) { write_all(STDERR_FILENO, "gpumux: " + text + "\n"); }

}  // namespace gpumux::shim
