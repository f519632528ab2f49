// SPDX-License-Identifier: Apache-2.0
// Suspended seats have no lease until they are resumed: the seats of a job that stands still.
//
// A unit with a suspended seat is in no queue, with one exception (below). No unit waits for it, and nothing is kept
// free for it. Its seats' requests are remembered for later. If it holds, it is revoked as soon as it may be. A gang is
// granted whole or not at all. So one suspended member suspends all of it, members of other runs too: their collectives
// would spin for a partner that cannot come.
//
// A drained suspended seat counts for nothing: not for modes, order, bounds on queued work, or gains. Its process may
// be frozen then and read nothing. So the core tells it nothing before it is resumed.
//
// Until it has drained it is like any other whose lease is being taken back. Its gang may have to be opened again. Its
// process may be frozen only when it has drained.
//
// Work that is frozen stays so if the seat's memory can leave the GPU all the same. Otherwise it must end. A single
// seat's library lets it drain behind the closed gate. The kernels of a gang may wait for each other's submissions. So
// such a gang gets another turn, which is revoked at once. Exception: the process of one of its seats may stand still
// already.
#include <algorithm>

#include "sched/lease/state.h"

namespace gpumux::sched {

void LeaseCore::State::on(const SeatsSuspended& e) {
  for (const SeatId id : e.seats) {
    Seat* const seat = roster.seat_of(id);
    if (seat == nullptr || is_suspended(*seat) == e.are_suspended) continue;
    Unit& unit = *seat->unit;
    queues.dequeue(unit);
    if (e.are_suspended) {
      // From now on it does not wait for the GPU.
      if (seat->wants_since) seat->waited += common.now - *seat->wants_since;
      seat->keeps_place = false;
      unit.lifted = false;
    } else if (seat->wants_since) {
      seat->wants_since = common.now;  // it competes as a seat that asks now
    }
    seat->suspension = e.are_suspended ? Suspension::kDrains : Suspension::kNone;
    grants.note_in_part(unit);
    grants.seats_changed(*seat->gpu);
    if (!is_suspended(*seat)) grants.tell_contention(*seat);  // a suspended seat is not told of changes
    queues.admit(unit);
    common.agenda.touch(unit);
  }
}

// Whether it needs a turn may have changed.
void LeaseCore::State::settle_suspended(Unit& unit) {
  if (!is_suspended(unit)) return;
  queues.dequeue(unit);
  queues.admit(unit);
}

}  // namespace gpumux::sched
