// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ctime>

namespace gpumux::os {

// CLOCK_REALTIME, in nanoseconds since 1970: for people, and for after a reboot.
inline std::int64_t wall_clock_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

}  // namespace gpumux::os
