// SPDX-License-Identifier: Apache-2.0
// Sizes of physical memory that is handed over from one process to another (docs/decisions/0015), as a set in one word.
#pragma once

#include <cstdint>

namespace gpumux::base {

// Bit i: (i + 1) times kFrameStep.
using FrameSizes = std::uint64_t;

// The driver's granularity.
inline constexpr std::uint64_t kFrameStep = std::uint64_t{2} << 20;
// The pager's largest chunk. Smaller ones than kLeastFrameBytes are freed and made in less time than a message and a
// descriptor take. There would also be too many descriptors of them.
inline constexpr std::uint64_t kMostFrameBytes = 64 * kFrameStep;
inline constexpr std::uint64_t kLeastFrameBytes = 16 * kFrameStep;

// The set of this one size; empty: nothing of this size is handed over.
constexpr FrameSizes frame_size(std::uint64_t bytes) {
  if (bytes % kFrameStep != 0 || bytes < kLeastFrameBytes || bytes > kMostFrameBytes) return 0;
  return FrameSizes{1} << (bytes / kFrameStep - 1);
}

}  // namespace gpumux::base
