// SPDX-License-Identifier: Apache-2.0
#include "daemon/client_stream.h"

#include <sys/socket.h>

#include <array>
#include <span>

#include "os/unix_socket.h"

namespace gpumux::daemon {

namespace asio = boost::asio;

ClientStream::ClientStream(asio::io_context& io, os::FileDescriptor socket, Closer& closer, const Account& account)
    : socket_(io, asio::local::stream_protocol(), socket.release()), closer_(closer), account_(account) {}

void drop_stream(os::FileDescriptor socket, Closer& closer, const Account& account) {
  // Nothing more comes from here on. A stream holds no descriptor without a byte.
  ::shutdown(socket.get(), SHUT_RDWR);
  char byte;
  if (::recv(socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0) closer.close(std::move(socket), account);
}

void ClientStream::close() {
  error_code error;
  if (socket_.is_open()) drop_stream(os::FileDescriptor(socket_.release(error)), closer_, account_);
}

ClientStream::error_code ClientStream::read(asio::mutable_buffer buffer, std::size_t& bytes) {
  if (closer_.unclosed(account_) >= kMaxUnclosed) return asio::error::no_descriptors;
  std::array<int, os::kMaxDescriptors> descriptors;
  const auto arrived = os::receive_all(socket_.native_handle(),
                                       std::span(static_cast<std::byte*>(buffer.data()), buffer.size()), descriptors);
  if (!arrived) return error_code(arrived.error().system_errno, boost::system::system_category());
  for (std::size_t i = 0; i < arrived->descriptors; ++i) closer_.close(os::FileDescriptor(descriptors[i]), account_);
  if (arrived->descriptors > 0) return asio::error::invalid_argument;
  bytes = arrived->bytes;
  if (bytes == 0 && buffer.size() > 0) return asio::error::eof;
  return {};
}

}  // namespace gpumux::daemon
