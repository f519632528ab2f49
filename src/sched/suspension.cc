// SPDX-License-Identifier: Apache-2.0
// Seats that are to have no lease until they are resumed: those of a job that stands still.
//
// A unit with a suspended seat is in no queue: nobody waits for it, nothing is kept free for it, and what its seats ask
// for is remembered for later. If it holds, it is revoked as soon as it may be. A gang is granted whole or not at all,
// so one suspended member suspends all of it, members of other runs too: the collectives of these would spin for a
// partner who cannot come.
//
// Drained, a suspended seat is out of everybody's reckoning: modes, order, bounds on queued work, gains. Its process
// may be frozen then and reads nothing, so nothing is said to it either before it is resumed.
//
// Until it has drained it is like any other whose lease is being taken back. It may have to be let through by steps. If
// it does not drain in time, it gets its lease back and is asked again later (revocation.cc). Its process may be frozen
// only when it has drained.
#include <algorithm>

#include "sched/state.h"

namespace gpumux::sched {

void LeaseCore::State::on(const SeatsSuspended& e) {
  for (const SeatId id : e.seats) {
    Seat* const seat = seat_of(id);
    if (seat != nullptr && !seat->suspended) suspend(*seat);
  }
}

void LeaseCore::State::suspend(Seat& seat) {
  Unit& unit = *seat.unit;
  Gpu& gpu = *seat.gpu;
  dequeue(unit);
  // From now on it does not wait for the GPU.
  if (seat.wants_since) seat.waited += now - *seat.wants_since;
  seat.keeps_place = false;
  unit.lifted = false;
  seat.suspended = true;
  ++unit.suspended;
  if (unit.phase == UnitPhase::kHolding) to_suspend.insert(&unit);
  note_incomplete(unit);
  settle_order(gpu);
  settle_in_flight(gpu);
  agenda.touch(unit);
}

void LeaseCore::State::on(const SeatsResumed& e) {
  for (const SeatId id : e.seats) {
    Seat* const seat = seat_of(id);
    if (seat != nullptr && seat->suspended) resume(*seat);
  }
}

// It competes as one that asks now.
void LeaseCore::State::resume(Seat& seat) {
  Unit& unit = *seat.unit;
  Gpu& gpu = *seat.gpu;
  seat.suspended = false;
  if (--unit.suspended == 0) to_suspend.erase(&unit);
  if (seat.wants_since) seat.wants_since = now;
  note_incomplete(unit);
  settle_order(gpu);
  settle_in_flight(gpu);
  tell_contention(seat);  // what has changed meanwhile it was not told
  if (unit.phase == UnitPhase::kIdle && unit.wanting > 0 && may_queue(unit)) enqueue(unit);
  agenda.touch(unit);
}

bool LeaseCore::State::may_queue(Unit& unit) { return unit.suspended == 0 && !freeze(unit); }

// Whether a member of a unit that holds has no part in that yet.
void LeaseCore::State::note_incomplete(Unit& unit) {
  const auto has_no_part = [](const Seat& seat) { return seat.phase == SeatPhase::kIdle && !seat.suspended; };
  const bool is_incomplete = unit.phase == UnitPhase::kHolding && any_seat(unit, has_no_part);
  if (is_incomplete) {
    incomplete.insert(&unit);
  } else {
    incomplete.erase(&unit);
  }
}

void LeaseCore::State::settle_suspended() {
  for (Unit* unit : std::vector<Unit*>(to_suspend.begin(), to_suspend.end())) {
    revoke_unless_spared(*unit, RevokeReason::kSuspended);
  }
}

}  // namespace gpumux::sched
