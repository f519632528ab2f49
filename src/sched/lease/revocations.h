// SPDX-License-Identifier: Apache-2.0
// Taking leases back: revoking, draining, stalls, silence. Private to src/sched; revocations.cc says how.
#pragma once

#include <vector>

#include "sched/lease/books.h"
#include "sched/lease/grants.h"
#include "sched/lease/part.h"
#include "sched/lease/queues.h"
#include "sched/lease/roster.h"
#include "sched/lease/units.h"

namespace gpumux::sched {

class Revocations : Part {
 public:
  Revocations(Common& common, Roster& roster, Books& books, Queues& queues, Grants& grants)
      : Part(common), roster_(roster), books_(books), queues_(queues), grants_(grants) {}

  // ---- revoking ----
  // REQUIRES: it holds.
  void revoke(Unit& unit, RevokeReason reason);
  // One holding seat of a unit that is in revocation. A resting one has closed its gate and drained already, and is
  // not told.
  void revoke_seat(Seat& seat, RevokeReason reason);
  // A Revoke also asks whether the tenant is there.
  void ask(Seat& seat, RevokeReason reason);
  // Drained unasked. One seat of a gang that goes on rests: its gate is closed, and opens again as soon as it asks.
  void release(Seat& seat);
  // The borrower goes, and keeps its place in the queue: the turn was not its own. Its gate need not be closed before
  // the lender goes on.
  void take_turn_back(Gpu& gpu);  // loans.cc
  // A holder has spent its allowance, or a unit that had spent it has enough again.
  void cap_is_due(Unit& unit);  // standing.cc

  // ---- what a seat in revocation says ----
  // The tenant's agent has said something about a lease that is being revoked.
  void heard(Seat& seat);
  void drained(Seat& seat);
  // After its turn.
  void drained_late(Seat& seat);
  // One of its seats cannot be frozen.
  void must_drain(Unit& unit);
  // When a seat that has answered is asked again. The limit counts from its last sign of life, not from the question.
  // So a seat that stops just after it has answered holds the others up no longer than a seat that never did.
  TimePoint probe_at(const Seat& seat) const;
  // Arms the next opening, or none.
  void progress(Unit& unit);
  // Ends the revocation if all seats have drained, or goes on with it.
  void settle_drains(Unit& unit);
  // The unit's lease is over. All its work is done, or runs on.
  void finish(Unit& unit);
  // A unit that was passed over is so no longer. With the seats that were granted since, its own may be one too many.
  void count_again(Unit& unit);

  // ---- timers ----
  // A gang has been half drained for its pause, and members are opened again for a moment; or that moment is over.
  void open_or_close(Unit& unit);
  // REQUIRES: it is open.
  void close_again(Unit& unit);
  void stalled(Unit& unit);
  // Nothing was heard for a while: it is asked whether it is there. Nothing for the whole silence limit: it, and its
  // gang with it, is passed over.
  void unanswered(Seat& seat);
  // Its work has run on for kill_stalled_after.
  void stuck_too_long(Seat& seat);
  void arm_kill(Seat& seat);

 private:
  void send_revoke(Seat& seat, RevokeReason reason);
  bool may_freeze(const Unit& unit) const;
  void open_again(Seat& seat);
  void report_stall(const Unit& unit);
  void end_undrained(Unit& unit);
  void kill(Tenant& tenant, KillReason reason);
  // partners.cc. Longest wait first.
  std::vector<Unit*> partners_of(const Unit& stalled) const;

  Roster& roster_;
  Books& books_;
  Queues& queues_;
  Grants& grants_;
};

}  // namespace gpumux::sched
