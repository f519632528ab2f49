// SPDX-License-Identifier: Apache-2.0
// Waiting times, counted in classes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/clock.h"

namespace gpumux::server {

// From a hand-over between two programs (about 5 us) to a program that waits for a quantum of minutes.
inline constexpr std::array<base::Duration, 16> kWaitBounds{
    std::chrono::microseconds(100), std::chrono::milliseconds(1),  std::chrono::milliseconds(3),
    std::chrono::milliseconds(10),  std::chrono::milliseconds(30), std::chrono::milliseconds(100),
    std::chrono::milliseconds(300), std::chrono::seconds(1),       std::chrono::seconds(2),
    std::chrono::seconds(5),        std::chrono::seconds(10),      std::chrono::seconds(30),
    std::chrono::seconds(60),       std::chrono::seconds(300),     std::chrono::seconds(1800),
    std::chrono::seconds(3600)};

// How long something was waited for, in classes; the last class has no bound.
struct WaitHistogram {
  std::array<std::uint64_t, kWaitBounds.size() + 1> counts{};
  base::Duration sum{};
  void add(base::Duration value) {
    const auto bound = std::lower_bound(kWaitBounds.begin(), kWaitBounds.end(), value);
    ++counts[static_cast<std::size_t>(bound - kWaitBounds.begin())];
    sum += value;
  }
};

}  // namespace gpumux::server
