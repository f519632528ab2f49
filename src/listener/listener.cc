// SPDX-License-Identifier: Apache-2.0
#include "listener/listener.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <utility>

namespace gpumux::listener {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// Without an exception: an error is how a connection ends.
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

// After a failure. No descriptors are left, for example: connections must end first. A guess.
constexpr std::chrono::milliseconds kPause{100};

}  // namespace

base::Status Listener::listen(const tcp::endpoint& endpoint, Serve serve) {
  boost::system::error_code error;
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) return base::fail(base::Code::kUnavailable, error.message());
  asio::co_spawn(io_, accept(*this, std::move(serve)), asio::detached);
  return {};
}

void Listener::close() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  for (boost::beast::tcp_stream* stream : by_idleness_) stream->close();
}

asio::awaitable<void> Listener::accept(Listener& self, Serve serve) {
  while (self.is_open()) {
    auto [error, socket] = co_await self.acceptor_.async_accept(kAwait);
    if (!self.is_open()) co_return;
    if (error) {
      asio::steady_timer pause(self.io_, kPause);
      co_await pause.async_wait(kAwait);
      continue;
    }
    if (self.by_idleness_.size() >= self.places_) self.by_idleness_.front()->close();
    asio::co_spawn(self.io_, serve(std::move(socket)), asio::detached);
  }
}

}  // namespace gpumux::listener
