// SPDX-License-Identifier: Apache-2.0
// The units in which content is hashed, copied and kept.
#pragma once

#include <cstdint>

#include "base/block_size.h"

namespace gpumux::mover {

using base::kBlockBytes;
using base::kMebibyte;

// Host memory is borrowed in chunks of this size: the bus is at full speed from 32 MiB on (55.1 of 55.4 GB/s).
inline constexpr std::uint64_t kHostChunkBytes = 32 * kMebibyte;

}  // namespace gpumux::mover
