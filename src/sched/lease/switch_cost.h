// SPDX-License-Identifier: Apache-2.0
// The smoothed cost of a GPU's change of hands, and the automatic quantum that follows from it.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "sched/events.h"

namespace gpumux::sched {

class SwitchCost {
 public:
  // No unit had the GPU for this long while a predecessor drained. The first drain counts as it is.
  void add_drain(Duration cost) {
    cost = std::min(cost, kMost);
    drain_ = drain_ ? *drain_ + (cost - *drain_) / kDrainSmoothing : cost;
  }
  // The next switch that moves memory does not count: it may wait for more than its memory.
  void skip_next_paging() { skips_paging_ = true; }
  // A granted unit's memory came this long after the grant. Zero: nothing had to move.
  void add_paging(Duration cost) {
    if (cost > Duration::zero() && std::exchange(skips_paging_, false)) return;
    paging_ += (std::min(cost, kMost) - paging_) / kPagingSmoothing;
    // The remainder of a cost that is gone says nothing.
    if (paging_ < std::chrono::microseconds(1)) paging_ = Duration::zero();
  }

  Duration drain() const { return drain_.value_or(Duration::zero()); }
  Duration paging() const { return paging_; }
  Duration total() const { return drain() + paging_; }
  Duration automatic_quantum() const { return std::clamp(total() * kQuantaPerCost, kMinQuantum, kMost); }

 private:
  // An automatic quantum is this many times the cost of a switch: 33 / 34 of the time is then left, so switching takes
  // under 3 %.
  static constexpr std::int64_t kQuantaPerCost = 33;
  // An automatic quantum is never shorter. A switch costs about 1 ms that cannot be measured while it happens: a freeze
  // and a thaw, change of context, cold caches, a queue that is filled again. Where work drains, two busy programs
  // together get 93 % of one program's work done with quanta of 5 ms, and 98.5 to 99 % with 50 ms (experiment 008).
  static constexpr Duration kMinQuantum = std::chrono::milliseconds(40);
  // No automatic quantum is longer, and no cost counts for more: people wait.
  static constexpr Duration kMost = std::chrono::seconds(30);
  // Each measured drain moves the smoothed cost by one part in this many: a few outliers do not move the quantum much.
  static constexpr std::int64_t kDrainSmoothing = 8;
  // A switch that moves memory raises the smoothed cost by this part of the difference, and a switch that moves none
  // lowers it. When programs fit together again, quanta of many seconds are short again after a few switches.
  static constexpr std::int64_t kPagingSmoothing = 4;

  std::optional<Duration> drain_;
  Duration paging_{};
  bool skips_paging_ = false;
};

}  // namespace gpumux::sched
