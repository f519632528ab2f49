// SPDX-License-Identifier: Apache-2.0
#include "daemon/dir_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <optional>
#include <sstream>
#include <thread>

#include "base/units.h"
#include "os/runtime_dir.h"
#include "server/loop/files.h"
#include "server/peers/process_info.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

// A guess: the daemon starts up to this late after a killed one has ended.
constexpr auto kTryEvery = 50ms;
// Tens of thousands of locks.
constexpr std::size_t kMaxLocks = 16u << 20;

// The process that has a lock on the file, as /proc/locks has it:
//   3: FLOCK ADVISORY WRITE 812 00:19:4711 0 EOF
std::optional<pid_t> owner_of(int file) {
  struct stat status {};
  const auto list = server::read_file("/proc/locks", kMaxLocks);
  if (!list || ::fstat(file, &status) != 0) return std::nullopt;
  const std::string inode = ":" + std::to_string(status.st_ino);
  std::istringstream lines(*list);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, kind, manner, access, pid, where;
    words >> number >> kind >> manner >> access >> pid >> where;
    if (kind != "FLOCK" || !where.ends_with(inode)) continue;
    const auto owner = base::parse_integer(pid, 1, INT_MAX);
    if (owner) return static_cast<pid_t>(*owner);
  }
  return std::nullopt;
}

// Its main thread has not ended.
bool lives(pid_t pid) {
  const auto info = server::process_info(pid);
  return info && info->state != 'Z' && info->state != 'X';
}

bool has_socket(const std::string& dir) { return ::access((dir + "/" + os::kApiSocket).c_str(), F_OK) == 0; }

base::Result<os::FileDescriptor> open_lock(const std::string& dir) {
  const std::string path = dir + "/" + os::kRuntimeLock;
  os::FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return base::fail_errno(errno, "cannot open " + path);
  return file;
}

}  // namespace

bool is_lock_of(const std::string& dir, int lock) {
  struct stat held {};
  struct stat there {};
  return ::fstat(lock, &held) == 0 && ::lstat((dir + "/" + os::kRuntimeLock).c_str(), &there) == 0 &&
         held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

base::Result<os::FileDescriptor> try_lock_runtime_dir(const std::string& dir) {
  auto file = open_lock(dir);
  if (!file) return file;
  if (::flock(file->get(), LOCK_EX | LOCK_NB) != 0)
    return base::fail(base::Code::kExists, "another gpumuxd has locked " + dir);
  return file;
}

tl::expected<os::FileDescriptor, DaemonError> lock_runtime_dir(const std::string& dir, bool is_private) {
  if (::mkdir(dir.c_str(), is_private ? 0700 : 0755) != 0 && errno != EEXIST)
    return fail(kExitNoSockets, base::fail_errno(errno, "cannot create " + dir).value());
  auto opened = open_lock(dir);
  if (!opened) return fail(kExitNoSockets, opened.error());
  os::FileDescriptor file = std::move(*opened);
  const auto until = std::chrono::steady_clock::now() + kEndingPatience;
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return fail(kExitNoSockets, base::fail_errno(errno, "cannot lock " + dir).value());
    const auto owner = owner_of(file.get());
    // No owner: it has ended since, or is in another pid namespace. No socket: the owner is about to end, or to serve.
    const bool is_over = std::chrono::steady_clock::now() > until;
    const bool is_alive = owner && lives(*owner);
    if (is_alive ? is_over || has_socket(dir) : is_over && !owner)
      return fail(kExitOwned, {base::Code::kExists, 0, "another gpumuxd already serves " + dir});
    if (is_over) {
      return fail(kExitFailed,
                  {base::Code::kUnavailable, 0,
                   "gpumuxd " + std::to_string(*owner) + " was killed and cannot end, so " + dir +
                       " is not free: a thread of it waits in the kernel, most likely for the GPU's driver "
                       "(/proc/" +
                       std::to_string(*owner) + "/task/*/stack). Wait for it, reset the GPU, or restart the machine"});
    }
    std::this_thread::sleep_for(kTryEvery);
  }
  return file;
}

}  // namespace gpumux::daemon
