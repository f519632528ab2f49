// SPDX-License-Identifier: Apache-2.0
// How far a revocation has got: of each revoked seat, and of its unit.
#pragma once

#include <cstdint>
#include <optional>

#include "sched/events.h"
#include "sched/pace.h"
#include "sched/timers.h"

namespace gpumux::sched {

// How far a revoked seat has got, as far as its tenant has said.
enum class Closing : std::uint8_t {
  kOpen,      // its gate may be open
  kRecalled,  // the same; a Step was taken back, and what the tenant says counts when it has answered that Revoke
  kClosed,    // its gate is closed
  kDrained,   // and its work has finished; it has not been let through since
  kRested,    // the same, of its own accord; its tenant does not know of the revocation
};

// A seat's part in a revocation of its unit, from the Revoke until the lease is over.
struct SeatRevocation {
  explicit SeatRevocation(Seat& seat) : answer(TimerKind::kAnswer, seat) {}

  bool was_ahead = false;            // undrained at the last round of steps
  bool late = false;                 // may exceed the one undrained predecessor: silent, lent, or claimed
  std::uint32_t last_step = 0;       // how many the last Step allowed; 0: none, or the others were behind since
  std::uint32_t revokes_unseen = 0;  // not answered by RevokeSeen
  TimePoint alive_at{};              // its last sign of life, or the first Revoke, which asks for one
  // Until it is asked whether it is there; then until it counts as silent; then until it is killed.
  Timer answer;

  Closing closing = Closing::kOpen;
  std::uint32_t permits = 0;  // submissions that a Step allows, not answered by Stepped nor taken back

  bool gate_closed() const { return closing >= Closing::kClosed; }
  bool drained() const { return closing >= Closing::kDrained; }
  // Its permits are void. A Revoke must follow. Submissions may have been made since the tenant last said that it had
  // drained. It may have said so before it knew of the Revoke. Its reports count again when it has answered.
  void recall() {
    permits = 0;
    closing = Closing::kRecalled;
  }
};

// From the moment when a unit is told to give its lease back until that is over.
struct UnitRevocation {
  UnitRevocation(Unit& unit, StepPace steps, RevokeReason why, TimePoint at)
      : reason(why), began(at), pace(steps), stall(TimerKind::kStall, unit), step(TimerKind::kStep, unit) {}

  RevokeReason reason;
  TimePoint began;
  bool freezes = false;  // work that does not drain in time is frozen. Decided once, so that all members do the same
  std::uint32_t silent = 0;  // seats that are: if any, the unit is passed over
  StepPace pace;
  Timer stall;  // when it counts as stalled
  Timer step;
};

}  // namespace gpumux::sched
