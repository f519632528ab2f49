// SPDX-License-Identifier: Apache-2.0
#include "listener/listener.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <iterator>
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
  for (Connection& connection : all_->by_idleness) connection.stream.close();
}

void Listener::add(tcp::socket socket, const Serve& serve) {
  auto& [by_idleness, ending] = *all_;
  if (ending.size() >= places_) return;
  if (by_idleness.size() >= places_) {
    Connection& idlest = by_idleness.front();
    idlest.stream.close();
    idlest.in = &ending;
    ending.splice(ending.end(), by_idleness, by_idleness.begin());
  }
  by_idleness.push_back({boost::beast::tcp_stream(std::move(socket)), &by_idleness});
  asio::co_spawn(io_, serve(Place(all_, std::prev(by_idleness.end()))), asio::detached);
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
    self.add(std::move(socket), serve);
  }
}

}  // namespace gpumux::listener
