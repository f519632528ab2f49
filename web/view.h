// SPDX-License-Identifier: Apache-2.0
// One open page: a WebSocket on which the feed's messages go out. The page sends nothing; if it does, it is closed.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/websocket/stream.hpp>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>

#include "web/feed.h"

namespace gpumux::web {

class View : public Feed::Viewer {
 public:
  using Request = boost::beast::http::request<boost::beast::http::string_body>;

  View(boost::beast::tcp_stream stream, Feed& feed);

  // Until the page is closed. `request` has been found to be allowed.
  static boost::asio::awaitable<void> run(std::shared_ptr<View> self, Request request, std::string protocol);

  void show(const Feed::Message& message) override;
  void close();

 private:
  static boost::asio::awaitable<void> write(std::shared_ptr<View> self);

  boost::beast::websocket::stream<boost::beast::tcp_stream> socket_;
  Feed& feed_;
  boost::asio::steady_timer more_;  // ends when there is something to send
  std::deque<Feed::Message> unsent_;
  std::size_t unsent_bytes_ = 0;
  bool is_open_ = true;
};

}  // namespace gpumux::web
