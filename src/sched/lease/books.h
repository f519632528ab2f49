// SPDX-License-Identifier: Apache-2.0
// The books: phases and places of seats, the time that they have had, and where their units stand in the queues for
// it. Private to src/sched.
//
// The books follow decisions and make none. Each change of a seat or of its group's time goes through here. So
// counters, accounts and the order of the queues agree.
#pragma once

#include <cstdint>

#include "sched/lease/part.h"
#include "sched/lease/units.h"

namespace gpumux::sched {

class Books : Part {
 public:
  explicit Books(Common& common) : Part(common) {}

  void set_phase(Seat& seat, SeatPhase phase);
  void set_wants(Seat& seat, bool wants);
  void set_standing(Seat& seat, std::int32_t priority, std::uint32_t weight, std::uint32_t cap);
  static LeaseEpoch next_epoch(Gpu& gpu) { return LeaseEpoch{gpu.next_epoch.value++}; }

  // ---- places on GPUs (Occupancy): what a seat keeps others from ----
  void set_place(Seat& seat, Occupancy place);
  // Where its phase puts it.
  void place(Seat& seat);
  void place(Unit& unit);

  // ---- accounts ----
  // The time since the grant, or since it was charged last. Time in which its unit is passed over costs it nothing:
  // others have the GPU.
  void charge(Seat& seat);
  void charge(Unit& unit);
  // The seats of the group whose work runs on.
  void charge_what_runs_on(const ShareGroup& group);
  // The seat begins to wait. A group has not been idle if a seat of it has a turn, or had one until now.
  void catch_up(Seat& seat);
  // The time that a group had at another priority says nothing about its due among its new equals. It owes them no more
  // than a group that comes back is owed.
  void begin_anew(Seat& seat);
  // Up to now it has been idle, if it has said so: of the lease that it holds it has not used that.
  void settle_idle(Seat& seat) const;
  // To be called before anything that decides whether the seat spends its allowance changes.
  void settle_allowance(Seat& seat) const;
  // Begins a gap, in which a single unit has nothing to do. Only gaps in which the lease was given up are known.
  void begin_gap(const Seat& seat) const;

  // ---- the order of queues ----
  // REQUIRES: the unit waits, and is not in its queue.
  void insert_in_queue(Unit& unit) const;
  // Something that decides the unit's place in the queue has changed. REQUIRES: it is in its queue.
  void requeue(Unit& unit);
  // The GPU's policy has changed: the queues that it orders are sorted anew.
  void rekey(Gpu& gpu);

 private:
  void set_weight(ShareGroup& group, std::uint32_t weight);
  // The group's virtual time has changed: its units that wait, but for this one, have another place in their queues.
  void rerank(const ShareGroup& group, const Unit& but);
};

}  // namespace gpumux::sched
