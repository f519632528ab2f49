// SPDX-License-Identifier: Apache-2.0
// Bringing GPUs to rest after an event: which unit goes next, and which must go. Private to src/sched.
#pragma once

#include <vector>

#include "sched/lease/grants.h"
#include "sched/lease/part.h"
#include "sched/lease/queues.h"
#include "sched/lease/revocations.h"
#include "sched/lease/roster.h"
#include "sched/lease/units.h"

namespace gpumux::sched {

class Settler : Part {
 public:
  Settler(Common& common, Roster& roster, Queues& queues, Grants& grants, Revocations& revocations)
      : Part(common), roster_(roster), queues_(queues), grants_(grants), revocations_(revocations) {}

  // Looks at the GPUs on the agenda until each is at rest: modes, whole gangs, loans, grants, revocations. At the end
  // tenants are told of contention.
  void settle();

 private:
  void settle_mode(Gpu& gpu);
  void settle_in_part();
  void settle_loan(Gpu& gpu);  // loans.cc
  void grant_all(Gpu& gpu);
  Unit* next_on(Gpu& gpu);
  void preempt(Gpu& gpu);
  void preempt_for(Unit& waiter);  // reservations.cc
  void revoke_for(Unit& waiter, Unit& holder, const Gpu& gpu);
  void note_return(Unit& waiter, const Unit& holder) const;  // paged_turns.cc
  void arm_run(Unit& unit);

  Roster& roster_;
  Queues& queues_;
  Grants& grants_;
  Revocations& revocations_;
  std::vector<QueueEntry> heads_;  // of preempt(), kept so that it does not allocate each time
};

}  // namespace gpumux::sched
