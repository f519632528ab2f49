// SPDX-License-Identifier: Apache-2.0
// What the lease core tells the residency planner: whose turn it is, and whose it will be (LeaseCore::turns).
#pragma once

#include "sched/events.h"

namespace gpumux::sched {

// Which seat uses a GPU when, as far as it can be told. The residency planner goes by this.
enum class TurnKind {
  kHolding,
  kHeldBack /* its turn is over, and its work has not ended: its memory stays */,
  kNext,
  kWaiting,
  kLeaving /* revoked or draining, and waits again only after that */,
  kIdle,
  kSuspended /* and drained: it has none */
};
struct Turn {
  SeatId seat;
  TurnKind kind = TurnKind::kIdle;
  TimePoint ends = TimePoint::max();  // of a holder that another seat waits for: when its time is over, as it looks now
  bool operator==(const Turn&) const = default;
};

}  // namespace gpumux::sched
