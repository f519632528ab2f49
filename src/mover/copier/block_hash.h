// SPDX-License-Identifier: Apache-2.0
// The hash of a 2 MiB block: its value, the seed, and the code for the GPU.
#pragma once

#include <compare>
#include <cstdint>

namespace gpumux::mover {

// 128 bits. Two different blocks have the same hash with a probability under 2^-121; see block_hash_function.h.
struct BlockHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  constexpr bool operator==(const BlockHash&) const = default;
};

// Hashes with different seeds have nothing to do with each other.
struct HashSeed {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  // From the system's random numbers. Each process draws its own, so that no program's data can depend on it.
  static HashSeed random();
};

// The kernel's name in every image.
inline constexpr char kBlockHashKernel[] = "gpumux_hash_blocks";

// Machine code that a GPU of this compute capability runs; null: none here, the PTX may do.
const void* block_hash_code(int major, int minor);
// PTX for everything since the oldest supported architecture; a string.
const void* block_hash_ptx();

}  // namespace gpumux::mover
