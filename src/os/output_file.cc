// SPDX-License-Identifier: Apache-2.0
#include "os/output_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <deque>
#include <string_view>

#include "base/split.h"

namespace gpumux::os {
namespace {

using base::Code;
using base::Result;
using base::Status;

constexpr int kMostLinks = 40;  // as the kernel
// Another process may make and remove the file all the time.
constexpr int kMostTries = 100;

bool is_trusted(uid_t owner) { return owner == 0 || owner == ::geteuid(); }

int flags_of(Write write) {
  return O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (write == Write::kAtItsEnd ? O_APPEND : 0);
}

class Walk {
 public:
  Walk(const std::string& path, Write write, mode_t mode) : path_(path), write_(write), mode_(mode) {}

  Result<FileDescriptor> open() {
    GPUMUX_TRY(enter(path_));
    for (int tries = 0; tries < kMostTries;) {
      if (rest_.empty()) return base::fail(Code::kInvalid, "cannot write " + path_ + ": it is a directory");
      const std::string name = std::move(rest_.front());
      rest_.pop_front();
      const bool is_last = rest_.empty();
      FileDescriptor entry(::openat(at_.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
      if (!entry && errno == ENOENT && is_last) {
        FileDescriptor made(::openat(at_.get(), name.c_str(), flags_of(write_) | O_CREAT | O_EXCL | O_NOFOLLOW, mode_));
        if (made) return waiting(std::move(made));
        if (errno != EEXIST) return failed(errno);
        rest_.push_front(name);
        ++tries;
        continue;
      }
      if (!entry) return failed(errno);
      struct stat status {};
      if (::fstat(entry.get(), &status) != 0) return failed(errno);
      if (!S_ISLNK(status.st_mode)) {
        if (is_last) return reopen(entry, status);
        at_ = std::move(entry);
        continue;
      }
      if (!is_trusted(status.st_uid)) return refused("'" + name + "' is a link", status.st_uid);
      if (++links_ > kMostLinks) return failed(ELOOP);
      // A link of /proc, as /proc/self/fd/1, leads to what is open, and its text need not be a path.
      struct statfs system {};
      if (::fstatfs(entry.get(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC) {
        FileDescriptor opened(::openat(at_.get(), name.c_str(), is_last ? flags_of(write_) : O_PATH | O_CLOEXEC));
        if (!opened) return failed(errno);
        if (is_last) return waiting(std::move(opened));
        at_ = std::move(opened);
        continue;
      }
      char text[PATH_MAX];
      const ssize_t length = ::readlinkat(entry.get(), "", text, sizeof text);
      if (length < 0) return failed(errno);
      GPUMUX_TRY(enter(std::string_view(text, static_cast<std::size_t>(length))));
    }
    return failed(EBUSY);
  }

 private:
  // Goes on with this path, and then with the rest of the one before.
  Status enter(std::string_view path) {
    if (path.starts_with('/') || !at_) {
      at_ = FileDescriptor(::open(path.starts_with('/') ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
      if (!at_) return failed(errno);
    }
    if (path.empty()) return failed(ENOENT);
    std::deque<std::string> names;
    for (const std::string_view name : base::split(path, '/')) {
      if (!name.empty() && name != ".") names.emplace_back(name);
    }
    // "name/" and "name/." are directories.
    if (rest_.empty() && !names.empty() && (path.ends_with('/') || path.ends_with("/."))) names.emplace_back(".");
    rest_.insert(rest_.begin(), names.begin(), names.end());
    return {};
  }

  // The same file, whatever its name leads to by now.
  Result<FileDescriptor> reopen(const FileDescriptor& entry, const struct stat& status) const {
    const bool is_regular = S_ISREG(status.st_mode);
    if (is_regular ? status.st_uid != ::geteuid() : !is_trusted(status.st_uid)) return refused("it is", status.st_uid);
    if (is_regular && status.st_nlink != 1)
      return base::fail(Code::kDenied, "cannot write " + path_ +
                                           ": the file has a second name (a hard link), which another user may have "
                                           "made; remove it or name another file");
    FileDescriptor opened(::open(("/proc/self/fd/" + std::to_string(entry.get())).c_str(), flags_of(write_)));
    if (!opened && errno == ENXIO)
      return base::fail(Code::kUnavailable,
                        "cannot write " + path_ + ": it is a pipe without a reader; start its reader first");
    if (!opened) return failed(errno);
    if (is_regular && write_ == Write::kAnew && ::ftruncate(opened.get(), 0) != 0) return failed(errno);
    return waiting(std::move(opened));
  }

  // Only to open it does not wait: to write to it does.
  Result<FileDescriptor> waiting(FileDescriptor opened) const {
    const int flags = ::fcntl(opened.get(), F_GETFL);
    if (flags < 0 || ::fcntl(opened.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) return failed(errno);
    return opened;
  }

  tl::unexpected<base::Error> failed(int error) const { return base::fail_errno(error, "cannot write " + path_); }
  tl::unexpected<base::Error> refused(const std::string& what, uid_t owner) const {
    return base::fail(Code::kDenied, "cannot write " + path_ + ": " + what + " of user " + std::to_string(owner) +
                                         "; remove it or name another file");
  }

  const std::string path_;
  const Write write_;
  const mode_t mode_;
  FileDescriptor at_;             // the folder that the walk has come to
  std::deque<std::string> rest_;  // the names from there on
  int links_ = 0;
};

}  // namespace

Result<FileDescriptor> open_output(const std::string& path, Write write, mode_t mode) {
  return Walk(path, write, mode).open();
}

}  // namespace gpumux::os
