// SPDX-License-Identifier: Apache-2.0
#include "shim/process/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <ctime>
#include <string_view>

#include "base/units.h"

namespace gpumux::shim {
namespace {

std::atomic<int> g_log{-1};  // never closed: messages may come until the last moment

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

// Standard output and error are used as the program has them, also if it redirects them later. The number of any other
// descriptor may soon stand for a file of the program's, so the library keeps a copy.
int open_log(const std::string& destination) {
  const int named = descriptor_named(destination);
  if (named == STDOUT_FILENO || named == STDERR_FILENO) return named;
  if (named >= 0) return ::fcntl(named, F_DUPFD_CLOEXEC, 0);
  return ::open(destination.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
}

}  // namespace

void set_log(const std::string& destination) {
  if (destination.empty()) return;
  const int fd = open_log(destination);
  if (fd < 0) {
    tell_user("cannot open the log " + destination + " named by GPUMUX_LOG; messages go to the daemon only");
    return;
  }
  g_log.store(fd, std::memory_order_release);
}

void write_log(wire::Severity severity, const std::string& text) {
  const int fd = g_log.load(std::memory_order_acquire);
  if (fd < 0) return;
  static constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  char prefix[96];
  std::snprintf(prefix, sizeof prefix, "gpumux[%d] %lld.%06ld %s: ", static_cast<int>(::getpid()),
                static_cast<long long>(t.tv_sec), t.tv_nsec / 1000, kNames[static_cast<std::uint32_t>(severity) & 3]);
  write_all(fd, prefix + text + "\n");
}

void tell_user(const std::string& text) { write_all(STDERR_FILENO, "gpumux: " + text + "\n"); }

}  // namespace gpumux::shim
