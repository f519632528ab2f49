// SPDX-License-Identifier: Apache-2.0
#include "os/kept_descriptor.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace gpumux::os {
namespace {

// Below 1024 whatever the limit is: the kernel's table of a process is as long as its highest number, and each fork
// copies it. The last eighth is a guess: few programs have that many files open.
constexpr rlim_t kMostNumbers = 1024;

// Above the limit. An H200's memory is 1,128 chunks of 128 MiB. A fork copies a table of that many numbers in
// microseconds.
constexpr rlim_t kMostAbove = 2048;

int first_high_number() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t numbers = std::min(limit.rlim_cur, kMostNumbers);
  return static_cast<int>(numbers - numbers / 8);
}

// By the system call: glibc's name for it is newer than the library may need.
bool look_at(int fd, struct stat* status) { return ::syscall(SYS_fstat, fd, status) == 0; }

}  // namespace

bool KeptDescriptor::look(int fd) {
  struct stat status {};
  if (fd < 0 || !look_at(fd, &status)) return false;
  device_ = status.st_dev;
  inode_ = status.st_ino;
  return true;
}

KeptDescriptor::KeptDescriptor(FileDescriptor fd) {
  if (!look(fd.get())) return;
  // Without a free high number it stays where it is.
  const int moved = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, first_high_number());
  fd_ = moved >= 0 ? moved : fd.release();
}

// The kernel looks at the limit when it gives a number, and not later.
KeptDescriptor KeptDescriptor::above_the_limit(FileDescriptor fd) {
  KeptDescriptor kept;
  rlimit limit{};
  if (!kept.look(fd.get()) || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kept;
  const rlim_t first = std::min(limit.rlim_cur, kMostNumbers);
  const rlimit raised{std::min(limit.rlim_max, first + kMostAbove), limit.rlim_max};
  const bool raises = raised.rlim_cur > limit.rlim_cur && ::setrlimit(RLIMIT_NOFILE, &raised) == 0;
  kept.fd_ = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, static_cast<int>(first));
  // The program may have set a limit of its own in the meantime.
  rlimit now{};
  if (raises && ::getrlimit(RLIMIT_NOFILE, &now) == 0 && now.rlim_cur == raised.rlim_cur)
    ::setrlimit(RLIMIT_NOFILE, &limit);
  return kept;
}

KeptDescriptor& KeptDescriptor::operator=(KeptDescriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
    device_ = other.device_;
    inode_ = other.inode_;
  }
  return *this;
}

int KeptDescriptor::get() const { return fd_ >= 0 && is_same(fd_) ? fd_ : -1; }

bool KeptDescriptor::is_same(int fd) const {
  const int saved_errno = errno;
  struct stat status {};
  const bool is_same = look_at(fd, &status) && status.st_dev == device_ && status.st_ino == inode_;
  errno = saved_errno;
  return is_same;
}

FileDescriptor KeptDescriptor::release() {
  FileDescriptor released(get());
  fd_ = -1;
  return released;
}

}  // namespace gpumux::os
