// SPDX-License-Identifier: Apache-2.0
// The hash that gpumux's pager computes on the GPU, for the simulated one. It is the function of
// src/mover/copier/block_hash_function.h, written a second time: the simulated driver knows nothing of the pager. Its
// order is the one in which a CPU is fast at it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumux::sim {

// As the kernel writes it.
struct HashedBlock {
  std::uint64_t low;
  std::uint64_t high;
  std::uint32_t first_word;
  std::uint32_t constant;  // 1: all words are equal
  std::uint64_t zero;
};

// The keys that a seed stands for.
class HashKeys {
 public:
  HashKeys(std::uint64_t seed_low, std::uint64_t seed_high);
  // Of 2 MiB, aligned to 16 bytes. ThreadSanitizer does not look at these reads. A program may write GPU memory while
  // it is hashed, as on a real GPU, and the pager then discards the hash.
  [[gnu::no_sanitize_thread]] HashedBlock hash(const std::byte* block) const;

 private:
  static constexpr std::size_t kColumns = 256;  // quads side by side
  static constexpr std::size_t kRows = 512;     // quads below each other
  static constexpr std::size_t kLanes = 4;

  std::uint32_t words_[4 * (kRows + kLanes - 1)];
  std::uint64_t factors_[2][2 * kColumns * kLanes];
};

}  // namespace gpumux::sim
