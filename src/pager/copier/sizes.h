// SPDX-License-Identifier: Apache-2.0
// The units in which content is hashed, copied and kept.
#pragma once

#include <cstdint>

namespace gpumux::pager {

inline constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;

// The driver's granularity of physical memory; what is hashed, kept in host memory and skipped as one.
inline constexpr std::uint64_t kBlockBytes = 2 * kMebibyte;

// Host memory is borrowed in chunks of this size: the bus is at full speed from 32 MiB on (55.1 of 55.4 GB/s).
inline constexpr std::uint64_t kHostChunkBytes = 32 * kMebibyte;

}  // namespace gpumux::pager
