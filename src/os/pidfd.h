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

// How the process at the other end of a unix socket is found.
enum class PeerLookup {
  kBySocket,  // the kernel says which (SO_PEERPIDFD, Linux 6.5); kByNumber where it cannot
  kByNumber,  // by its process id: another process, if the peer has ended and its number was used again
};

struct PeerProcess {
  FileDescriptor pidfd;
  bool is_certain = false;  // it is the process that connected
};

// The process that connected a unix socket; `pid`: the number from SO_PEERCRED. kNotFound: it is gone.
base::Result<PeerProcess> peer_process(int socket, pid_t pid, PeerLookup lookup = PeerLookup::kBySocket);

// Whether the process has ended.
bool has_ended(int pidfd);

// SIGKILL to exactly this process.
base::Status kill_process(int pidfd);

}  // namespace gpumux::os
