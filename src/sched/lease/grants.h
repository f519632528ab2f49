// SPDX-License-Identifier: Apache-2.0
// Granting leases, and what tenants are told of them. Private to src/sched.
#pragma once

#include "sched/lease/books.h"
#include "sched/lease/part.h"
#include "sched/lease/queues.h"
#include "sched/lease/units.h"

namespace gpumux::sched {

class Grants : Part {
 public:
  Grants(Common& common, Books& books, Queues& queues) : Part(common), books_(books), queues_(queues) {}

  // ---- whether any lease is granted ----
  void hold_until(TimePoint until);
  void allow();
  bool are_held() const { return are_held_; }

  // ---- leases ----
  // REQUIRES: the unit waits, and its GPUs can start it.
  void start(Unit& unit);
  // Members that have joined a unit that holds.
  void grant_joined(Unit& unit);
  void announce(Seat& seat);
  // A holder's lease becomes one of the other kind, in place: to the tenant a new grant.
  void convert(Unit& unit, Gpu& gpu, LeaseKind kind);
  // Units that hold, but not as a whole: see holds_in_part().
  const UnitSet& in_part() const { return in_part_; }
  void note_in_part(Unit& unit);
  void forget_in_part(Unit& unit) { in_part_.erase(&unit); }

  // ---- paged_turns.cc and loans.cc: the quantum of a holder whose memory comes ----
  // If it stands still, and what it waited for is there.
  void resume_quantum(Unit& unit);
  // The unit lends no turn any more. A unit that has borrowed it is a holder like any other from now on.
  void end_loan(Unit& unit);

  // ---- what tenants are told ----
  void tell_contention(Seat& seat);
  void tell_contention(Unit& unit, bool always);
  // The policy that the waiting units are sorted by, and how much work each seat may have queued. To be called when
  // the GPU's seats, which of them are suspended or can be frozen, its mode or its settings have changed.
  void seats_changed(Gpu& gpu);
  void heads_up(Gpu& gpu);

 private:
  void grant_seat(Seat& seat);
  void begin_hold(Unit& unit);  // paged_turns.cc

  Books& books_;
  Queues& queues_;
  UnitSet in_part_;
  bool are_held_ = false;
  Timer held_timer_{TimerKind::kGrantsHeld};
};

}  // namespace gpumux::sched
