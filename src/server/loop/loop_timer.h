// SPDX-License-Identifier: Apache-2.0
// A timer of the daemon's loop that no exception can end: after its work it arms itself again, whether the work
// returned or threw. An exception goes on to the loop.
//
// Owned by the loop's thread. A timer that is destroyed runs nothing any more.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>

#include "base/clock.h"

namespace gpumux::server {

class LoopTimer {
 public:
  // When the work is due next; none: not until the timer is armed from outside.
  using Next = std::function<std::optional<base::TimePoint>()>;
  // Is told when it was due.
  using Work = std::function<void(base::TimePoint)>;

  // `next` is asked by update() and after each work.
  LoopTimer(boost::asio::io_context& io, Next next, Work work);
  ~LoopTimer();
  LoopTimer(const LoopTimer&) = delete;
  LoopTimer& operator=(const LoopTimer&) = delete;

  // For timers that fire again and again: `period` after the end of the last work.
  static Next every(base::Duration period);
  // For timers that fire only after arm_in().
  static Next never();

  // Arms or disarms the timer as `next` says.
  void update();
  // No effect on an armed timer.
  void arm_in(base::Duration delay);
  bool is_armed() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace gpumux::server
