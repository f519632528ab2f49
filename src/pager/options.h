// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cuda/abi.h"
#include "pager/copier/block_hash.h"
#include "pager/copier/host_memory.h"
#include "pager/copier/mover_link.h"
#include "pager/frames.h"
#include "pager/sizes.h"

namespace gpumux::pager {

// How one seat's pager is set up. All of it stays as it is.
struct Options {
  cuda::CUdevice device = 0;
  // The lender; must outlive the pager. Null: only what needs no copy can be evicted.
  HostMemory* host_memory = nullptr;
  // The way to the node's mover; must outlive the pager. Null: there is none, and the pager copies by itself.
  MoverLink* mover = nullptr;
  // Memory that is evicted for other seats, and restored, goes through it. It must outlive the pager. Null: memory is
  // freed, and made.
  Frames* frames = nullptr;
  // Freed memory kept mapped for the next allocation of the same size. It counts as used; an eviction takes it first.
  // The amount is a guess.
  std::uint64_t reuse_bytes = 2048 * kMebibyte;
  // Of physical handles, a multiple of 2 MiB; 0: by the size of the range (sizes.h). Tests have small ones.
  std::uint64_t chunk_bytes = 0;
  // Look for unchanged and constant blocks before copying.
  bool hashing = true;
  // Compare every block that is not copied with what it is believed to be, byte by byte. Slow.
  bool verify = false;
  // The seed of the block hashes; all zero: one is drawn.
  HashSeed seed;
};

}  // namespace gpumux::pager
