// SPDX-License-Identifier: Apache-2.0
// Unix sockets with whole messages (SOCK_SEQPACKET): the kernel keeps message boundaries, so half a message cannot
// arrive.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"
#include "os/file_descriptor.h"

namespace gpumux::os {

// The process at the other end, as the kernel knows it from the moment of connecting.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

struct Received {
  std::size_t bytes = 0;  // 0: the other side has closed
  FileDescriptor fd;      // at most one descriptor travels with a message
};

// The address of a socket. "@NAME": an abstract one, which is no file.
struct UnixAddress {
  sockaddr_un socket{};
  socklen_t length = 0;
  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&socket); }
};
base::Result<UnixAddress> unix_address(const std::string& path);

// Non-blocking, close-on-exec. Errors: kInvalid for a path over 107 bytes, else by errno.
base::Result<FileDescriptor> connect_seqpacket(const std::string& path);

// Binds and listens with `mode`. Removes a file or socket of that name; moves a directory with content out of the way.
// REQUIRES: the caller holds the lock of the folder, so that no process of ours listens there.
base::Result<FileDescriptor> listen_seqpacket(const std::string& path, mode_t mode, int backlog);

// The same, without listening: a process that gets the socket does that (listen(2)), and is then the one that
// peer_credentials names to those who connect. Until it does, connecting fails.
base::Result<FileDescriptor> bind_seqpacket(const std::string& path, mode_t mode);

// As listen_seqpacket, for a stream of bytes (the HTTP API).
base::Result<FileDescriptor> listen_stream(const std::string& path, mode_t mode, int backlog);

// The next connection, non-blocking and close-on-exec; none if there is none, or it cannot be taken. If descriptors or
// memory are short, the connection stays, and poll() would name it again at once: this returns kRefusedPause later. For
// threads that may stand still so long.
inline constexpr std::chrono::milliseconds kRefusedPause{20};
FileDescriptor accept_connection(int listener);

// One message, with `fd` (negative: none). Never raises SIGPIPE. kUnavailable: the buffer is full or the peer is gone
// (see errno).
base::Status send_message(int socket, std::span<const std::byte> message, int fd = -1);

// One message. A message longer than the buffer is kProtocol; no message waiting is kUnavailable with EAGAIN.
// Any descriptors beyond the first are closed.
base::Result<Received> receive_message(int socket, std::span<std::byte> buffer);

// As many descriptors as the kernel lets travel with one message (SCM_MAX_FD).
inline constexpr std::size_t kMaxDescriptors = 253;

struct Arrived {
  std::size_t bytes = 0;        // 0: the other side has closed
  std::size_t descriptors = 0;  // that are the caller's now
  bool was_cut = false;         // the message was longer than the buffer
};

// One message of a peer that is not trusted, or some bytes of a stream, with every descriptor that came along. None is
// closed here: closing a stranger's descriptor may take as long as the stranger likes.
base::Result<Arrived> receive_all(int socket, std::span<std::byte> buffer, std::span<int, kMaxDescriptors> descriptors);

struct Next {
  std::size_t bytes = 0;         // of it, as many as the buffer holds
  bool has_descriptors = false;  // some came along
};

// Looks at the next message, or at some bytes of a stream, and leaves it where it is. No descriptor is made of those
// that came along, and none is closed. No bytes: an empty message, or the other side has closed.
base::Result<Next> peek(int socket, std::span<std::byte> buffer);

// Whether something lies in a connection that was shut down, an empty message with descriptors included.
bool has_unread(int socket);

// Has the kernel refuse descriptors that are sent to this socket, or to a connection of this listening socket. False:
// the kernel cannot (Linux before 6.16).
bool refuse_descriptors(int socket);

base::Result<PeerCredentials> peer_credentials(int socket);

}  // namespace gpumux::os
