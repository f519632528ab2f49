// SPDX-License-Identifier: Apache-2.0
// The units in which memory is counted, moved and given away. docs/decisions/0008 weighs them.
#pragma once

#include <cstdint>

#include "base/block_size.h"

namespace gpumux::pager {

using base::kBlockBytes;
using base::kMebibyte;

// One physical handle: what is evicted, handed on and restored as one. Each handle of any size costs the driver about
// 120 us in all (H100: create 20, map 5, access 36, unmap 24, release 35). Copying 64 MiB takes 1.2 ms. Large
// allocations have larger chunks. So evicting 20 GiB without a copy (all of it unchanged) takes under a twentieth of
// the time of copying it.
inline constexpr std::uint64_t kChunkBytes = 64 * kMebibyte;
inline constexpr std::uint64_t kLargeChunkBytes = 128 * kMebibyte;
inline constexpr std::uint64_t kLargeRangeBytes = 1024 * kMebibyte;

constexpr std::uint64_t chunk_bytes_for(std::uint64_t range_bytes) {
  return range_bytes < kLargeRangeBytes ? kChunkBytes : kLargeChunkBytes;
}

// Allocations up to this size share blocks, as the driver's own do (580.159: 1 MiB is packed, one byte more is not),
// at this alignment.
inline constexpr std::uint64_t kLargestPackedBytes = kMebibyte;
inline constexpr std::uint64_t kPackingBytes = 512;

// Rows of cuMemAllocPitch begin at multiples of this, as the driver's do.
inline constexpr std::uint64_t kPitchBytes = 512;

constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t step) { return (bytes + step - 1) / step * step; }

}  // namespace gpumux::pager
