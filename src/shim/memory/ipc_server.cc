// SPDX-License-Identifier: Apache-2.0
#include "shim/memory/ipc_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "os/unix_socket.h"
#include "shim/process/log.h"

namespace gpumux::shim {
namespace {

// Both ends are threads with nothing else to do; only a stopped process takes longer than this.
constexpr int kPatienceMs = 10'000;
// How often it is looked whether the program has closed the socket. A guess.
constexpr int kLookMs = 1'000;
// More than a GPU has chunks.
constexpr std::uint64_t kMostPieces = 65'536;
// A guess: more processes than open the memory of one at the same moment.
constexpr int kBacklog = 64;

// On the socket, both ways in the machine's byte order.
struct Request {
  std::uint64_t magic = IpcHandle::kMagic;
  std::uint64_t allocation = 0;
};
struct Piece {
  std::uint64_t count = 0;  // in all; 0: there is no such allocation
  std::uint64_t bytes = 0;
};

sockaddr_un address_of(const std::array<std::uint8_t, 16>& name) {
  static constexpr char kPrefix[] = "gpumux-ipc-";
  static constexpr char kDigits[] = "0123456789abcdef";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  char* at = address.sun_path + 1;  // a leading zero: abstract
  std::memcpy(at, kPrefix, sizeof kPrefix - 1);
  at += sizeof kPrefix - 1;
  for (const std::uint8_t byte : name) {
    *at++ = kDigits[byte >> 4];
    *at++ = kDigits[byte & 15];
  }
  return address;
}

bool wait_for(int socket, short events) {
  pollfd waiting{socket, events, 0};
  int result;
  do {
    result = ::poll(&waiting, 1, kPatienceMs);
  } while (result < 0 && errno == EINTR);
  return result > 0;
}

template <class Message>
bool send(int socket, const Message& message, int fd = -1) {
  for (;;) {
    const auto sent = os::send_message(socket, std::as_bytes(std::span(&message, 1)), fd);
    if (sent) return true;
    if (sent.error().system_errno != EAGAIN || !wait_for(socket, POLLOUT)) return false;
  }
}

template <class Message>
base::Result<os::FileDescriptor> receive(int socket, Message* message) {
  while (wait_for(socket, POLLIN)) {
    auto received = os::receive_message(socket, std::as_writable_bytes(std::span(message, 1)));
    if (!received && received.error().system_errno == EAGAIN) continue;
    if (!received) return tl::unexpected(received.error());
    if (received->bytes != sizeof *message) break;
    return std::move(received->fd);
  }
  return base::fail(base::Code::kUnavailable, "the process that shares the memory does not answer");
}

}  // namespace

base::Status IpcServer::start_locked() {
  if (is_listening_) return {};
  if (::getrandom(name_.data(), sizeof name_, 0) != static_cast<ssize_t>(sizeof name_))
    return base::fail_errno(errno, "cannot get random bytes");
  auto started = listen();
  if (started) started = thread_.start<&IpcServer::run>(this, "cannot create the thread that shares memory");
  if (!started) listening_.reset();
  is_listening_ = started.has_value();
  return started;
}

base::Status IpcServer::listen() {
  os::FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = address_of(name_);
  if (!socket || ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), kBacklog) != 0)
    return base::fail_errno(errno, "cannot listen for processes that open shared memory");
  listening_ = os::KeptDescriptor(std::move(socket));
  return {};
}

IpcHandle IpcServer::handle_of(std::uint64_t allocation, std::uint64_t offset, std::uint64_t bytes) const {
  IpcHandle handle;
  handle.magic = IpcHandle::kMagic;
  handle.name = name_;
  handle.allocation = allocation;
  handle.offset = offset;
  handle.bytes = bytes;
  return handle;
}

