// SPDX-License-Identifier: Apache-2.0
// Processes that count as users of a private daemon although they use no GPU yet: programs that `gpumux run` has
// started. A shell under `gpumux run` may take an hour until it starts the first one that does.
//
// Known by pidfd, so that a process that ended, however it did, holds nothing, and another that got its number neither.
// Owned by the loop's thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>

#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

// One descriptor each. More programs than this of one user, all started by hand, is a runaway script.
inline constexpr std::size_t kMaxHolds = 4096;

class Holds {
 public:
  // Until process `pid` ends. kUnsupported: it cannot be watched (it is in another container, or the kernel has no
  // pidfd).
  base::Status add(pid_t pid);

  // Whether one of them still runs; forgets those that do not.
  bool any();

 private:
  std::map<pid_t, os::FileDescriptor> processes_;
};

}  // namespace gpumux::daemon
