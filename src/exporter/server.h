// SPDX-License-Identifier: Apache-2.0
// Serves one page, /metrics, over TCP: HTTP/1.1, with TLS and a bearer token if there are files of them.
//
// Clients are strangers. A request is bounded in size and in time, and so is the number of connections. If there is one
// connection too many, the server closes the one that has been without a request for longest. Token and certificate are
// read when the server opens.
//
// Owned by the thread that runs the io_context.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"

namespace gpumux::exporter {

struct Settings {
  std::string address;           // "127.0.0.1:9840", "[::]:9840"; numeric. Port 0: any that is free
  std::string token_file;        // its first line is the token. Empty: each client may read a page without names
  std::string certificate_file;  // PEM, with the chain. Empty: without TLS
  std::string key_file;          // PEM
};

// Whether the reader may see the names of users, programs, jobs and pods: it has shown the token.
enum class Names { kShown, kHidden };

struct Page {
  unsigned status = 200;
  std::string content_type;
  std::string body;
};

// Makes the page; `accept` is the request's header. Called on the io_context's thread; calls back once, there or on any
// other thread.
using Source = std::function<void(Names names, std::string accept, std::function<void(Page)> reply)>;

// Two Prometheus servers with a connection each, and a person who looks.
inline constexpr std::size_t kMaxConnections = 32;

class Server {
 public:
  // Whether these settings and their files are right; the error says what is wrong.
  static base::Status check(const Settings& settings);
  // kInvalid: a setting is wrong, or a file is; other codes: the address cannot be had.
  static base::Result<std::unique_ptr<Server>> open(boost::asio::io_context& io, const Settings& settings,
                                                    Source source);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Where it listens, with the port that it has got.
  std::string address() const;

 private:
  class Impl;
  explicit Server(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace gpumux::exporter
