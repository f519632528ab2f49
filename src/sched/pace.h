// SPDX-License-Identifier: Apache-2.0
// When a revocation that does not succeed at once is helped on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "sched/events.h"
#include "sched/timers.h"

namespace gpumux::sched {

inline Duration doubled(Duration duration, std::uint32_t times) {
  for (std::uint32_t i = 0; i < times; ++i) {
    if (duration > Duration::max() / 2) return Duration::max();
    duration *= 2;
  }
  return duration;
}

// The steps of one revocation: how long after each other they come, and of how many submissions they are.
class StepPace {
 public:
  // `hurry`: how often the first pause is halved.
  explicit StepPace(std::uint32_t hurry) : hurry_(hurry) {}

  // Before the next step.
  Duration pause(Duration step_delay) const {
    const std::int64_t part = most_ ? kNextStepsPerDelay : std::int64_t{1} << hurry_;
    return doubled(std::max(step_delay / part, kShortestStepDelay), doublings_);
  }
  // The submissions of a seat's next step, after one of `last` (0: none).
  std::uint32_t next(std::uint32_t last) {
    if (!most_) most_ = kMostStepsAtOnce;
    return std::clamp(last * kStepGrowth, 1u, *most_);
  }
  bool can_slow_down() const { return doublings_ < kMaxStepDoublings; }
  // A seat that was let through has gone too far, or the others were only slow.
  void slow_down() {
    doublings_ += kDoublingsPerSwap;
    if (most_) most_ = std::max(*most_ / kStepGrowth, 1u);
  }
  // The hurry of the unit's next revocation. Where steps were all that was needed, the first one may come earlier.
  std::uint32_t next_hurry() const {
    if (doublings_ > 0) return hurry_ - std::min(hurry_, 1u);
    return most_ ? std::min(hurry_ + 1, kMaxHurry) : hurry_;
  }

 private:
  // Once a member is known to be behind, the next step comes after this part of step_delay. By default that is 250 us,
  // which is how often a tenant looks at a GPU that drains for long. If that is too early, it shows in a swap.
  static constexpr std::int64_t kNextStepsPerDelay = 8;
  static constexpr std::uint32_t kMaxHurry = 3;  // 2^3 = 8: then the first step comes as soon as the next
  // 250 us become 4 s: longer than any kernel that is worth waiting for within the stall_timeout.
  static constexpr std::uint32_t kMaxStepDoublings = 14;
  // A swap makes the pause four times as long, and steps a fourth as large (kStepGrowth): they meet.
  static constexpr std::uint32_t kDoublingsPerSwap = 2;
  // A step comes later than now whatever the setting is.
  static constexpr Duration kShortestStepDelay = std::chrono::microseconds(1);
  // Ranks that run ahead of the GPU are apart by hundreds of submissions, of which one is the collective that is
  // missing. So a member that stays behind is let through by 1, 4, 16 ... of them. It goes too far by three times what
  // it lacked at most, for unused steps are taken back as soon as no member needs them.
  static constexpr std::uint32_t kStepGrowth = 4;
  static constexpr std::uint32_t kMostStepsAtOnce = 256;

  std::uint32_t hurry_;
  std::uint32_t doublings_ = 0;        // of the pause
  std::optional<std::uint32_t> most_;  // submissions in one step; none: there was no step
};

}  // namespace gpumux::sched
