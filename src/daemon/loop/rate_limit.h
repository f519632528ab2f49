// SPDX-License-Identifier: Apache-2.0
// A token bucket: `burst` at once, `per_second` on average.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace gpumux::daemon {

class RateLimit {
 public:
  RateLimit(std::int64_t burst, std::int64_t per_second)
      : interval_(1'000'000'000 / per_second), most_(interval_ * burst), credit_(most_) {}

  // Takes one. False: there is none.
  bool take(base::TimePoint now) {
    refill(now);
    if (credit_ < interval_) return false;
    credit_ -= interval_;
    return true;
  }

 private:
  void refill(base::TimePoint now) {
    if (last_ && now > *last_) credit_ = std::min(most_, credit_ + std::min((now - *last_).count(), most_));
    last_ = now;
  }

  std::int64_t interval_;  // ns that one takes to come
  std::int64_t most_;      // ns
  std::int64_t credit_;    // ns
  std::optional<base::TimePoint> last_;
};

}  // namespace gpumux::daemon
