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
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "os/file_descriptor.h"

namespace gpumux::api_client {

struct ScriptedRequest {
  std::string method;
  std::string target;
  std::string body;
};

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
      // A connection that says nothing is a client's look whether somebody is there.
      if (!receive(connection.get(), request)) continue;
      {
        const std::lock_guard lock(mutex_);
        requests_.push_back(request);
      }
      answer_(request, connection.get());
    }
  }

  static bool receive(int connection, ScriptedRequest& request) {
    std::string text;
    std::size_t end_of_head = std::string::npos;
    std::size_t body_size = 0;
    char buffer[4096];
    while (end_of_head == std::string::npos || text.size() < end_of_head + 4 + body_size) {
      const ssize_t got = ::recv(connection, buffer, sizeof buffer, 0);
      if (got <= 0) return false;
      text.append(buffer, static_cast<std::size_t>(got));
      end_of_head = text.find("\r\n\r\n");
      const std::size_t length = text.find("Content-Length: ");
      if (end_of_head != std::string::npos && length < end_of_head)
        body_size = std::strtoul(text.c_str() + length + 16, nullptr, 10);
    }
    const std::size_t method_end = text.find(' ');
    const std::size_t target_end = text.find(' ', method_end + 1);
    request.method = text.substr(0, method_end);
    request.target = text.substr(method_end + 1, target_end - method_end - 1);
    request.body = text.substr(end_of_head + 4);
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
