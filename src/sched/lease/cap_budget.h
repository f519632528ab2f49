// SPDX-License-Identifier: Apache-2.0
// A seat's allowance of lease time under its cap.
//
// The allowance grows with time, by the cap's part of it, up to what a window of kCapWindow gives; holding a lease
// spends it. A lease ends when the allowance is spent, and the seat queues again when half a window's worth has come
// back. So over any stretch of time the seat has had at most its part and one window's worth. It is switched a few
// times a second at most.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sched/events.h"

namespace gpumux::sched {

// A guess: with a longer window a capped seat runs for longer without a pause, and with a shorter one it is switched
// more often.
inline constexpr Duration kCapWindow = std::chrono::seconds(1);

class CapBudget {
 public:
  // Thousandths of all time; kNoCap: there is no cap.
  std::uint32_t cap() const { return cap_; }
  bool is_capped() const { return cap_ < kNoCap; }

  // A seat that had no cap begins with a full allowance.
  // REQUIRES: the allowance was settled at this moment.
  void set(std::uint32_t cap) {
    const bool was_capped = is_capped();
    cap_ = std::clamp(cap, 1u, kNoCap);
    if (is_capped() && !was_capped) allowance_ = most();
  }

  // Brings the allowance up to `now`. `spends`: the seat has had a lease since the last call.
  void settle(TimePoint now, bool spends) {
    const Duration passed = std::min(now - settled_at_, kMostOverspent);
    settled_at_ = now;
    if (!is_capped()) return;
    allowance_ += part_of(passed) - (spends ? passed : Duration::zero());
    allowance_ = std::clamp(allowance_, -kMostOverspent, most());
  }

  bool is_spent() const { return is_capped() && allowance_ <= Duration::zero(); }

  // For how long a seat that holds a lease may go on.
  // REQUIRES: is_capped().
  Duration lasts() const {
    return std::max(allowance_, Duration::zero()) * kNoCap / (kNoCap - cap_) + std::chrono::nanoseconds(1);
  }
  // After how long without a lease the seat may queue again. Zero: now.
  // REQUIRES: is_capped().
  Duration thaws_in() const {
    const Duration lacks = most() / 2 - allowance_;
    return lacks <= Duration::zero() ? Duration::zero() : lacks * kNoCap / cap_ + std::chrono::nanoseconds(1);
  }

 private:
  // A lease may go on beyond the allowance: a kernel of minutes, a stall. The seat pays back no more than this. A
  // guess: with a cap of a tenth, that is five minutes without a lease.
  static constexpr Duration kMostOverspent = std::chrono::seconds(30);

  // Never above a few minutes, so this does not overflow.
  Duration part_of(Duration duration) const {
    return duration * static_cast<std::int64_t>(cap_) / static_cast<std::int64_t>(kNoCap);
  }
  Duration most() const { return part_of(kCapWindow); }

  std::uint32_t cap_ = kNoCap;
  Duration allowance_{};  // as of settled_at_
  TimePoint settled_at_{};
};

}  // namespace gpumux::sched
