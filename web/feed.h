// SPDX-License-Identifier: Apache-2.0
// The message that all views see. While there is a view, the feed asks the daemon every kLookEvery, and each view gets
// the same message. While there is none, it asks nothing.
//
// Messages are JSON texts, by their `kind`:
//
//   news   now_ns, unix_ns; the daemon's answers: daemon, status, queue (null: none); the trace's events after the one
//          with the number `after`. A page that lacks earlier ones asks for them
//   gone   why: a sentence
//
// Owned by the thread that runs the io_context.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <set>
#include <string>

#include "web/upstream.h"

namespace gpumux::web {

// A page shows within a second every change: after at most this long, and the time of an answer.
inline constexpr std::chrono::milliseconds kLookEvery{900};

class Feed : public std::enable_shared_from_this<Feed> {
 public:
  using Message = std::shared_ptr<const std::string>;

  class Viewer {
   public:
    virtual ~Viewer() = default;
    virtual void show(const Message& message) = 0;
  };

  Feed(boost::asio::io_context& io, std::shared_ptr<Upstream> upstream);

  // Begins to serve; close() ends that.
  void start();
  void close();

  // The viewer gets the newest message at once, if it is new enough.
  void join(Viewer& viewer);
  void leave(Viewer& viewer);

 private:
  static boost::asio::awaitable<void> serve(std::shared_ptr<Feed> self);
  void broadcast(std::string message);

  boost::asio::io_context& io_;
  const std::shared_ptr<Upstream> upstream_;
  bool is_open_ = true;
  std::set<Viewer*> viewers_;
  boost::asio::steady_timer came_;  // the first viewer has; it never ends by itself
  Message newest_;
  std::chrono::steady_clock::time_point newest_at_{};
};

}  // namespace gpumux::web
