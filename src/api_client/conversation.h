// SPDX-License-Identifier: Apache-2.0
// Requests to the daemon for a program that may not wait, because it has other things to poll for: a terminal, timers.
//
//   Conversation daemon(context, runtime_dir, 10s);
//   daemon.ask({"GET", "/v1/status"}, [](base::Result<std::string> body) { ... });
//
// One connection, which stays open between requests: the daemon looks up who asks once, not for every request. Requests
// are sent in their order, one at a time. The first request after a failure connects anew.
//
// Everything runs on the thread that runs `context`. Answers come from there, never from within ask(). Errors are those
// of Client. A connection that ends, or an answer that does not come in time, fails every request that was asked.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "api_client/request.h"
#include "base/clock.h"
#include "base/result.h"

namespace gpumux::api_client {

class Conversation {
 public:
  // The body of an answer that is no error.
  using OnAnswer = std::function<void(base::Result<std::string> body)>;

  // `patience`: how long the daemon may take for one answer. REQUIRES: `context` does not run when this is gone.
  Conversation(boost::asio::io_context& context, std::string runtime_dir, base::Duration patience);
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  void ask(Request request, OnAnswer on_answer);

  bool is_idle() const { return asked_.empty(); }
  // How many connections there were. A daemon that is restarted has a new one.
  std::uint64_t connections() const { return connections_; }

 private:
  struct Asked {
    Request request;
    OnAnswer on_answer;
  };

  void next();
  void send();
  void receive();
  void answered();
  void fail(const base::Error& error);
  // The handler of an operation on the present connection: it calls `then`, or fails.
  template <class Then>
  auto when_done(const char* doing, Then then);

  boost::asio::io_context& context_;
  const std::string runtime_dir_;
  const std::string path_;
  const base::Duration patience_;
  boost::asio::local::stream_protocol::socket socket_;
  boost::asio::steady_timer deadline_;
  std::deque<Asked> asked_;  // the first one is under way
  std::uint64_t connections_ = 0;
  bool is_late_ = false;
  boost::beast::http::request<boost::beast::http::string_body> request_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::response_parser<boost::beast::http::string_body>> parser_;
};

}  // namespace gpumux::api_client
