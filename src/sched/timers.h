// SPDX-License-Identifier: Apache-2.0
// Deadlines, earliest first.
//
// A Timer lives inside the thing that it belongs to and is its own node in a tree. So arming, moving and stopping are
// O(log n) without allocation. Timers of the same moment fire in the order in which they were armed, which makes runs
// repeatable. A Timer that is destroyed stops. Not thread-safe.
#pragma once

#include <boost/intrusive/set.hpp>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace gpumux::sched {

struct Seat;
struct Unit;

// now + duration, and never beyond the end of time.
inline base::TimePoint after(base::TimePoint now, base::Duration duration) {
  return duration >= base::TimePoint::max() - now ? base::TimePoint::max() : now + duration;
}

enum class TimerKind : std::uint8_t { kRun, kStall, kStep, kAge, kLift, kThaw, kAnswer, kGrantsHeld };

class Timer : public boost::intrusive::set_base_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>> {
 public:
  explicit Timer(TimerKind of) : kind(of) {}
  Timer(TimerKind of, Unit& owner) : kind(of), unit(&owner) {}
  Timer(TimerKind of, Seat& owner) : kind(of), seat(&owner) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  bool armed() const { return is_linked(); }
  base::TimePoint at() const { return at_; }  // of one that is armed
  friend bool operator<(const Timer& a, const Timer& b) { return a.at_ < b.at_; }

  const TimerKind kind;
  Unit* const unit = nullptr;  // the owner is one of the two; neither: the core
  Seat* const seat = nullptr;

 private:
  friend class Timers;
  base::TimePoint at_{};
};

class Timers {
 public:
  // Arms or moves it. A moment that never comes (TimePoint::max()) stops it.
  void arm(Timer& timer, base::TimePoint at) {
    if (timer.armed() && timer.at_ == at) return;
    stop(timer);
    timer.at_ = at;
    if (at != base::TimePoint::max()) armed_.insert(timer);  // behind those of the same moment
  }
  void stop(Timer& timer) { timer.unlink(); }
  // nullptr: none is armed.
  Timer* earliest() { return armed_.empty() ? nullptr : &*armed_.begin(); }
  std::size_t size() const { return armed_.size(); }

 private:
  boost::intrusive::multiset<Timer, boost::intrusive::constant_time_size<false>> armed_;
};

}  // namespace gpumux::sched
