// SPDX-License-Identifier: Apache-2.0
// The daemon's API as the web view asks it: with this user's rights, over api.sock, without blocking.
//
// However many views there are, the daemon is asked the same thing once. read() shares an answer for kSharedFor, and a
// request that is under way. A change and forget_answers() end that.
//
// Owned by the thread that runs the io_context.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "api_client/connection.h"
#include "base/result.h"

namespace gpumux::web {

// About kLookEvery (feed.h): all open pages together ask the daemon about once a second.
inline constexpr std::chrono::seconds kSharedFor{1};

using api_client::Answer;

class Upstream {
 public:
  using Shared = std::shared_ptr<const base::Result<Answer>>;

  // `runtime_dir`: empty: where os::find_runtime_dir() says, asked for each connection.
  Upstream(boost::asio::io_context& io, std::string runtime_dir) : io_(io), runtime_dir_(std::move(runtime_dir)) {}
  Upstream(const Upstream&) = delete;
  Upstream& operator=(const Upstream&) = delete;

  api_client::Connection new_connection() const { return {io_, runtime_dir_}; }

  boost::asio::awaitable<Shared> read(std::string target);

  // Not shared.
  boost::asio::awaitable<base::Result<Answer>> read_now(std::string target) const;

  boost::asio::awaitable<base::Result<Answer>> change(std::string target, std::string body);

  void forget_answers() { shared_.clear(); }

 private:
  struct Question {
    explicit Question(boost::asio::io_context& io) : answered(io, std::chrono::steady_clock::time_point::max()) {}
    boost::asio::steady_timer answered;  // ends when there is an answer
    std::chrono::steady_clock::time_point asked = std::chrono::steady_clock::now();
    Shared answer;  // none: it is under way
  };

  boost::asio::io_context& io_;
  const std::string runtime_dir_;
  std::map<std::string, std::shared_ptr<Question>> shared_;
};

}  // namespace gpumux::web
