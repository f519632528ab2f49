// SPDX-License-Identifier: Apache-2.0
// The ledger's periods, as its table has them: in seconds since 1970.
#pragma once

#include <cstdint>

#include "jobs/store/ledger.h"

namespace gpumux::jobs::store {

inline constexpr std::int64_t kHour = 3'600;
inline constexpr std::int64_t kDay = 24 * kHour;
inline constexpr std::int64_t kNoUid = -1;
inline constexpr std::int64_t kNanoseconds = 1'000'000'000;

// The period that `at` is in.
inline std::int64_t begin_of(WallTime at, std::int64_t period) {
  const std::int64_t seconds = at / kNanoseconds;
  return seconds - seconds % period;
}

}  // namespace gpumux::jobs::store
