// SPDX-License-Identifier: Apache-2.0
// A client of a server on 127.0.0.1 that is under test: it writes what the test says, and waits for the answer.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cstdint>
#include <memory>
#include <string>

namespace gpumux {

class TcpClient {
 public:
  using Response = boost::beast::http::response<boost::beast::http::string_body>;

  explicit TcpClient(std::uint16_t port) : socket_(*io_) {
    socket_.connect({boost::asio::ip::address_v4::loopback(), port});
  }

  // Errors are ignored: the server may end the connection before it has read all.
  void write(const std::string& bytes) {
    boost::system::error_code ignored;
    boost::asio::write(socket_, boost::asio::buffer(bytes), ignored);
  }

  // The server reads the end of the stream.
  void say_no_more() { socket_.shutdown(boost::asio::ip::tcp::socket::shutdown_send); }

  template <class Body>
  Response ask(const boost::beast::http::request<Body>& request) {
    Response response;
    boost::beast::http::write(socket_, request);
    boost::beast::http::read(socket_, buffer_, response);
    return response;
  }

  // Waits until the server has said something more or has ended the connection.
  bool is_closed() {
    char byte = 0;
    boost::system::error_code error;
    boost::asio::read(socket_, boost::asio::buffer(&byte, 1), error);
    return error.failed();
  }

 private:
  std::unique_ptr<boost::asio::io_context> io_ = std::make_unique<boost::asio::io_context>();
  boost::asio::ip::tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
};

}  // namespace gpumux
