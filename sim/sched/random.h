// SPDX-License-Identifier: Apache-2.0
// Random numbers that are the same on every machine and with every standard library: SplitMix64.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace gpumux::simsched {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint32_t below(std::uint64_t end) { return static_cast<std::uint32_t>(next() % end); }
  bool chance(std::uint32_t percent) { return below(100) < percent; }
  base::Duration between(base::Duration least, base::Duration most) {
    return least +
           base::Duration(static_cast<std::int64_t>(next() % static_cast<std::uint64_t>((most - least).count() + 1)));
  }

 private:
  std::uint64_t state_;
};

}  // namespace gpumux::simsched
