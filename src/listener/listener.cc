// SPDX-License-Identifier: Apache-2.0
#include "listener/listener.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <sstream>
#include <utility>

namespace gpumux::listener {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// Without an exception: an error is how a connection ends.
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

// After a failure. No descriptors are left, for example: connections must end first. A guess.
constexpr std::chrono::milliseconds kPause{100};

// Of any port that is free at all addresses: the next one is nearly always.
constexpr int kMostTries = 100;

}  // namespace

base::Status TcpListener::bind(const std::vector<tcp::endpoint>& endpoints) {
  std::string why;
  std::uint16_t port = 0;
  for (tcp::endpoint endpoint : endpoints) {
    if (endpoint.port() == 0) endpoint.port(port);
    Acceptor acceptor(io_);
    boost::system::error_code error;
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(Acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      std::ostringstream text;
      text << endpoint << ": " << error.message();
      why = text.str();
      if (error == asio::error::address_family_not_supported || error == boost::system::errc::address_not_available)
        continue;
      acceptors_.clear();
      break;
    }
    port = acceptor.local_endpoint().port();
    acceptors_.push_back(std::move(acceptor));
  }
  return acceptors_.empty() ? base::Status(base::fail(base::Code::kUnavailable, why)) : base::Status();
}

base::Status TcpListener::listen(const std::vector<tcp::endpoint>& endpoints, Serve serve) {
  base::Status bound = bind(endpoints);
  // A port that is free at the first address may be taken at another.
  for (int tries = 1; !bound && endpoints.size() > 1 && endpoints.front().port() == 0 && tries < kMostTries; ++tries)
    bound = bind(endpoints);
  if (!bound) return bound;
  is_open_ = true;
  for (Acceptor& acceptor : acceptors_) asio::co_spawn(io_, accept(*this, acceptor, serve), asio::detached);
  return {};
}

void TcpListener::close() {
  is_open_ = false;
  boost::system::error_code ignored;
  for (Acceptor& acceptor : acceptors_) acceptor.close(ignored);
  for (Connection& connection : all_->by_idleness) connection.stream.close();
}

void TcpListener::add(tcp::socket socket, const Serve& serve) {
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

asio::awaitable<void> TcpListener::accept(TcpListener& self, Acceptor& acceptor, Serve serve) {
  while (self.is_open()) {
    auto [error, socket] = co_await acceptor.async_accept(kAwait);
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