base::Status IpcServer::serve(std::uint64_t allocation, std::vector<pager::ExportedPiece> pieces, std::uint64_t offset,
                              std::uint64_t bytes, IpcHandle* handle) {
  std::vector<Served> owned;
  for (const pager::ExportedPiece& piece : pieces)
    owned.push_back({os::KeptDescriptor(os::FileDescriptor(piece.fd)), piece.bytes});
  const base::Locked locked(mutex_);
  if (const auto started = start_locked(); !started) return started;
  served_[allocation] = std::move(owned);
  *handle = handle_of(allocation, offset, bytes);
  return {};
}

bool IpcServer::find(std::uint64_t allocation, std::uint64_t offset, std::uint64_t bytes, IpcHandle* handle) {
  const base::Locked locked(mutex_);
  if (served_.find(allocation) == served_.end()) return false;
  *handle = handle_of(allocation, offset, bytes);
  return true;
}

void IpcServer::forget(std::uint64_t allocation) {
  const base::Locked locked(mutex_);
  served_.erase(allocation);
}

// No thread holds the lock there.
void IpcServer::close_after_fork() GPUMUX_NO_THREAD_SAFETY_ANALYSIS {
  listening_.reset();
  served_.clear();
}

void IpcServer::run() {
  pthread_setname_np(pthread_self(), "gpumux-ipc");
  for (;;) {
    // The name is free again, and handles that were given out go on to lead here.
    if (listening_.is_lost()) {
      const bool is_anew = listen().has_value();
      if (is_anew)
        write_log(wire::Severity::kWarning, "the program has closed what shares memory, which was opened anew");
    }
    pollfd waiting{listening_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, kLookMs) <= 0) continue;
    // The poll may have waited for what the number stood for before.
    const int listening = listening_.get();
    const os::FileDescriptor peer = listening >= 0 ? os::accept_connection(listening) : os::FileDescriptor();
    if (peer) answer(peer);
  }
}

void IpcServer::answer(const os::FileDescriptor& peer) {
  const auto who = os::peer_credentials(peer.get());
  if (!who || (who->uid != ::geteuid() && who->uid != 0)) return;
  Request request;
  if (!receive(peer.get(), &request) || request.magic != IpcHandle::kMagic) return;
  // Copies of the descriptors: the allocation may be freed while a slow peer reads.
  std::vector<IpcPiece> pieces;
  {
    const base::Locked locked(mutex_);
    if (const auto found = served_.find(request.allocation); found != served_.end()) {
      for (const Served& piece : found->second)
        pieces.push_back({os::FileDescriptor(::fcntl(piece.fd.get(), F_DUPFD_CLOEXEC, 0)), piece.bytes});
    }
  }
  if (pieces.empty() || !std::all_of(pieces.begin(), pieces.end(), [](const auto& piece) { return bool(piece.fd); })) {
    send(peer.get(), Piece{});
    return;
  }
  for (const IpcPiece& piece : pieces) {
    if (!send(peer.get(), Piece{.count = pieces.size(), .bytes = piece.bytes}, piece.fd.get())) return;
  }
}

base::Result<std::vector<IpcPiece>> IpcServer::ask(const IpcHandle& handle) {
  const os::FileDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = address_of(handle.name);
  if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return base::fail_errno(errno, "the process that shares the memory is not there");
  // We take memory only from our own user's processes and root's, and as root from any.
  const auto who = os::peer_credentials(socket.get());
  if (!who || (who->uid != ::geteuid() && who->uid != 0 && ::geteuid() != 0))
    return base::fail(base::Code::kDenied, "the process that shares the memory is another user's");
  if (!send(socket.get(), Request{.allocation = handle.allocation}))
    return base::fail(base::Code::kUnavailable, "the process that shares the memory does not listen");
  std::vector<IpcPiece> pieces;
  for (std::uint64_t count = 1; pieces.size() < count;) {
    Piece piece;
    auto fd = receive(socket.get(), &piece);
    if (!fd) return tl::unexpected(fd.error());
    if (piece.count == 0 || piece.count > kMostPieces || !*fd)
      return base::fail(base::Code::kNotFound, "the memory is no longer shared");
    count = piece.count;
    pieces.push_back({std::move(*fd), piece.bytes});
  }
  return pieces;
}

}  // namespace gpumux::shim
