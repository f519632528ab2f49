// SPDX-License-Identifier: Apache-2.0
// Suspended seats have no lease until they are resumed: the seats of a job that stands still.
//
// A unit with a suspended seat is in no queue. No unit waits for it, and nothing is kept free for it. Its seats'
// requests are remembered for later. If it holds, it is revoked as soon as it may be. A gang is granted whole or not at
// all. So one suspended member suspends all of it, members of other runs too: their collectives would spin for a
// partner that cannot come.
//
// A drained suspended seat counts for nothing: not for modes, order, bounds on queued work, or gains. Its process may
// be frozen then and read nothing. So the core tells it nothing before it is resumed.
//
// Until it has drained it is like any other whose lease is being taken back. It may have to be let through by steps. If
// it does not drain in time, it gets its lease back and is asked again later (revocations.cc). Its process may be
// frozen only when it has drained.
//
// Work that was frozen before must drain, too, so that its memory can leave. A single seat's library sees to that. A
// gang whose ranks wait for each other needs its GPUs for it: it returns, as if its revocation had stalled.
#include <algorithm>

#include "sched/state.h"

namespace gpumux::sched {

void LeaseCore::State::on(const SeatsSuspended& e) {
  for (const SeatId id : e.seats) {
    Seat* const seat = roster.seat_of(id);
    if (seat == nullptr || seat->suspended == e.are_suspended) continue;
    Unit& unit = *seat->unit;
    if (e.are_suspended) {
      queues.dequeue(unit);
      // From now on it does not wait for the GPU.
      if (seat->wants_since) seat->waited += common.now - *seat->wants_since;
      seat->keeps_place = false;
      unit.lifted = false;
    } else if (seat->wants_since) {
      seat->wants_since = common.now;  // it competes as a seat that asks now
    }
    seat->suspended = e.are_suspended;
    grants.note_in_part(unit);
    grants.seats_changed(*seat->gpu);
    if (!seat->suspended) grants.tell_contention(*seat);  // a suspended seat is not told of changes
    queues.admit(unit);
    common.agenda.touch(unit);
  }
  for (const SeatId id : e.seats) {
    if (const Seat* const seat = roster.seat_of(id)) revocations.return_if_frozen(*seat->unit);
  }
}

}  // namespace gpumux::sched
