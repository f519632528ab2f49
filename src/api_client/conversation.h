// SPDX-License-Identifier: Apache-2.0
// Requests to the daemon for a program that may not wait, because it has other things to poll for: a terminal, timers.
//
//   Conversation daemon(context, runtime_dir, 10s);
//   daemon.ask({"GET", "/v1/status"}, [](base::Result<std::string> body) { ... });
//
// One connection, which stays open between requests. Requests are sent in their order, one at a time. The first request
// after a failure connects anew.
//
// Everything runs on the thread that runs `context`. Answers come from there, never from within ask(). Errors are those
// of Client. A connection that ends, or an answer that does not come in time, fails every request that was asked.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "api_client/connection.h"
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
  // How many connections there were.
  std::uint64_t connections() const { return connection_.connections(); }

 private:
  struct Asked {
    Request request;
    OnAnswer on_answer;
  };

  boost::asio::awaitable<void> converse();

  boost::asio::io_context& context_;
  const base::Duration patience_;
  Connection connection_;
  std::deque<Asked> asked_;  // the first one is under way
};

}  // namespace gpumux::api_client
