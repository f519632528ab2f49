// SPDX-License-Identifier: Apache-2.0
// The lesson of a unit's idle times: how long they last, and whether it paid to give the GPU up for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "sched/events.h"

namespace gpumux::sched {

// An idle holder keeps a contended lease for as long as the switch would cost, and at least this long. Below, the
// message alone costs as much.
inline constexpr Duration kMinIdleHold = std::chrono::microseconds(200);
// Of one that has had much less time than the next one: what a change of hands and back takes.
inline constexpr Duration kIdleHoldBehind = std::chrono::microseconds(500);

class IdleWatch {
 public:
  // The unit has had nothing to do since then, and gave its lease up.
  void begin_gap(TimePoint since) { gap_since_ = since; }
  // The unit asks again.
  void end_gap(TimePoint now) {
    if (!gap_since_) return;
    const Duration gap = now - *gap_since_;
    gap_since_.reset();
    count(long_gaps_, gap >= kMinIdleHold);
    count(longer_gaps_, gap >= kIdleHoldBehind);
  }
  // Whether each of the last kGapsToTell gaps was longer than an idle hold.
  bool has_long_gaps() const { return long_gaps_ == kGapsToTell; }
  // The same for the hold of one that is behind.
  bool has_longer_gaps() const { return longer_gaps_ == kGapsToTell; }

  // The unit took the GPU back at once. `in_vain`: its successor had no use of it, or less than the switch cost.
  void took_back(bool in_vain) { doublings_ = in_vain ? std::min(doublings_ + 1, kMostDoublings) : 0; }
  // Idle leases last so many times as long, until such a switch has paid back.
  int patience() const { return 1 << doublings_; }

 private:
  static constexpr std::uint32_t kGapsToTell = 8;
  // Eight times as long at most: so nobody waits longer than 8 s for an idle GPU, and in a row of bursts at most three
  // of four switches are in vain.
  static constexpr std::uint32_t kMostDoublings = 3;

  // How many in a row, as far as that matters.
  static void count(std::uint32_t& gaps, bool is_one) { gaps = is_one ? std::min(gaps + 1, kGapsToTell) : 0; }

  std::optional<TimePoint> gap_since_;
  std::uint32_t long_gaps_ = 0;
  std::uint32_t longer_gaps_ = 0;
  std::uint32_t doublings_ = 0;
};

}  // namespace gpumux::sched
