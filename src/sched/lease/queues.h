// SPDX-License-Identifier: Apache-2.0
// Which units wait, which of them have GPUs reserved, and what changes their order. Private to src/sched.
//
// The queues themselves are in the shapes (shapes.h). `Books` sorts them, because what it charges changes the order.
#pragma once

#include "sched/lease/books.h"
#include "sched/lease/part.h"
#include "sched/lease/reservations.h"
#include "sched/lease/roster.h"
#include "sched/lease/units.h"

namespace gpumux::sched {

class Queues : Part {
 public:
  Queues(Common& common, const Roster& roster, Books& books) : Part(common), roster_(roster), books_(books) {}

  // ---- queues.cc ----
  // Puts the unit into its queue if a seat of it wants and it may wait. A unit that has spent an allowance freezes
  // whether it wants or not. Otherwise it would not be frozen if it asked a moment later.
  void admit(Unit& unit);
  // REQUIRES: it may wait.
  void enqueue(Unit& unit);
  // Nothing happens if it does not wait.
  void dequeue(Unit& unit);

  // ---- standing.cc: ageing of priorities, caps ----
  // Its timer has fired: it has waited for priority_ageing.
  void lift(Unit& unit);
  // `started` has just been granted. Units that yielded to it stand where they stood. If there are such, or if it was
  // lifted, it is safe for a quantum.
  void stop_yielding_to(Unit& started);
  // A holder's lease ends when the first allowance of its seats is spent.
  void arm_cap(Unit& unit);

  // ---- reservations.cc: when a gang gets its GPUs ----
  Reservations& reservations() { return reservations_; }
  const Reservations& reservations() const { return reservations_; }
  // Makes the reservations anew if anything has changed them.
  void settle_reservations();
  // A gang takes several GPUs at once. On each of them it must wait for a single seat that is ahead of it there and
  // can start. (Among gangs the GPU that is looked at decides: two could be ahead of each other, each on another GPU.)
  bool gives_way(const Unit& gang, const Gpu& here) const;
  // The gang has waited for gang_ageing, or each of its GPUs is free or has to be left. So they may be reserved for it
  // (rules 2 and 3), unless it is obstructed (rule 6).
  void age(Unit& unit);

 private:
  void stop_yielding(Unit& unit);  // standing.cc
  bool freeze(Unit& unit);         // standing.cc

  const Roster& roster_;
  Books& books_;
  Reservations reservations_;
};

}  // namespace gpumux::sched
