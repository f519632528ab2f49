// SPDX-License-Identifier: Apache-2.0
#include "runners/program/job_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

namespace gpumux::runners {
namespace {

using base::Code;
using base::Result;
using base::Status;
using wire::LogOpening;

// A log that the daemon keeps is for its job's user alone.
constexpr mode_t kOurFolderMode = 0700;
constexpr mode_t kOurFileMode = 0600;
constexpr mode_t kUsersFileMode = 0666;  // less the user's umask

// As many as the kernel follows (path_resolution(7)).
constexpr int kMaxLinks = 40;

// The place of the log, which may not exist yet: a name in a folder.
struct FolderEntry {
  os::FileDescriptor folder;
  std::string name;
};

// A link of root's or of the user's own is its owner's wish; another user's link is a trap. (The kernel's
// protected_symlinks does the same, where it is on, in sticky folders.)
Status check_link(const struct stat& link, const std::string& path) {
  if (link.st_uid == ::geteuid() || link.st_uid == 0) return {};
  return base::fail(Code::kDenied, "the log " + path + " is, or is behind, a symbolic link of user " +
                                       std::to_string(link.st_uid) + "'s: name another file, or remove the link");
}

Result<std::string> target_of(int link, const std::string& path) {
  std::string target(PATH_MAX, '\0');
  const ssize_t size = ::readlinkat(link, "", target.data(), target.size());
  if (size <= 0) return base::fail_errno(size < 0 ? errno : ENOENT, "cannot follow a link to the log " + path);
  target.resize(static_cast<std::size_t>(size));
  return target;
}

// Goes from folder to folder by descriptors, so that what has been looked at is what is gone through. `makes_folders`:
// those that are missing, for their owner alone.
Result<FolderEntry> find_place(const std::string& path, bool makes_folders) {
  const auto start = [](const std::string& from) {
    return os::FileDescriptor(::open(from[0] == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  };
  std::string rest = path;
  os::FileDescriptor folder = start(rest);
  for (int links = 0; links <= kMaxLinks;) {
    rest.erase(0, rest.find_first_not_of('/'));
    const std::size_t slash = rest.find('/');
    const std::string name = rest.substr(0, slash);
    if (name.empty() || !folder) break;
    const bool is_last = slash == std::string::npos;
    os::FileDescriptor next(::openat(folder.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!next && errno == ENOENT && is_last) return FolderEntry{std::move(folder), name};
    if (!next && errno == ENOENT && makes_folders) {
      if (::mkdirat(folder.get(), name.c_str(), kOurFolderMode) != 0 && errno != EEXIST)
        return base::fail_errno(
            errno, "cannot create the folder " + name + " for the log " + path + " (--output names another file)");
      next = os::FileDescriptor(::openat(folder.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    }
    struct stat status {};
    if (!next || ::fstat(next.get(), &status) != 0) return base::fail_errno(errno, "cannot open the log " + path);
    if (S_ISLNK(status.st_mode)) {
      if (is_last && makes_folders)
        return base::fail(Code::kDenied, "the log " + path + " is a symbolic link: remove it");
      GPUMUX_TRY(check_link(status, path));
      const auto target = target_of(next.get(), path);
      if (!target) return tl::unexpected(target.error());
      if ((*target)[0] == '/') folder = start(*target);
      rest = is_last ? *target : *target + rest.substr(slash);
      ++links;
      continue;
    }
    if (is_last) return FolderEntry{std::move(folder), name};
    if (!S_ISDIR(status.st_mode)) return base::fail_errno(ENOTDIR, "cannot open the log " + path);
    folder = std::move(next);
    rest.erase(0, slash);
  }
  return base::fail_errno(rest.empty() ? EISDIR : ELOOP, "cannot open the log " + path);
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
  const auto place = find_place(path, ours);
  if (!place) return tl::unexpected(place.error());
  // Non-blocking, for a FIFO without a reader would keep the job waiting; and cut only after it has been looked at.
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW;
  os::FileDescriptor file(
      ::openat(place->folder.get(), place->name.c_str(), flags, ours ? kOurFileMode : kUsersFileMode));
  if (!file) {
    const int why = errno;
    if (why == ELOOP) return base::fail(Code::kDenied, "the log " + path + " is a symbolic link: remove it");
    if (why == ENXIO)
      return base::fail_errno(why, "the log " + path + " is a FIFO without a reader: start its reader first");
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

}  // namespace gpumux::runners
