// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/kernel_hash.h"

#include <cstring>

namespace gpumux::sim {
namespace {

constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;
constexpr std::uint64_t kFactorsStart = std::uint64_t{1} << 20;  // in the sequence of keys

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

__extension__ using Wide = unsigned __int128;

}  // namespace

HashKeys::HashKeys(std::uint64_t seed_low, std::uint64_t seed_high) {
  const auto key = [&](std::uint64_t index) {
    return mix(mix(seed_low + (index + 1) * 0x9e3779b97f4a7c15u) ^ seed_high);
  };
  for (std::size_t i = 0; i < sizeof words_ / 8; ++i) {
    const std::uint64_t pair = key(i);
    std::memcpy(words_ + 2 * i, &pair, sizeof pair);
  }
  for (std::size_t sum = 0; sum < kColumns * kLanes; ++sum) {
    for (std::size_t which = 0; which < 2; ++which) {
      for (std::size_t half = 0; half < 2; ++half)
        factors_[which][2 * sum + half] = key(kFactorsStart + 2 * (2 * sum + which) + half) & kPrime;
    }
  }
}

HashedBlock HashKeys::hash(const std::byte* block) const {
  std::uint64_t sums[kColumns][kLanes] = {};
  const auto* quad = reinterpret_cast<const std::uint32_t*>(block);
  const std::uint32_t first = quad[0];
  std::uint32_t different = 0;
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t column = 0; column < kColumns; ++column, quad += 4) {
      different |= (quad[0] ^ first) | (quad[1] ^ first) | (quad[2] ^ first) | (quad[3] ^ first);
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const std::uint32_t* k = words_ + 4 * (row + lane);
        sums[column][lane] += std::uint64_t{quad[0] + k[0]} * (quad[1] + k[1]);
        sums[column][lane] += std::uint64_t{quad[2] + k[2]} * (quad[3] + k[3]);
      }
    }
  }
  std::uint64_t total[2] = {};
  for (std::size_t which = 0; which < 2; ++which) {
    Wide all = 0;  // 2048 products of 93 bits
    for (std::size_t i = 0; i < 2 * kColumns * kLanes; ++i) {
      const std::uint64_t sum = sums[i / 2 / kLanes][i / 2 % kLanes];
      all += Wide{factors_[which][i]} * static_cast<std::uint32_t>(i % 2 == 0 ? sum : sum >> 32);
    }
    total[which] = static_cast<std::uint64_t>(all % kPrime);
  }
  std::uint64_t left = total[0] | (total[1] << 61);
  std::uint64_t right = total[1] >> 3;
  left ^= mix(right + 0x8ebc6af09c88c6e3u);
  right ^= mix(left + 0x589965cc75374cc3u);
  left ^= mix(right + 0x1d8e4e27c47d124fu);
  return HashedBlock{left, right, first, different == 0 ? 1u : 0u, 0};
}

}  // namespace gpumux::sim
