// SPDX-License-Identifier: Apache-2.0
// Deadlines, earliest first: an indexed binary heap.
//
// A Timer lives inside the thing that it belongs to and knows its place in the heap, so arming, moving and stopping are
// O(log n) without allocation, and the earliest deadline is at the front. Timers of the same moment fire in the order
// in which they were armed, which makes runs repeatable. Not thread-safe; a Timer must be stopped before it is
// destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/clock.h"

namespace gpumux::sched {

struct Seat;
struct Unit;

enum class TimerKind : std::uint8_t { kRun, kStall, kStep, kAge, kLift, kThaw, kAnswer, kGrantsHeld };

struct Timer {
  static constexpr std::size_t kStopped = std::numeric_limits<std::size_t>::max();
  TimerKind kind = TimerKind::kRun;
  Unit* unit = nullptr;  // whose it is, one of the two; neither: the core's
  Seat* seat = nullptr;
  base::TimePoint at{};
  std::uint64_t armed_as = 0;
  std::size_t index = kStopped;
  bool armed() const { return index != kStopped; }
};

class Timers {
 public:
  // Arms or moves it. A moment that never comes (TimePoint::max()) stops it.
  void arm(Timer& timer, base::TimePoint at);
  void stop(Timer& timer);
  // nullptr: none is armed.
  Timer* earliest() const { return heap_.empty() ? nullptr : heap_.front(); }
  std::size_t size() const { return heap_.size(); }

 private:
  static bool before(const Timer& a, const Timer& b) { return a.at != b.at ? a.at < b.at : a.armed_as < b.armed_as; }
  void put(Timer* timer, std::size_t index);
  void sift_up(std::size_t index);
  void sift_down(std::size_t index);

  std::vector<Timer*> heap_;
  std::uint64_t next_armed_as_ = 0;
};

}  // namespace gpumux::sched
