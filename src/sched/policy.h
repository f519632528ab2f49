// SPDX-License-Identifier: Apache-2.0
// In which order units of one priority that wait for a GPU get it. A policy is stateless: all it knows is in what it is
// handed.
//
// fifo: the unit that asked first goes first.
//
// fair: weighted GPU time. The unit that has had the least time for its weight goes first. A revoked seat is not in the
// queue while it drains, so choosing the least at each switch is not enough: of two seats, each switch would take the
// other one, whatever the weights. So a holder whose quantum is over goes on until its virtual time has caught up with
// the waiter's. A seat of weight 3 then keeps the GPU about three quanta at a time against a seat of weight 1, without
// a switch in between.
#pragma once

#include <cstdint>
#include <limits>

#include "sched/events.h"

namespace gpumux::sched {

// A policy's view of one unit (a seat, or a gang) on one GPU, whether it waits or holds.
struct PolicyView {
  std::int64_t virtual_time = 0;  // ns held so far / weight, as of now
  std::uint32_t weight = 1;
  TimePoint requested{};
};

// Smallest first. Equal ranks go by time of request, then by seat.
inline std::int64_t rank(PolicyKind policy, const PolicyView& waiter) {
  return policy == PolicyKind::kFair ? waiter.virtual_time : 0;
}

// A holder whose quantum is over may go on for this long although `waiter` waits for it. Zero: it goes now.
inline Duration goes_on_for(PolicyKind policy, const PolicyView& holder, const PolicyView& waiter) {
  const std::int64_t behind = waiter.virtual_time - holder.virtual_time;
  if (policy == PolicyKind::kFifo || behind <= 0) return Duration::zero();
  const auto weight = static_cast<std::int64_t>(holder.weight);
  if (behind > std::numeric_limits<std::int64_t>::max() / weight) return Duration::max();
  return Duration(behind * weight);
}

}  // namespace gpumux::sched
