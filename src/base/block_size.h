// SPDX-License-Identifier: Apache-2.0
// The unit of evicted memory.
#pragma once

#include <cstdint>

namespace gpumux::base {

inline constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;

// The driver's granularity of physical memory; what is hashed, kept in host memory and skipped as one.
inline constexpr std::uint64_t kBlockBytes = 2 * kMebibyte;

}  // namespace gpumux::base
