// SPDX-License-Identifier: Apache-2.0
// What a pager says of itself, in bytes unless named otherwise.
#pragma once

#include <array>
#include <cstdint>

#include "base/frame_sizes.h"
#include "pager/ranges.h"

namespace gpumux::pager {

// Since the pager was made; only grows.
struct Moved {
  std::uint64_t out = 0;             // copied to host memory
  std::uint64_t in = 0;              // copied from it
  std::uint64_t saved_clean = 0;     // evicted without a copy: unchanged since restored
  std::uint64_t saved_constant = 0;  // evicted without a copy: one value all over
  std::uint64_t handed_over = 0;     // restored into memory that another seat gave
  std::uint64_t discarded = 0;       // evicted without a copy on request: the context was broken
  std::uint64_t verified_blocks = 0;
  std::uint64_t verify_failures = 0;  // blocks that a hash would have lost; they were copied
  std::uint64_t failures = 0;         // driver calls that failed in jobs
};

// Now.
struct Counters {
  std::uint64_t allocations = 0;                        // a number
  std::uint64_t allocated = 0;                          // what the program asked for
  std::uint64_t resident = 0;                           // live ranges' physical memory on the device
  std::uint64_t evicted = 0;                            // live ranges' memory that is not there
  std::uint64_t reusable = 0;                           // freed, still on the device
  std::uint64_t stuck = 0;                              // on the device because the driver did not take it back
  std::array<std::uint64_t, kPinReasons> unpageable{};  // part of `resident`, by its first reason
  std::uint64_t host_borrowed = 0;
  std::uint64_t host_used = 0;
  std::uint64_t clean_copies = 0;       // part of host_used: of blocks that are resident
  base::FrameSizes evicted_frames = 0;  // sizes of chunks that could be restored into frames
  Moved moved;

  // Physical memory of the device that this pager has.
  std::uint64_t on_device() const { return resident + reusable + stuck; }
};

}  // namespace gpumux::pager
