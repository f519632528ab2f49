// SPDX-License-Identifier: Apache-2.0
// Accepts TCP connections, and keeps a place for each. If all places are taken, a new connection gets the place of the
// one that has been without a request for longest.
//
// Owned by the thread that runs the io_context.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <cstddef>
#include <functional>
#include <list>

#include "base/result.h"

namespace gpumux::listener {

class Listener {
 public:
  // A connection's place among all, for as long as it exists. The stream outlives it.
  class Place {
   public:
    Place(Listener& listener, boost::beast::tcp_stream& stream)
        : listener_(listener), at_(listener.by_idleness_.insert(listener.by_idleness_.end(), &stream)) {}
    ~Place() { listener_.by_idleness_.erase(at_); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    // The connection has a request.
    void move_back() { listener_.by_idleness_.splice(listener_.by_idleness_.end(), listener_.by_idleness_, at_); }

   private:
    Listener& listener_;
    const std::list<boost::beast::tcp_stream*>::iterator at_;
  };

  // Serves one connection until it ends. It takes a place before it waits for anything.
  using Serve = std::function<boost::asio::awaitable<void>(boost::asio::ip::tcp::socket)>;

  Listener(boost::asio::io_context& io, std::size_t places) : io_(io), acceptor_(io), places_(places) {}
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // kUnavailable: the address cannot be had. Called once.
  // REQUIRES: `serve`, and what it returns, own the listener (a shared_ptr): they may outlive its other owners.
  base::Status listen(const boost::asio::ip::tcp::endpoint& endpoint, Serve serve);

  // Ends what has a place, and accepts nothing more.
  void close();
  bool is_open() const { return acceptor_.is_open(); }

  // With the port that it has got.
  boost::asio::ip::tcp::endpoint endpoint() const { return acceptor_.local_endpoint(); }

 private:
  static boost::asio::awaitable<void> accept(Listener& self, Serve serve);

  boost::asio::io_context& io_;
  boost::asio::ip::tcp::acceptor acceptor_;
  const std::size_t places_;
  std::list<boost::beast::tcp_stream*> by_idleness_;  // the longest without a request first
};

}  // namespace gpumux::listener
