// SPDX-License-Identifier: Apache-2.0
// An API client's connection as a stream for Beast (AsyncReadStream, AsyncWriteStream).
//
// Asio's own stream would read without room for descriptors, and the kernel would then close what came along within
// the loop's read. This one looks first, and fails the read if descriptors came along: a client of the API has no
// reason to send any.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/compose.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "daemon/peers/closer.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

class ClientStream {
 public:
  using Socket = boost::asio::local::stream_protocol::socket;
  using executor_type = boost::asio::any_io_executor;
  using error_code = boost::system::error_code;

  ClientStream(boost::asio::io_context& io, ForeignConnection socket, Closer& closer);
  ~ClientStream() { close(); }
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  executor_type get_executor() { return socket_.get_executor(); }
  bool is_open() const { return socket_.is_open(); }
  void close();

  template <class Buffers, class Handler>
  auto async_read_some(const Buffers& buffers, Handler&& handler) {
    return boost::asio::async_compose<std::decay_t<Handler>, void(error_code, std::size_t)>(
        [this, buffers, has_waited = false](auto& self, error_code error = {}) mutable {
          if (!error && std::exchange(has_waited, true)) {
            std::size_t bytes = 0;
            error = read(*boost::asio::buffer_sequence_begin(buffers), bytes);
            if (error != boost::asio::error::would_block) return self.complete(error, bytes);
          } else if (error) {
            return self.complete(error, 0);
          }
          socket_.async_wait(Socket::wait_read, std::move(self));
        },
        handler, socket_);
  }
  template <class Buffers, class Handler>
  auto async_write_some(const Buffers& buffers, Handler&& handler) {
    return socket_.async_write_some(buffers, std::forward<Handler>(handler));
  }
  template <class Handler>
  void async_wait_read(Handler&& handler) {
    socket_.async_wait(Socket::wait_read, std::forward<Handler>(handler));
  }

 private:
  // Reads the bytes that are there now. would_block: there are none.
  error_code read(boost::asio::mutable_buffer buffer, std::size_t& bytes);

  Socket socket_;
  Closer& closer_;
};

}  // namespace gpumux::daemon
