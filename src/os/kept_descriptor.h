// SPDX-License-Identifier: Apache-2.0
// A descriptor that the library keeps in a process that is not ours. The program may close its number (closefrom, a
// loop over all numbers, dup2) and open it again for a file of its own. Then the library must neither read nor write
// nor close that file.
//
// The rule: a kept descriptor has a high number, which programs seldom open again, because the kernel gives the lowest
// free one. And its number is looked at (fstat) before each use. A number that stands for another file, or for none, is
// lost. Its owner opens it anew or does without, and says so.
//
// Two limits. The program may close the number between the look and the use. And some files cannot be told apart: all
// eventfds and epolls have one inode, and so have all openings of a device. So the library keeps no eventfd or epoll.
#pragma once

#include <sys/types.h>

#include <utility>

#include "os/file_descriptor.h"

namespace gpumux::os {

class KeptDescriptor {
 public:
  KeptDescriptor() = default;
  // Takes ownership, and moves it to a high number if there is one.
  explicit KeptDescriptor(FileDescriptor fd);
  // The same for descriptors that may be hundreds, and leave the program's own numbers to it: above its limit
  // (RLIMIT_NOFILE), if the hard limit allows that. None: it does not. The program's limit is higher for a moment.
  static KeptDescriptor above_the_limit(FileDescriptor fd);
  KeptDescriptor(KeptDescriptor&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), device_(other.device_), inode_(other.inode_) {}
  KeptDescriptor& operator=(KeptDescriptor&& other) noexcept;
  KeptDescriptor(const KeptDescriptor&) = delete;
  KeptDescriptor& operator=(const KeptDescriptor&) = delete;
  ~KeptDescriptor() { reset(); }

  // The number, for one use right now. Negative: there is none, or it is lost. Keeps errno.
  int get() const;
  explicit operator bool() const { return get() >= 0; }
  // It was kept, and its number stands for something else now.
  bool is_lost() const { return fd_ >= 0 && get() < 0; }
  // Whether another number stands for the same file. Keeps errno.
  bool is_same(int fd) const;
  // Gives ownership away. None if it is lost.
  FileDescriptor release();
  // Whether this is its number, lost or not.
  bool has_number(int number) const { return fd_ == number; }
  // It is known to be lost. Nothing is closed.
  void forget() { fd_ = -1; }
  // Closes it, unless it is lost.
  void reset() { static_cast<void>(release()); }

 private:
  bool look(int fd);

  int fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace gpumux::os
