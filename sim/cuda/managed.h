// SPDX-License-Identifier: Apache-2.0
// What has been said about managed memory: where its pages are preferred to be, and where they were last prefetched to.
//
// Managed memory has one copy here, in host memory, and nothing moves. What a program (or who stands between it and the
// driver) has asked for can be seen all the same, through cuMemRangeGetAttribute, as a real driver answers it.
#pragma once

#include <cstdint>
#include <mutex>

#include "base/interval_map.h"
#include "cuda/abi.h"

namespace gpumux::sim {

class ManagedPlaces {
 public:
  enum class Fact : std::uint8_t { kPreferred, kPrefetched };

  // Of all pages that the range touches, from now on. Type kInvalid: nothing is said of them any more.
  void set(Fact fact, std::uint64_t address, std::uint64_t bytes, cuda::CUmemLocation place);
  // What is said of all pages that the range touches; type invalid: nothing, or not the same of all.
  cuda::CUmemLocation get(Fact fact, std::uint64_t address, std::uint64_t bytes) const;
  // It is freed.
  void forget(std::uint64_t address, std::uint64_t bytes);

 private:
  using Pieces = base::IntervalMap<cuda::CUmemLocation>;

  Pieces& pieces_of(Fact fact) { return fact == Fact::kPreferred ? preferred_ : prefetched_; }
  const Pieces& pieces_of(Fact fact) const { return fact == Fact::kPreferred ? preferred_ : prefetched_; }

  mutable std::mutex mutex_;
  Pieces preferred_;
  Pieces prefetched_;
};

}  // namespace gpumux::sim
