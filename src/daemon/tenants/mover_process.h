// SPDX-License-Identifier: Apache-2.0
// The process of a mover that this daemon has started or taken over.
#pragma once

#include <sys/types.h>

#include "os/file_descriptor.h"

namespace gpumux::daemon {

struct MoverProcess {
  pid_t pid = 0;             // 0: none
  os::FileDescriptor pidfd;  // if the kernel has such

  bool has_ended() const;
  void kill() const;
  void end() const;  // returns when it has ended, or after five seconds
};

}  // namespace gpumux::daemon
