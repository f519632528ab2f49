// SPDX-License-Identifier: Apache-2.0
#include "os/file_descriptor.h"

#include <unistd.h>

namespace gpumux::os {

void FileDescriptor::reset() {
  // Linux frees the descriptor even when close reports EINTR; closing again could hit another thread's new descriptor.
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

}  // namespace gpumux::os
