// SPDX-License-Identifier: Apache-2.0
// For tests: an HTTP server on a unix socket, in a thread of its own, that answers with exactly the bytes it is told
// to.
//
// It is not a good HTTP server on purpose: a test says what goes over the wire, right or wrong, and when the connection
// ends.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "api_client/request.h"
#include "os/file_descriptor.h"

namespace gpumux::api_client {

using ScriptedRequest = Request;

class ScriptedServer {
 public:
  // `answer` writes to the connection what it wants; the connection is closed when it returns. It is called for one
  // connection at a time.
  using Answer = std::function<void(const ScriptedRequest& request, int connection)>;

  ScriptedServer(const std::string& socket_path, Answer answer) : answer_(std::move(answer)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, socket_path.c_str(), sizeof address.sun_path - 1);
    ::unlink(socket_path.c_str());
    listener_ = os::FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) std::abort();
    if (::listen(listener_.get(), 16) != 0) std::abort();
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    stop_read_ = os::FileDescriptor(ends[0]);
    stop_write_ = os::FileDescriptor(ends[1]);
    thread_ = std::thread([this] { serve(); });
  }

  ~ScriptedServer() {
    stop_write_.reset();
    thread_.join();
  }

  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  std::vector<ScriptedRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

  // For an answer that never comes: returns when the other side has gone away, or the server is being stopped.
  void wait_for_the_end(int connection) const {
    for (;;) {
      pollfd items[2] = {{connection, POLLIN, 0}, {stop_read_.get(), POLLIN, 0}};
      if (::poll(items, 2, -1) < 0) continue;
      if (items[1].revents != 0) return;
      char byte;
      if (items[0].revents != 0 && ::recv(connection, &byte, 1, 0) <= 0) return;
    }
  }

  static void send_all(int connection, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
  }

  static std::string response(int status, std::string_view body) {
    return "HTTP/1.1 " + std::to_string(status) +
           " x\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
           std::string(body);
  }

 private:
  void serve() {
    for (;;) {
      pollfd items[2] = {{listener_.get(), POLLIN, 0}, {stop_read_.get(), POLLIN, 0}};
      if (::poll(items, 2, -1) < 0) continue;
      if (items[1].revents != 0) return;
      const os::FileDescriptor connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection) continue;
      ScriptedRequest request;
      // A connection that says nothing is a client's look whether a daemon is there.
      if (!receive(connection.get(), request)) continue;
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      answer_(request, connection.get());
    }
  }

  static bool receive(int connection, ScriptedRequest& request) {
    namespace http = boost::beast::http;
    boost::asio::io_context io;
    boost::asio::local::stream_protocol::socket socket(io, boost::asio::local::stream_protocol(), connection);
    boost::beast::flat_buffer buffer;
    http::request_parser<http::string_body> parser;
    parser.body_limit(boost::none);
    boost::system::error_code error;
    http::read(socket, buffer, parser, error);
    socket.release();  // it is the caller's
    if (!parser.is_done()) return false;
    request = {std::string(parser.get().method_string()), std::string(parser.get().target()),
               std::move(parser.get().body())};
    return true;
  }

  Answer answer_;
  os::FileDescriptor listener_;
  os::FileDescriptor stop_read_;
  os::FileDescriptor stop_write_;
  mutable std::mutex mutex_;
  std::vector<ScriptedRequest> requests_;
  std::thread thread_;
};

}  // namespace gpumux::api_client
