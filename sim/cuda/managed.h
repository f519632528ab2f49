// SPDX-License-Identifier: Apache-2.0
// Facts about managed memory: where a program prefers its pages to be, and where it last prefetched them to.
//
// Managed memory has one copy here, in host memory, and nothing moves. A program, or a library between it and the
// driver, can see its requests all the same: cuMemRangeGetAttribute tells them, as in a real driver.
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
  // The fact that holds for all pages that the range touches; type invalid: none, or not the same one for all.
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
