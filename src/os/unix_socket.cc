// SPDX-License-Identifier: Apache-2.0
#include "os/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

namespace gpumux::os {
namespace {

base::Result<FileDescriptor> make_socket(int type) {
  FileDescriptor socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return base::fail_errno(errno, "cannot create a unix socket");
  return socket;
}

base::Result<FileDescriptor> connect_to(const std::string& path, int type) {
  const auto address = unix_address(path);
  if (!address) return tl::unexpected(address.error());
  auto socket = make_socket(type);
  if (!socket) return socket;
  if (::connect(socket->get(), address->generic(), address->length) != 0) {
    return base::fail_errno(errno, "cannot connect to " + path);
  }
  return socket;
}

// The folder's other users (root of a container that the folder is passed into) may have put anything there.
void clear(const std::string& path) {
  if (::unlink(path.c_str()) == 0 || errno != EISDIR || ::rmdir(path.c_str()) == 0) return;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  const std::string aside = path + ".removed-" + std::to_string(now.tv_sec) + "." + std::to_string(now.tv_nsec);
  ::rename(path.c_str(), aside.c_str());
}

base::Result<FileDescriptor> bind_to(const std::string& path, mode_t mode, int type) {
  const auto address = unix_address(path);
  if (!address) return tl::unexpected(address.error());
  if (path[0] != '@') clear(path);
  auto socket = make_socket(type);
  if (!socket) return socket;
  // fchmod before bind sets the mode that the file is created with, so there is no moment with a wider one.
  ::fchmod(socket->get(), mode);
  const mode_t old_mask = ::umask(0);
  const int bound = ::bind(socket->get(), address->generic(), address->length);
  const int bind_errno = errno;
  ::umask(old_mask);
  if (bound != 0) return base::fail_errno(bind_errno, "cannot bind " + path);
  return socket;
}

base::Result<FileDescriptor> listen_on(const std::string& path, mode_t mode, int backlog, int type) {
  auto socket = bind_to(path, mode, type);
  if (socket && ::listen(socket->get(), backlog) != 0) return base::fail_errno(errno, "cannot listen on " + path);
  return socket;
}

}  // namespace

base::Result<UnixAddress> unix_address(const std::string& path) {
  UnixAddress address;
  address.socket.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.socket.sun_path)
    return base::fail(base::Code::kInvalid, "socket path is empty or longer than 107 bytes: " + path);
  std::memcpy(address.socket.sun_path, path.data(), path.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  if (path[0] == '@') {
    address.socket.sun_path[0] = '\0';
    --address.length;  // such a name has no zero at its end
  }
  return address;
}

base::Result<FileDescriptor> connect_seqpacket(const std::string& path) { return connect_to(path, SOCK_SEQPACKET); }

base::Result<FileDescriptor> listen_seqpacket(const std::string& path, mode_t mode, int backlog) {
  return listen_on(path, mode, backlog, SOCK_SEQPACKET);
}

base::Result<FileDescriptor> bind_seqpacket(const std::string& path, mode_t mode) {
  return bind_to(path, mode, SOCK_SEQPACKET);
}

base::Result<FileDescriptor> listen_stream(const std::string& path, mode_t mode, int backlog) {
  return listen_on(path, mode, backlog, SOCK_STREAM);
}

FileDescriptor accept_connection(int listener) {
  FileDescriptor connection(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const bool is_short = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
  if (!connection && is_short) {
    const timespec pause{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kRefusedPause).count()};
    ::nanosleep(&pause, nullptr);
  }
  return connection;
}

base::Status send_message(int socket, std::span<const std::byte> message, int fd) {
  // The cast drops const only because iovec serves reading and writing alike.
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(item), &fd, sizeof fd);
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return base::fail_errno(errno, "cannot send a message");
  return {};
}

base::Result<Arrived> receive_all(int socket, std::span<std::byte> buffer,
                                  std::span<int, kMaxDescriptors> descriptors) {
  iovec part{buffer.data(), buffer.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  // With less room than there are descriptors, the kernel would close the others within recvmsg.
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t got;
  do {
    got = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return base::fail_errno(errno, "cannot receive a message");
  Arrived arrived{static_cast<std::size_t>(got), 0, (header.msg_flags & MSG_TRUNC) != 0};
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count =
        std::min((item->cmsg_len - CMSG_LEN(0)) / sizeof(int), kMaxDescriptors - arrived.descriptors);
    std::memcpy(&descriptors[arrived.descriptors], CMSG_DATA(item), count * sizeof(int));
    arrived.descriptors += count;
  }
  return arrived;
}

base::Result<Next> peek(int socket, std::span<std::byte> buffer) {
  iovec part{buffer.data(), buffer.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  ssize_t got;
  do {
    got = ::recvmsg(socket, &header, MSG_PEEK | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return base::fail_errno(errno, "cannot look at a message");
  // There is no room for what comes along with it.
  return Next{static_cast<std::size_t>(got), (header.msg_flags & MSG_CTRUNC) != 0};
}

bool has_unread(int socket) {
  int type = 0;
  socklen_t size = sizeof type;
  const bool has_messages = ::getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
  // The sender's credentials come along with each message then, and tell an empty message from the end. A stream has no
  // empty ones, and says the same of its end.
  const int yes = 1;
  if (has_messages) ::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes);
  std::byte byte;
  const auto next = peek(socket, {&byte, 1});
  // A peer that left something unread itself gives an error first, whatever lies behind it (ECONNRESET). A listening
  // socket cannot be looked at, and may have connections waiting.
  if (!next) return next.error().system_errno != EAGAIN;
  return next->bytes > 0 || (has_messages && next->has_descriptors);
}

base::Result<Received> receive_message(int socket, std::span<std::byte> buffer) {
  std::array<int, kMaxDescriptors> descriptors;
  const auto arrived = receive_all(socket, buffer, descriptors);
  if (!arrived) return tl::unexpected(arrived.error());
  Received received;
  received.bytes = arrived->bytes;
  for (std::size_t i = 0; i < arrived->descriptors; ++i) {
    FileDescriptor owned(descriptors[i]);
    if (i == 0) received.fd = std::move(owned);
  }
  if (arrived->was_cut) return base::fail(base::Code::kProtocol, "a message is longer than allowed");
  return received;
}

bool refuse_descriptors(int socket) {
  const int no = 0;
  return ::setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof no) == 0;
}

base::Result<PeerCredentials> peer_credentials(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return base::fail_errno(errno, "cannot read the peer's credentials");
  }
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

}  // namespace gpumux::os
