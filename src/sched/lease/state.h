// SPDX-License-Identifier: Apache-2.0
// The lease core's state: one function per event, and the parts that the events go to. Private to src/sched: all other
// folders see lease_core.h.
//
// An event puts the GPUs that it changes on the agenda. Settler::settle() then brings those to rest. Counters replace
// scans. Each seat has a *place* on its GPU (holding, blocking, overlapping), and each GPU counts its places by kind of
// lease. check_invariants() counts again and compares.
//
// README.md says what each class owns, and where a decision is made. order.h has the rules of the order; order.h,
// view.cc and invariants.cc change nothing.
#pragma once

#include "sched/lease/books.h"
#include "sched/lease/gangs.h"
#include "sched/lease/grants.h"
#include "sched/lease/part.h"
#include "sched/lease/queues.h"
#include "sched/lease/revocations.h"
#include "sched/lease/roster.h"
#include "sched/lease/settler.h"

namespace gpumux::sched {

struct LeaseCore::State {
  // An event that makes no sense changes nothing. In lease_core.cc, or the file of the event's subject.
  void on(const GpuAdded& e);
  void on(const SettingsChanged& e);
  void on(const GrantsHeld& e);
  void on(const GrantsAllowed& e);
  void on(const TenantConnected& e);
  void on(const TenantGone& e);
  void on(const GangJoined& e);
  void on(const SeatOpened& e);
  void on(const StandingChanged& e);
  void on(const SeatClaimed& e);
  void on(const SeatClosed& e);
  void on(const SeatsSuspended& e);
  void on(const Requested& e);
  void on(const RevokeSeen& e);
  void on(const GateClosed& e);
  void on(const Drained& e);
  void on(const CannotFreeze& e);
  void on(const Idling& e);
  void on(const MemoryNeed& e);
  void on(const MemoryExpected& e);
  void on(const TimePassed& e);

  void fire(Timer& timer);
  void settle_suspended(Unit& unit);
  void rearm(Gpu& gpu, const GpuSettings& before);

  Common common;
  Roster roster;
  // Each calls only those above it.
  Books books{common};
  Queues queues{common, roster, books};
  Grants grants{common, books, queues};
  Revocations revocations{common, roster, books, queues, grants};
  Gangs gangs{common, roster, books, queues, grants, revocations};
  Settler settler{common, roster, queues, grants, revocations};
};

}  // namespace gpumux::sched
