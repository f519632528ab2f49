// SPDX-License-Identifier: Apache-2.0
#include "os/runtime_dir.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "os/file_descriptor.h"

namespace gpumux::os {
namespace {

// A longer path is no folder of sockets: their names have 107 bytes at most.
constexpr std::size_t kMaxSocketDir = 108;

// statx: glibc has had it in one version since 2.28. stat and lstat got a new one in 2.33, which the library may not
// need.
struct Kind {
  bool found = false;
  mode_t mode = 0;
  uid_t owner = 0;
};
Kind look(const std::string& path, int flags) {
  struct statx status {};
  if (::statx(AT_FDCWD, path.c_str(), flags, STATX_BASIC_STATS, &status) != 0) return {};
  return {true, status.stx_mode, status.stx_uid};
}

// Any user can make /tmp/gpumux-UID first. A directory that another user owns, or can write to, would let that user
// pose as the daemon.
base::Status check_owned(const std::string& dir) {
  const Kind kind = look(dir, AT_SYMLINK_NOFOLLOW);
  if (!kind.found) return base::fail_errno(errno, "cannot look at " + dir);
  if (!S_ISDIR(kind.mode) || kind.owner != ::geteuid() || (kind.mode & 0077) != 0) {
    return base::fail(base::Code::kDenied, dir + " is not a directory that only user " + std::to_string(::geteuid()) +
                                               " can use; remove it, or name another in GPUMUX_RUNTIME_DIR");
  }
  return {};
}

bool has_socket(const std::string& dir) {
  const Kind kind = look(dir + "/" + kTenantSocket, 0);
  return kind.found && S_ISSOCK(kind.mode);
}

}  // namespace

std::string user_tmp_dir() { return "/tmp/gpumux-" + std::to_string(::geteuid()); }

std::string user_runtime_dir() {
  const char* xdg = ::secure_getenv("XDG_RUNTIME_DIR");
  if (xdg != nullptr && xdg[0] == '/') {
    const Kind kind = look(xdg, AT_SYMLINK_NOFOLLOW);
    if (kind.found && S_ISDIR(kind.mode) && kind.owner == ::geteuid()) return std::string(xdg) + "/gpumux";
  }
  return user_tmp_dir();
}

base::Status leave_link(const std::string& folder, const std::string& runtime_dir) {
  GPUMUX_TRY(check_owned(folder));
  const std::string path = folder + "/" + kElsewhere;
  ::unlink(path.c_str());
  if (::symlink(runtime_dir.c_str(), path.c_str()) != 0) return base::fail_errno(errno, "cannot make the link " + path);
  return {};
}

std::string linked_dir(const std::string& folder) {
  char target[kMaxSocketDir];
  if (!check_owned(folder)) return {};
  const ssize_t size = ::readlink((folder + "/" + kElsewhere).c_str(), target, sizeof target);
  if (size <= 0 || size == static_cast<ssize_t>(sizeof target)) return {};
  std::string dir(target, static_cast<std::size_t>(size));
  return dir == kSystemRuntimeDir || check_owned(dir) ? dir : std::string();
}

base::Result<std::string> find_runtime_dir() {
  if (const char* named = ::secure_getenv("GPUMUX_RUNTIME_DIR"); named != nullptr && named[0] != '\0')
    return std::string(named);
  if (has_socket(kSystemRuntimeDir)) return std::string(kSystemRuntimeDir);
  const std::string dir = user_runtime_dir();
  if (look(dir, AT_SYMLINK_NOFOLLOW).found) GPUMUX_TRY(check_owned(dir));
  for (const std::string& place : {dir, user_tmp_dir()}) {
    if (check_owned(place) && has_socket(place)) return place;
    const std::string other = linked_dir(place);
    if (!other.empty() && has_socket(other)) return other;
  }
  return dir;
}

bool is_out_of_sight() {
  const char* named = ::secure_getenv("GPUMUX_RUNTIME_DIR");
  return named != nullptr && named[0] != '\0' && !look(named, 0).found;
}

bool is_containers_view(const std::string& runtime_dir) {
  return has_socket(runtime_dir) && !look(runtime_dir + "/" + kApiSocket, AT_SYMLINK_NOFOLLOW).found;
}

base::Status make_own_dir(const std::string& dir, unsigned mode) {
  if (::mkdir(dir.c_str(), mode) != 0 && errno != EEXIST) return base::fail_errno(errno, "cannot create " + dir);
  const FileDescriptor fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd && errno == ENOTDIR) return base::fail(base::Code::kExists, dir + " is not a directory: remove it");
  if (!fd) return base::fail_errno(errno, "cannot open the directory " + dir);
  struct statx status {};
  if (::statx(fd.get(), "", AT_EMPTY_PATH, STATX_BASIC_STATS, &status) != 0)
    return base::fail_errno(errno, "cannot look at " + dir);
  if (status.stx_uid != ::geteuid()) {
    return base::fail(base::Code::kDenied, dir + " belongs to user " + std::to_string(status.stx_uid) +
                                               ", and not to the daemon's user: remove it");
  }
  // Independent of the umask and of the old mode.
  if (::fchmod(fd.get(), mode) != 0) return base::fail_errno(errno, "cannot set the mode of " + dir);
  return {};
}

std::string api_socket(const std::string& runtime_dir) {
  const std::string roots = runtime_dir + "/" + kRootApiSocket;
  return ::geteuid() == 0 && look(roots, AT_SYMLINK_NOFOLLOW).found ? roots : runtime_dir + "/" + kApiSocket;
}

base::Result<std::string> make_user_runtime_dir() {
  if (const char* named = ::secure_getenv("GPUMUX_RUNTIME_DIR"); named != nullptr && named[0] != '\0') {
    if (::mkdir(named, 0700) != 0 && errno != EEXIST)
      return base::fail_errno(errno, std::string("cannot create ") + named);
    return std::string(named);
  }
  const std::string dir = user_runtime_dir();
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) return base::fail_errno(errno, "cannot create " + dir);
  GPUMUX_TRY(check_owned(dir));
  return dir;
}

}  // namespace gpumux::os
