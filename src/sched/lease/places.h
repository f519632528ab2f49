// SPDX-License-Identifier: Apache-2.0
// The places that seats have on one GPU, counted by kind of lease, and which seats may start while they are there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "sched/events.h"

namespace gpumux::sched {

// A seat's effect on other seats that want its GPU.
enum class Occupancy : std::uint8_t {
  kNone,
  kHolding,
  kBlocking,     // revoked; no other seat may start
  kOverlapping,  // its gate is closed and its work runs out: the next seat may start
};

class Places {
 public:
  // A seat has another place. Seats without a place are not counted.
  void move(LeaseKind kind, Occupancy from, Occupancy to) {
    if (from != Occupancy::kNone) --at(kind, from);
    if (to != Occupancy::kNone) ++at(kind, to);
  }

  std::uint32_t count(LeaseKind kind, Occupancy place) const {
    return counts_[static_cast<std::size_t>(kind)][static_cast<std::size_t>(place)];
  }
  std::uint32_t count(Occupancy place) const {
    return count(LeaseKind::kExclusive, place) + count(LeaseKind::kShared, place);
  }
  // Of revoked seats that have not left yet.
  std::uint32_t leaving() const { return count(Occupancy::kBlocking) + count(Occupancy::kOverlapping); }

  // Among shared leases, a shared one may start at any time; an exclusive one waits until they have drained. Both wait
  // until exclusive leases have closed their gates. While one of these drains, they start only if it is the only one
  // and `overlap` allows it.
  bool can_start(LeaseKind kind, bool overlap) const {
    constexpr auto kExclusive = LeaseKind::kExclusive;
    constexpr auto kShared = LeaseKind::kShared;
    if (count(kExclusive, Occupancy::kHolding) + count(kExclusive, Occupancy::kBlocking) > 0) return false;
    if (count(kExclusive, Occupancy::kOverlapping) > (overlap ? 1u : 0u)) return false;
    if (kind == kShared) return true;
    return count(kShared, Occupancy::kHolding) + count(kShared, Occupancy::kBlocking) +
               count(kShared, Occupancy::kOverlapping) ==
           0;
  }

  friend bool operator==(const Places& a, const Places& b) = default;

 private:
  std::uint32_t& at(LeaseKind kind, Occupancy place) {
    return counts_[static_cast<std::size_t>(kind)][static_cast<std::size_t>(place)];
  }

  std::array<std::array<std::uint32_t, 4>, 2> counts_{};
};

}  // namespace gpumux::sched
