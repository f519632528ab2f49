// SPDX-License-Identifier: Apache-2.0
// A set of GPUs in two words.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/limits.h"

namespace gpumux::sched {

// A few GPUs, taken lowest first.
class GpuSet {
 public:
  void set(std::uint32_t index) { words_[index / 64] |= std::uint64_t{1} << (index % 64); }
  bool has(std::uint32_t index) const { return (words_[index / 64] >> (index % 64) & 1) != 0; }
  bool empty() const { return (words_[0] | words_[1]) == 0; }
  std::uint32_t take_first() {
    const std::uint32_t word = words_[0] != 0 ? 0 : 1;
    const auto bit = static_cast<std::uint32_t>(std::countr_zero(words_[word]));
    words_[word] &= words_[word] - 1;
    return word * 64 + bit;
  }

 private:
  static_assert(base::kMaxGpus <= 128);
  std::array<std::uint64_t, 2> words_{};
};

}  // namespace gpumux::sched
