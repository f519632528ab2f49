// SPDX-License-Identifier: Apache-2.0
// Runs a simulation for each of some seeds. For tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "sim/sched/simulation.h"

namespace gpumux::simsched {

// Sanitizers make a step some ten times slower; they look for other faults than these seeds do.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t kFewer = 10;
#else
inline constexpr std::uint64_t kFewer = 1;
#endif

inline void run_seeds(std::uint64_t first, std::uint64_t count, Options options) {
  count /= kFewer;
  for (options.seed = first; options.seed < first + count; ++options.seed) {
    const Outcome outcome = simulate(options);
    ASSERT_EQ(outcome.wrong, "") << "seed " << options.seed;
  }
}

}  // namespace gpumux::simsched
