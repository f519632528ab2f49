// SPDX-License-Identifier: Apache-2.0
// Accepts TCP connections, and keeps a place for each that is open. If all places are taken, a new connection gets the
// place of the one that has been without a request for longest, which is closed.
//
// A connection that is closed while its answer is being made ends when the answer is there. There may be as many such
// connections as there are places. While there are so many, the listener closes new connections at once.
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
#include <memory>
#include <utility>
#include <vector>

#include "base/result.h"

namespace gpumux::listener {

class TcpListener {
  struct Connection;
  struct All;
  using Connections = std::list<Connection>;

 public:
  // A connection and its place among all, until it has been served. May outlive the listener.
  class Place {
   public:
    Place(Place&& other) noexcept = default;
    Place& operator=(Place&&) = delete;
    ~Place() {
      if (all_) at_->in->erase(at_);
    }
    boost::beast::tcp_stream& stream() { return at_->stream; }
    // The connection has a request.
    void move_back() { at_->in->splice(at_->in->end(), *at_->in, at_); }

   private:
    friend class TcpListener;
    Place(std::shared_ptr<All> all, Connections::iterator at) : all_(std::move(all)), at_(at) {}
    std::shared_ptr<All> all_;  // null: moved from
    Connections::iterator at_;
  };

  // Serves one connection until it ends.
  using Serve = std::function<boost::asio::awaitable<void>(Place)>;

  TcpListener(boost::asio::io_context& io, std::size_t places) : io_(io), places_(places) {}
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  // Listens at all of the addresses, or at none (kUnavailable: one is taken). An address that this machine does not
  // have is left out if another is there. Port 0: any port that is free at all of them. Called once. REQUIRES: `serve`,
  // and what it returns, own the listener (a shared_ptr): they may outlive its other owners.
  base::Status listen(const std::vector<boost::asio::ip::tcp::endpoint>& endpoints, Serve serve);

  // Closes each connection, and accepts nothing more.
  void close();
  bool is_open() const { return is_open_; }

  // The first address, with its port.
  boost::asio::ip::tcp::endpoint endpoint() const { return acceptors_.front().local_endpoint(); }

 private:
  struct Connection {
    boost::beast::tcp_stream stream;
    Connections* in;  // the list that it is in
  };
  struct All {
    Connections by_idleness;  // those that are open, the longest without a request first
    Connections ending;       // those that were closed to make room
  };

  void add(boost::asio::ip::tcp::socket socket, const Serve& serve);
  using Acceptor = boost::asio::ip::tcp::acceptor;
  base::Status bind(const std::vector<boost::asio::ip::tcp::endpoint>& endpoints);
  static boost::asio::awaitable<void> accept(TcpListener& self, Acceptor& acceptor, Serve serve);

  boost::asio::io_context& io_;
  std::list<Acceptor> acceptors_;
  bool is_open_ = false;
  const std::size_t places_;
  const std::shared_ptr<All> all_ = std::make_shared<All>();
};

}  // namespace gpumux::listener
