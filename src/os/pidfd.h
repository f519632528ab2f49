// SPDX-License-Identifier: Apache-2.0
// A descriptor that stands for a process: readable once the process has ended, and never meaning another process that
// got the same number later.
#pragma once

#include <sys/types.h>

#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::os {

// kNotFound: there is no such process (any more, or in this pid namespace). kUnsupported: Linux before 5.3.
base::Result<FileDescriptor> open_pidfd(pid_t pid);

// The process that connected a unix socket. Where the kernel can say (SO_PEERPIDFD, Linux 6.5), it is that process for
// certain. Elsewhere it is opened by number, `pid` being what SO_PEERCRED said, which is right unless the peer died and
// its number was used again since it connected: call this right after accept, and look whether the socket is still
// connected afterwards.
base::Result<FileDescriptor> peer_pidfd(int socket, pid_t pid);

// Whether the process has ended.
bool has_ended(int pidfd);

// SIGKILL to exactly this process.
base::Status kill_process(int pidfd);

}  // namespace gpumux::os
