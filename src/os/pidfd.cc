// SPDX-License-Identifier: Apache-2.0
#include "os/pidfd.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace gpumux::os {

base::Result<FileDescriptor> open_pidfd(pid_t pid) {
  // Numbers below one would mean process groups or no process.
  if (pid < 1) return base::fail(base::Code::kNotFound, "process " + std::to_string(pid) + " cannot be watched");
  FileDescriptor fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) return base::fail_errno(errno, "cannot watch process " + std::to_string(pid));
  return fd;
}

base::Result<PeerProcess> peer_process(int socket, pid_t pid, PeerLookup lookup) {
  if (lookup == PeerLookup::kBySocket) {
    int fd = -1;
    socklen_t size = sizeof fd;
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) return PeerProcess{FileDescriptor(fd), true};
    // A kernel that knows the option and refuses means that the process is gone.
    if (errno != ENOPROTOOPT && errno != EOPNOTSUPP) {
      return base::fail(base::Code::kNotFound, "process " + std::to_string(pid) + " has ended");
    }
  }
  auto pidfd = open_pidfd(pid);
  if (!pidfd) return tl::unexpected(pidfd.error());
  return PeerProcess{std::move(*pidfd), false};
}

bool has_ended(int pidfd) {
  pollfd poller{pidfd, POLLIN, 0};
  return ::poll(&poller, 1, 0) == 1 && (poller.revents & POLLIN) != 0;
}

base::Status kill_process(int pidfd) {
  if (::syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0) != 0) {
    return base::fail_errno(errno, "cannot kill a process");
  }
  return {};
}

}  // namespace gpumux::os
