// SPDX-License-Identifier: Apache-2.0
// The lesson of a unit's idle times: how long they last, and whether it paid to give the GPU up for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "sched/events.h"

namespace gpumux::sched {

// The idle hold of a holder whose pauses are long: what it takes to see that it idles. If it was not idle, that cost a
// message, and the next unit's work runs in that time.
inline constexpr Duration kIdleHoldInLongGaps = std::chrono::microseconds(25);

class IdleWatch {
 public:
  // The unit has had nothing to do since then, and gave its lease up.
  void begin_gap(TimePoint since) { gap_since_ = since; }
  // The unit asks again.
  void end_gap(TimePoint now) {
    if (!gap_since_) return;
    const Duration last = now - *gap_since_;
    gap_since_.reset();
    gap_ = std::clamp(last, kIdleHoldInLongGaps, gap_ + gap_ / 4);
  }
  // How long its next gap is likely to be: as long as the last one, but at most a quarter longer than was likely
  // before. So one short gap counts at once, and a long one only in a row of them.
  Duration gap() const { return gap_; }

  // The unit took the GPU back at once. `in_vain`: its successor had no use of it, or less than the switch cost.
  void took_back(bool in_vain) { doublings_ = in_vain ? std::min(doublings_ + 1, kMostDoublings) : 0; }
  // Idle leases last this many times as long, until such a switch has paid back.
  int patience() const { return 1 << doublings_; }

 private:
  // Eight times as long at most. So no unit waits longer than 8 s for an idle GPU. In a row of bursts at most three
  // switches in four are useless.
  static constexpr std::uint32_t kMostDoublings = 3;

  std::optional<TimePoint> gap_since_;
  Duration gap_ = kIdleHoldInLongGaps;
  std::uint32_t doublings_ = 0;
};

}  // namespace gpumux::sched
