// SPDX-License-Identifier: Apache-2.0
#include "runner/job_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace gpumux::runner {
namespace {

using base::Code;
using base::Result;
using base::Status;
using wire::LogOpening;

constexpr mode_t kOurFolderMode = 0700;
constexpr mode_t kOurFileMode = 0600;
constexpr mode_t kUsersFileMode = 0666;  // less his umask

// Makes every folder of the path that is missing, for its owner alone. A folder that is there stays as it is.
Status make_folders(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string folder = path.substr(0, slash);
    if (::mkdir(folder.c_str(), kOurFolderMode) == 0 || errno == EEXIST) continue;
    const int why = errno;
    // A folder that cannot be made because its parent may not be written to, and is there all the same.
    struct stat status {};
    if (::stat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) continue;
    return base::fail_errno(why, "cannot create the folder " + folder + " for the log");
  }
  return {};
}

// A link of root's or of the user's own says what its owner wants; anybody else's is a trap. (The kernel's
// protected_symlinks does the same, where it is on, in sticky folders.)
Status check_link(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return base::fail_errno(errno, "cannot look at the log " + path);
  if (S_ISLNK(status.st_mode) && status.st_uid != ::geteuid() && status.st_uid != 0) {
    return base::fail(Code::kDenied, "the log " + path + " is a symbolic link of user " +
                                         std::to_string(status.st_uid) + "'s: name another file, or remove it");
  }
  return {};
}

Status check_opened(int fd, const std::string& path, bool ours) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return base::fail_errno(errno, "cannot look at the log " + path);
  if (!ours) return {};
  if (!S_ISREG(status.st_mode)) return base::fail(Code::kDenied, "the log " + path + " is not a regular file");
  if (status.st_uid != ::geteuid() || status.st_nlink != 1) {
    return base::fail(Code::kDenied, "the log " + path + " is there already and is user " +
                                         std::to_string(status.st_uid) + "'s, or has another name too: remove it");
  }
  return {};
}

}  // namespace

Result<os::FileDescriptor> open_job_log(const std::string& path, LogOpening opening) {
  const bool ours = opening == LogOpening::kOurs;
  const bool truncate = opening == LogOpening::kUsersTruncate;
  if (ours) GPUMUX_TRY(make_folders(path));
  // Non-blocking, for a FIFO without a reader would keep the job waiting; and cut only after it has been looked at.
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  os::FileDescriptor file(::open(path.c_str(), flags | O_NOFOLLOW, ours ? kOurFileMode : kUsersFileMode));
  if (!file && errno == ELOOP && !ours) {
    GPUMUX_TRY(check_link(path));
    file = os::FileDescriptor(::open(path.c_str(), flags, kUsersFileMode));
  }
  if (!file) {
    const int why = errno;
    if (why == ELOOP) return base::fail(Code::kDenied, "the log " + path + " is a symbolic link: remove it");
    if (why == ENXIO) return base::fail_errno(why, "the log " + path + " is a FIFO that nobody reads");
    return base::fail_errno(why, "cannot open the log " + path);
  }
  GPUMUX_TRY(check_opened(file.get(), path, ours));
  if (truncate && ::ftruncate(file.get(), 0) != 0 && errno != EINVAL)
    return base::fail_errno(errno, "cannot empty the log " + path);
  const int status_flags = ::fcntl(file.get(), F_GETFL);
  if (status_flags < 0 || ::fcntl(file.get(), F_SETFL, status_flags & ~O_NONBLOCK) != 0)
    return base::fail_errno(errno, "cannot set up the log " + path);
  return file;
}

}  // namespace gpumux::runner
