// SPDX-License-Identifier: Apache-2.0
// The bytes that a seat reports of its pager.
#pragma once

#include <array>
#include <cstdint>

#include "pager/ranges.h"

namespace gpumux::pager {

// Since the pager was made; only grows.
struct Moved {
  std::uint64_t out = 0;             // copied to host memory
  std::uint64_t in = 0;              // copied from it
  std::uint64_t saved_clean = 0;     // evicted without a copy: unchanged since restored
  std::uint64_t saved_constant = 0;  // evicted without a copy: one value all over
  std::uint64_t handed_over = 0;     // restored into memory that another seat gave
};

// Now.
struct Counters {
  std::array<std::uint64_t, kPinReasons> unpageable{};  // on the device, pinned: each range by its first reason
  std::uint64_t host_used = 0;     // host memory that holds what is away, or copies of what is on the GPU
  std::uint64_t clean_copies = 0;  // part of host_used: of blocks that are resident
  Moved moved;
};

}  // namespace gpumux::pager
