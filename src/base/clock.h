// SPDX-License-Identifier: Apache-2.0
// Time. The core and everything that is simulated get time passed in; only the edges read a clock.
#pragma once

#include <chrono>

namespace gpumux::base {

using Duration = std::chrono::nanoseconds;

// Nanoseconds since an epoch of the clock's choosing (the system's: CLOCK_MONOTONIC's; a simulation's: its start).
using TimePoint = std::chrono::time_point<struct MonotonicTag, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

}  // namespace gpumux::base
