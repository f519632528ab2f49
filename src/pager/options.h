// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/abi.h"
#include "pager/mover_link.h"
#include "pager/sizes.h"

namespace gpumux::pager {

// How one seat's pager is set up. All of it stays as it is.
struct Options {
  cuda::CUdevice device = 0;
  // The way to the node's mover; must outlive the pager. Null: there is none, and no memory can be evicted.
  MoverLink* mover = nullptr;
  // Freed memory kept mapped for the next allocation of the same size. It counts as used; an eviction takes it first.
  // The amount is a guess.
  std::uint64_t reuse_bytes = 2048 * kMebibyte;
  // Of physical handles, a multiple of 2 MiB; 0: by the size of the range (sizes.h). Tests have small ones.
  std::uint64_t chunk_bytes = 0;
};

}  // namespace gpumux::pager
