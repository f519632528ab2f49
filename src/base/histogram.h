// SPDX-License-Identifier: Apache-2.0
// How often durations of each magnitude occurred: percentiles in a few hundred bytes, whatever was counted.
//
// Buckets are four to the octave, from a microsecond to a day. So a percentile is at most a quarter above the truth and
// never below it. Shorter and longer durations count in the first and last bucket. No floating point, no allocation.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/clock.h"

namespace gpumux::base {

class DurationHistogram {
 public:
  void add(Duration duration) {
    std::uint32_t& count = counts_[bucket_of(duration)];
    if (count != std::numeric_limits<std::uint32_t>::max()) ++count;
    longest_ = std::max(longest_, duration);
  }

  // The least duration that `thousandths` of all were not above, as far as the buckets tell; zero: there were none.
  Duration percentile(std::uint32_t thousandths) const {
    std::uint64_t all = 0;
    for (const std::uint32_t count : counts_) all += count;
    const std::uint64_t wanted = std::max<std::uint64_t>((all * thousandths + 999) / 1000, 1);
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < kBuckets; ++i) {
      seen += counts_[i];
      if (seen >= wanted) return std::min(end_of(i), longest_);
    }
    return Duration::zero();
  }

 private:
  static constexpr unsigned kStepBits = 2;      // four to the octave
  static constexpr unsigned kFirstOctave = 10;  // 1.024 us
  static constexpr unsigned kOctaves = 37;      // up to 2^47 ns: 39 hours
  static constexpr std::size_t kBuckets = std::size_t{kOctaves} << kStepBits;

  static std::size_t bucket_of(Duration duration) {
    const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(duration.count(), 0));
    const auto octave = static_cast<unsigned>(std::bit_width(ns | 1)) - 1;
    if (octave < kFirstOctave) return 0;
    const std::uint64_t step = (ns >> (octave - kStepBits)) & ((1u << kStepBits) - 1);
    return std::min<std::size_t>(((octave - kFirstOctave) << kStepBits) + step, kBuckets - 1);
  }
  // The longest duration that counts in it, but for the last one.
  static Duration end_of(std::size_t bucket) {
    if (bucket == kBuckets - 1) return Duration::max();
    const std::size_t next = bucket + 1;
    const auto octave = static_cast<unsigned>(next >> kStepBits) + kFirstOctave;
    const std::uint64_t step = next & ((1u << kStepBits) - 1);
    return Duration(static_cast<std::int64_t>(((std::uint64_t{1} << kStepBits) + step) << (octave - kStepBits)) - 1);
  }

  std::array<std::uint32_t, kBuckets> counts_{};
  Duration longest_{};
};

}  // namespace gpumux::base
