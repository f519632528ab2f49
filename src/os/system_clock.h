// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>

#include "base/clock.h"

namespace gpumux::os {

// CLOCK_MONOTONIC: comparable between processes of one machine, never set back.
class SystemClock final : public base::Clock {
 public:
  base::TimePoint now() const override {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return base::TimePoint(base::Duration(t.tv_sec * 1'000'000'000 + t.tv_nsec));
  }
};

inline base::TimePoint now() { return SystemClock().now(); }

}  // namespace gpumux::os
