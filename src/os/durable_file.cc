// SPDX-License-Identifier: Apache-2.0
#include "os/durable_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "os/random.h"

namespace gpumux::os {
namespace {

base::Status sync(int fd, const std::string& name) {
  if (::fsync(fd) != 0) return base::fail_errno(errno, "cannot make " + name + " durable");
  return {};
}

// Of the random part of a temporary name.
constexpr std::size_t kSuffixDigits = 16;

// A name for a file that is to get another name when it is whole. No other file ever has it. A pid would not do: two
// processes in different pid namespaces may have the same one.
base::Result<std::string> temporary_name(const std::string& name) {
  auto suffix = random_hex(kSuffixDigits / 2);
  if (!suffix) return tl::unexpected(suffix.error());
  return name + "." + *suffix;
}

}  // namespace

base::Status write_all(int fd, std::string_view content, const std::string& name) {
  while (!content.empty()) {
    const ssize_t wrote = ::write(fd, content.data(), content.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return base::fail_errno(wrote < 0 ? errno : ENOSPC, "cannot write " + name);
    content.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return {};
}

base::Result<FileDescriptor> open_directory(const std::string& path) {
  FileDescriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return base::fail_errno(errno, "cannot open " + path);
  return directory;
}

base::Result<std::vector<std::string>> list_directory(const std::string& path) {
  return list_directory_at(AT_FDCWD, path);
}

base::Result<std::vector<std::string>> list_directory_at(int directory, const std::string& path) {
  FileDescriptor folder(::openat(directory, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(folder ? ::fdopendir(folder.get()) : nullptr, ::closedir);
  if (!listing) return base::fail_errno(errno, "cannot list " + path);
  folder.release();
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  if (errno != 0) return base::fail_errno(errno, "cannot list " + path);
  return names;
}

base::Result<std::string> read_file_at(int directory, const char* name, std::size_t most) {
  const FileDescriptor file(::openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) return base::fail_errno(errno, std::string("cannot open ") + name);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return base::fail_errno(errno, std::string("cannot look at ") + name);
  if (!S_ISREG(status.st_mode)) return base::fail(base::Code::kInvalid, std::string(name) + " is not a regular file");
  if (status.st_size < 0 || static_cast<std::uint64_t>(status.st_size) > most) {
    return base::fail(base::Code::kInvalid, std::string(name) + " has " + std::to_string(status.st_size) +
                                                " bytes, and the most is " + std::to_string(most));
  }
  std::string content(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t at = 0;
  while (at < content.size()) {
    const ssize_t got = ::read(file.get(), content.data() + at, content.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return base::fail_errno(errno, std::string("cannot read ") + name);
    if (got == 0) break;
    at += static_cast<std::size_t>(got);
  }
  content.resize(at);
  return content;
}

base::Result<std::string> read_unsized_at(int directory, const char* name, std::size_t most) {
  const FileDescriptor file(::openat(directory, name, O_RDONLY | O_CLOEXEC));
  if (!file) return base::fail_errno(errno, std::string("cannot open ") + name);
  std::string content;
  char buffer[4096];
  while (content.size() < most) {
    const ssize_t got = ::read(file.get(), buffer, std::min(sizeof buffer, most - content.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    content.append(buffer, static_cast<std::size_t>(got));
  }
  return content;
}

base::Status write_new_file_at(int directory, const char* name, std::string_view content, mode_t mode) {
  const FileDescriptor file(::openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
  if (!file) return base::fail_errno(errno, std::string("cannot create ") + name);
  if (auto written = write_all(file.get(), content, name); !written) {
    ::unlinkat(directory, name, 0);
    return written;
  }
  return {};
}

base::Result<FileDescriptor> claim_file_at(int directory, const char* name, std::string_view content) {
  // Made and locked under a name of its own, then linked. link() fails if another process was first. A process that
  // sees the file sees all of it, locked.
  const auto named = temporary_name(name);
  if (!named) return tl::unexpected(named.error());
  const std::string& temporary = *named;
  FileDescriptor file(::openat(directory, temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return base::fail_errno(errno, "cannot create " + temporary);
  const auto make = [&]() -> base::Status {
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return base::fail_errno(errno, "cannot lock " + temporary);
    GPUMUX_TRY(write_all(file.get(), content, temporary));
    GPUMUX_TRY(sync(file.get(), temporary));
    if (::linkat(directory, temporary.c_str(), directory, name, 0) != 0)
      return base::fail_errno(errno, std::string("cannot make ") + name);
    return {};
  };
  const base::Status made = make();
  ::unlinkat(directory, temporary.c_str(), 0);
  if (!made) return tl::unexpected(made.error());
  // The claim holds from link() on; that it lasts is for a power cut, after which nothing runs anyway.
  GPUMUX_TRY(sync(directory, name));
  return file;
}

base::Result<bool> is_claim_locked(int directory, const char* name) {
  const FileDescriptor file(::openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return base::fail_errno(errno, std::string("cannot open ") + name);
  // A shared lock, so that two processes that look at once do not take each other for the holder.
  if (::flock(file.get(), LOCK_SH | LOCK_NB) == 0) return false;
  if (errno == EWOULDBLOCK) return true;
  return base::fail_errno(errno, std::string("cannot look whether ") + name + " is locked");
}

base::Status replace_file_at(int directory, const char* name, std::string_view content, mode_t mode) {
  const std::string trying = std::string("cannot write ") + name;
  const auto named = temporary_name(name);
  if (!named) return tl::unexpected(named.error());
  const std::string& temporary = *named;
  // Without a name until it is whole and locked: a named file without a lock has lost its writer.
  const FileDescriptor file(::openat(directory, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600));
  if (!file) return base::fail_errno(errno, trying);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return base::fail_errno(errno, trying + ": cannot lock it");
  GPUMUX_TRY(write_all(file.get(), content, name));
  if (::fchmod(file.get(), mode) != 0) return base::fail_errno(errno, trying + ": cannot set its mode");
  GPUMUX_TRY(sync(file.get(), name));
  const std::string unnamed = "/proc/self/fd/" + std::to_string(file.get());
  if (::linkat(AT_FDCWD, unnamed.c_str(), directory, temporary.c_str(), AT_SYMLINK_FOLLOW) != 0)
    return base::fail_errno(errno, trying + ": cannot name it " + temporary);
  if (::renameat(directory, temporary.c_str(), directory, name) != 0) {
    const int error = errno;
    ::unlinkat(directory, temporary.c_str(), 0);
    return base::fail_errno(error, trying);
  }
  return sync(directory, name);
}

std::string_view name_of_abandoned(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || name.size() - dot - 1 != kSuffixDigits) return {};
  const bool is_ours = name.find_first_not_of("0123456789abcdef", dot + 1) == std::string_view::npos;
  return is_ours ? name.substr(0, dot) : std::string_view();
}

void remove_abandoned_at(int directory, std::string_view name) {
  if (name_of_abandoned(name).empty()) return;
  // A name is used once. So a file that had no lock a moment ago has no writer now.
  const std::string file(name);
  const auto locked = is_claim_locked(directory, file.c_str());
  if (locked && !*locked) ::unlinkat(directory, file.c_str(), 0);
}

base::Status ReservedFile::open() {
  auto temporary = temporary_name(name_);
  if (!temporary) return tl::unexpected(temporary.error());
  temporary_ = *std::move(temporary);
  constexpr int kNewFile = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  file_ = FileDescriptor(::openat(directory_, temporary_.c_str(), kNewFile, 0600));
  if (!file_) return base::fail_errno(errno, "cannot create " + temporary_);
  return {};
}

base::Status ReservedFile::reserve(int directory, const char* name, std::size_t bytes) {
  directory_ = directory;
  name_ = name;
  GPUMUX_TRY(open());
  // Written, not only allocated: where blocks are allocated late, this is what takes them.
  return write_all(file_.get(), std::string(bytes, '\0'), temporary_);
}

base::Status ReservedFile::publish(std::string_view content) {
  if (!file_) GPUMUX_TRY(open());
  if (::lseek(file_.get(), 0, SEEK_SET) != 0) return base::fail_errno(errno, "cannot write " + name_);
  GPUMUX_TRY(write_all(file_.get(), content, name_));
  if (::ftruncate(file_.get(), static_cast<off_t>(content.size())) != 0)
    return base::fail_errno(errno, "cannot write " + name_);
  GPUMUX_TRY(sync(file_.get(), name_));
  if (::renameat(directory_, temporary_.c_str(), directory_, name_.c_str()) != 0)
    return base::fail_errno(errno, "cannot make " + name_);
  GPUMUX_TRY(sync(directory_, name_));
  file_.reset();
  return {};
}

std::string boot_id() {
  const FileDescriptor file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char text[64];
  const ssize_t got = file ? ::read(file.get(), text, sizeof text) : 0;
  std::string id(text, got > 0 ? static_cast<std::size_t>(got) : 0);
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

}  // namespace gpumux::os
