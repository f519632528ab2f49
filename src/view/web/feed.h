// SPDX-License-Identifier: Apache-2.0
// What all views see: one snapshot each second, and the trace as it happens. One question and one followed trace serve
// all views, and while there is no view the daemon is asked nothing.
//
// Messages are JSON texts, by their `kind`:
//
//   snapshot    now_ns, unix_ns, and the daemon's answers: daemon, status, queue (null: none)
//   following   events from now on come. A page asks for those before, after each such message anew
//   trace       events: a list
//   gone        why: a sentence
//
// Owned by the thread that runs the io_context.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <set>
#include <string>

#include "view/web/upstream.h"

namespace gpumux::view::web {

inline constexpr std::chrono::seconds kSnapshotEvery{1};

// Events are gathered for so long: turns of 5 ms then cost 2 messages a second instead of 1,000. With 200 ms, 20 pages
// cost more than 1 % of a core (experiments/024-web-views).
inline constexpr std::chrono::milliseconds kGatherFor{500};

// More of the trace than this is not waiting to be sent: the daemon has 65,536 events of some 250 bytes.
inline constexpr std::size_t kMaxGatheredBytes = 16 << 20;

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

  // The viewer gets the newest snapshot at once, if it is new enough.
  void join(Viewer& viewer);
  void leave(Viewer& viewer);

 private:
  static boost::asio::awaitable<void> poll(std::shared_ptr<Feed> self);
  static boost::asio::awaitable<void> follow(std::shared_ptr<Feed> self);
  static boost::asio::awaitable<void> send_gathered(std::shared_ptr<Feed> self);
  boost::asio::awaitable<void> wait_for_viewers();
  boost::asio::awaitable<Message> snapshot();
  boost::asio::awaitable<void> read_trace(Upstream::Stream& stream);
  void gather(std::string_view bytes);
  void broadcast(Message message);

  boost::asio::io_context& io_;
  const std::shared_ptr<Upstream> upstream_;
  bool is_open_ = true;
  std::set<Viewer*> viewers_;
  boost::asio::steady_timer came_;  // the first viewer has; it never ends by itself
  Message newest_;                  // a snapshot, or that the daemon is gone
  std::chrono::steady_clock::time_point newest_at_{};
  Upstream::Stream* trace_ = nullptr;  // its connection
  bool is_following_ = false;          // it has begun
  std::string gathered_;               // of the trace: lines, and the beginning of one
  bool is_sending_ = false;            // what is gathered, in a moment
};

}  // namespace gpumux::view::web
