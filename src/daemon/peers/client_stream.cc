// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/client_stream.h"

#include <sys/socket.h>

#include <cerrno>
#include <span>

#include "os/unix_socket.h"

namespace gpumux::daemon {

namespace asio = boost::asio;

ClientStream::ClientStream(asio::io_context& io, ForeignConnection socket, Closer& closer)
    : socket_(io), closer_(closer) {
  socket_.assign(asio::local::stream_protocol(), socket.get());  // may throw: it is the caller's until then
  socket.release();
}

void ClientStream::close() {
  error_code error;
  if (socket_.is_open()) closer_.drop(os::FileDescriptor(socket_.release(error)));
}

ClientStream::error_code ClientStream::read(asio::mutable_buffer buffer, std::size_t& bytes) {
  const std::span<std::byte> room(static_cast<std::byte*>(buffer.data()), buffer.size());
  const auto next = os::peek(socket_.native_handle(), room);
  if (!next) return error_code(next.error().system_errno, boost::system::system_category());
  if (next->has_descriptors) return asio::error::invalid_argument;
  // Not more than was looked at: descriptors may come along with the bytes behind.
  const ssize_t got = ::recv(socket_.native_handle(), room.data(), next->bytes, MSG_DONTWAIT);
  if (got < 0) return error_code(errno, boost::system::system_category());
  bytes = static_cast<std::size_t>(got);
  if (bytes == 0 && buffer.size() > 0) return asio::error::eof;
  return {};
}

}  // namespace gpumux::daemon
