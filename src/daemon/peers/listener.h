// SPDX-License-Identifier: Apache-2.0
// A listening unix socket of the daemon's. It accepts a few connections a turn, and pauses if descriptors are short or
// many ended connections are not closed yet.
//
// Owned by the loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "daemon/peers/closer.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

class UnixListener {
 public:
  using Accepted = std::function<void(ForeignConnection)>;
  // `accepted` is called for each connection, `turn_ended` after a few of them.
  UnixListener(boost::asio::io_context& io, Closer& closer, Accepted accepted, std::function<void()> turn_ended);
  ~UnixListener() { close(); }
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;

  // In place of the socket that it has, if any.
  void listen(os::FileDescriptor socket);
  // Connections that are in the socket's queue and not accepted yet.
  bool has_pending();
  // Refuses further connections; the closer has those that were not accepted yet.
  void close();
  // Closes a listening socket. `left`: the connections that were not accepted yet.
  static void drain(os::FileDescriptor socket, Closer& closer, std::vector<ForeignConnection>& left);

 private:
  void wait();
  void accept_some();
  void wait_after(std::chrono::milliseconds time);

  Closer& closer_;
  Accepted accepted_;
  std::function<void()> turn_ended_;
  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer pause_;
  std::uint64_t generation_ = 0;  // of the socket: a wait for an earlier one may come back late
  bool is_short_ = false;         // of descriptors; logged once, until all connections that wait are accepted
};

}  // namespace gpumux::daemon
