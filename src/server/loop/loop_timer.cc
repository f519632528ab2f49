// SPDX-License-Identifier: Apache-2.0
#include "server/loop/loop_timer.h"

#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "os/system_clock.h"

namespace gpumux::server {

using boost::asio::steady_timer;

// Outlives the timer while a handler is on its way.
struct LoopTimer::State : std::enable_shared_from_this<State> {
  State(boost::asio::io_context& io, Next n, Work w) : timer(io), next(std::move(n)), work(std::move(w)) {}

  void arm(std::optional<base::TimePoint> when) {
    if (when == due) return;
    timer.cancel();
    due = when;
    if (!due) return;
    // Both clocks are CLOCK_MONOTONIC.
    timer.expires_at(steady_timer::time_point(due->time_since_epoch()));
    timer.async_wait([self = shared_from_this(), when](const boost::system::error_code& error) {
      // A handler that was already queued when the timer was armed anew is not cancelled any more.
      if (!error && self->due == when) self->fire();
    });
  }

  void fire() {
    struct ArmAgain {
      ~ArmAgain() {
        if (state.work && !state.due) state.arm(state.next());
      }
      State& state;
    } again{*this};
    const base::TimePoint was_due = *std::exchange(due, std::nullopt);
    // A copy: the work may destroy the timer.
    const Work now = work;
    now(was_due);
  }

  steady_timer timer;
  Next next;
  Work work;  // empty: the timer was destroyed
  std::optional<base::TimePoint> due;
};

LoopTimer::LoopTimer(boost::asio::io_context& io, Next next, Work work)
    : state_(std::make_shared<State>(io, std::move(next), std::move(work))) {}

LoopTimer::~LoopTimer() {
  state_->work = nullptr;
  state_->arm(std::nullopt);
}

LoopTimer::Next LoopTimer::every(base::Duration period) {
  return [period] { return std::optional(os::now() + period); };
}

LoopTimer::Next LoopTimer::never() {
  return [] { return std::optional<base::TimePoint>(); };
}

void LoopTimer::update() { state_->arm(state_->next()); }

void LoopTimer::arm_in(base::Duration delay) {
  if (!state_->due) state_->arm(os::now() + delay);
}

bool LoopTimer::is_armed() const { return state_->due.has_value(); }

}  // namespace gpumux::server
