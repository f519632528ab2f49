// SPDX-License-Identifier: Apache-2.0
// In which order those of one priority who wait for a GPU get it. A policy is stateless: all it knows is in what it is
// handed.
#pragma once

#include <compare>
#include <cstdint>

#include "sched/events.h"

namespace gpumux::sched {

// A policy's view of one unit (a seat, or a gang) on one GPU.
struct Waiter {
  std::int64_t virtual_time = 0;  // ns held so far / weight, as of now
  std::uint32_t weight = 1;
  TimePoint requested{};
};

class Policy {
 public:
  virtual ~Policy() = default;
  // Smallest first. Equal ranks go by time of request, then by seat.
  virtual std::int64_t rank(const Waiter& waiter) const = 0;
  // A holder whose quantum is over and whom `waiter` waits for may go on for this long before it must yield. Zero: it
  // yields now.
  virtual Duration goes_on_for(const Waiter& holder, const Waiter& waiter) const = 0;
};

const Policy& policy_of(PolicyKind kind);
const Policy& fair_policy();
const Policy& fifo_policy();

}  // namespace gpumux::sched
