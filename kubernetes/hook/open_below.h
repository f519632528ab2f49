// SPDX-License-Identifier: Apache-2.0
// openat2: opens a path below a folder, as the kernel resolves it under rules (RESOLVE_...).
#pragma once

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "os/file_descriptor.h"

namespace gpumux::kubernetes {

// No descriptor: errno says why.
inline os::FileDescriptor open_below(int folder, const char* path, std::uint64_t resolve, int flags, mode_t mode = 0) {
  open_how how{};
  how.flags = static_cast<unsigned>(flags | O_CLOEXEC);
  how.mode = mode;
  how.resolve = resolve;
  // While anything on the machine is renamed or mounted, the kernel cannot tell whether ".." stays inside, and says
  // EAGAIN. The guard ends a worker that never comes through.
  long opened = 0;
  do {
    opened = ::syscall(SYS_openat2, folder, path, &how, sizeof how);
  } while (opened < 0 && (errno == EAGAIN || errno == EINTR));
  return os::FileDescriptor(static_cast<int>(opened));
}

}  // namespace gpumux::kubernetes
