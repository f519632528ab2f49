// SPDX-License-Identifier: Apache-2.0
// Deadlines, earliest first: an indexed binary heap.
//
// A Timer lives inside its owner and knows its place in the heap. So arming, moving and stopping are O(log n) without
// allocation, and the earliest deadline is at the front. Timers of the same moment fire in the order in which they were
// armed, which makes runs repeatable. A Timer that is destroyed stops. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace gpumux::sched {

struct Seat;
struct Unit;

// now + duration, and never beyond the end of time.
inline base::TimePoint after(base::TimePoint now, base::Duration duration) {
  return duration >= base::TimePoint::max() - now ? base::TimePoint::max() : now + duration;
}

enum class TimerKind : std::uint8_t { kRun, kStall, kHalfDrained, kAge, kLift, kThaw, kAnswer, kStuck, kGrantsHeld };

class Timers;

class Timer {
 public:
  explicit Timer(TimerKind of) : kind(of) {}
  Timer(TimerKind of, Unit& owner) : kind(of), unit(&owner) {}
  Timer(TimerKind of, Seat& owner) : kind(of), seat(&owner) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  inline ~Timer();

  bool armed() const { return in_ != nullptr; }
  base::TimePoint at() const { return at_; }  // REQUIRES: it is armed

  const TimerKind kind;
  Unit* const unit = nullptr;  // the owner is one of the two; neither: the core
  Seat* const seat = nullptr;

 private:
  friend class Timers;
  Timers* in_ = nullptr;  // nullptr: not armed
  std::size_t index_ = 0;
  base::TimePoint at_{};
  std::uint64_t armed_as_ = 0;
};

class Timers {
 public:
  Timers() = default;
  Timers(const Timers&) = delete;
  Timers& operator=(const Timers&) = delete;
  // Arms or moves it. A moment that never comes (TimePoint::max()) stops it.
  void arm(Timer& timer, base::TimePoint at);
  void stop(Timer& timer);
  // nullptr: none is armed.
  Timer* earliest() const { return heap_.empty() ? nullptr : heap_.front(); }

 private:
  static bool before(const Timer& a, const Timer& b) {
    return a.at_ != b.at_ ? a.at_ < b.at_ : a.armed_as_ < b.armed_as_;
  }
  void put(Timer* timer, std::size_t index);
  void sift(std::size_t index);

  std::vector<Timer*> heap_;
  std::uint64_t next_armed_as_ = 0;
};

Timer::~Timer() {
  if (in_ != nullptr) in_->stop(*this);
}

}  // namespace gpumux::sched
