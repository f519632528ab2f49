// SPDX-License-Identifier: Apache-2.0
// Taking leases back: an attempt, which may fail.
//
// The problem. A revoked seat stops submitting and waits until its GPU is idle. Three kinds of programs never get
// there. (1) A gang that was revoked between the submissions of its ranks. The collective kernel of a rank that is
// ahead spins on its GPU for a rank that is behind. That rank's next submission waits at the closed gate. (2) A kernel
// that waits for something that only its own process can do, from behind the gate. (3) A process that is stopped, and
// says nothing at all. A scheduler that just waits hangs them and all seats behind them.
//
// The idea. For (1): once all gates are closed, the GPUs tell which members are behind. The core need not look into the
// collectives. Members with undrained work wait for another member. Only the members that have drained can be waited
// for. So the gates of those are opened again, until the others have drained, for a moment at most. The moments double.
// If a member has gone too far in one of them, it is ahead itself: then it has not drained, and a member for which
// others were opened has. After such a swap all gates are opened for a shorter moment, for the ranks go on differently
// then. And the pause before the next moment is twice as long, so that a member whose kernels are merely long drains in
// a pause.
//
// For (2), and for a gang that never meets: the unit counts as drained, which is reported. For (3): after a while the
// seat is passed over. In both cases its work may run together with other seats' work, which costs speed and harms none
// of them. So every turn ends, whatever a program does, and what its work waits for comes with a later turn: its own,
// or its partner's.
//
// Where the driver can, work that does not drain at once is frozen instead (may_freeze), and none of this happens.
//
// Every lease has a new epoch. Messages about an earlier lease that are still on their way then name an old epoch, and
// are ignored. So messages may cross without harm.
#include "sched/lease/revocations.h"

#include <algorithm>
#include <utility>

#include "sched/lease/order.h"

namespace gpumux::sched {
namespace {

// A seat that drains for long is asked whether it is there after this part of the silence limit. The rest of the limit
// is left for the answer. Each question costs it two messages and a barrier.
constexpr std::int64_t kProbesPerSilenceLimit = 4;
// More partners than this tell the operator nothing.
constexpr std::size_t kMostPartners = 16;

// Work that finishes within this is drained, and other work frozen. The driver takes 0.5 ms to take kernels off an
// H200, and 0.4 ms to bring them back (experiment 030). So a turn that has ended is best drained if that takes no
// longer than both. A newcomer of higher priority waits for the freeze and for this.
constexpr Duration kDrainsFor = std::chrono::milliseconds(1);
constexpr Duration kUrgentDrainsFor = std::chrono::microseconds(50);
// All members of a gang are frozen within this, unless one of them drains. A guess: a freeze takes 1.3 ms, and its
// thread may have to wait for a processor.
constexpr Duration kFreezePatience = std::chrono::milliseconds(100);

// Whether no seat of another unit may submit where this unit's seats would. A seat that was silent, or came back too
// late with a claim, may find its GPU given away.
bool is_alone(const Unit& unit) {
  return !any_seat(unit, [&](const Seat& seat) {
    const auto is_in_the_way = [&](const Seat* other) {
      const bool has_gpu = other->place == Occupancy::kHolding || other->place == Occupancy::kBlocking;
      const bool is_exclusive = other->kind == LeaseKind::kExclusive || seat.kind == LeaseKind::kExclusive;
      return other->unit != &unit && has_gpu && is_exclusive;
    };
    return std::any_of(seat.gpu->seats.begin(), seat.gpu->seats.end(), is_in_the_way);
  });
}

}  // namespace

// ---- revoking -----------------------------------------------------------------------------------

void Revocations::revoke(Unit& unit, RevokeReason reason) {
  unit.phase = UnitPhase::kRevoking;
  unit.begin_revocation(reason, now());
  unit.revocation->freezes = may_freeze(unit);
  grants_.forget_in_part(unit);
  timers().stop(unit.run);
  queues_.reservations().units_changed();
  for (Seat* seat : unit.seats) {
    if (seat->phase == SeatPhase::kHolding) revoke_seat(*seat, reason);
  }
  grants_.end_loan(unit);
  for (Seat* seat : unit.seats) {
    // A turn that was of no use does not count: it costs nothing, and the next one comes as if this had not been.
    seat->keeps_place = reason == RevokeReason::kMemory;
    if (reason == RevokeReason::kMemory) seat->charged_to = now();
  }
  books_.charge(unit);  // before others of its groups are compared with the next ones
  books_.place(unit);
  timers().arm(unit.revocation->stall, after(now(), strictest(unit, &GpuSettings::stall_timeout)));
  progress(unit);
  agenda().touch(unit);
  for (const UnitGpu& on_gpu : unit.gpus) {
    // If the next unit waits only for a closed gate, its grant is near.
    const Gpu& gpu = *on_gpu.gpu;
    if (unit.single() && gpu.settings.overlap && gpu.places.count(LeaseKind::kExclusive, Occupancy::kOverlapping) == 0)
      agenda().hand_over(gpu);
  }
}

void Revocations::revoke_seat(Seat& seat, RevokeReason reason) {
  const bool rested = rests(seat);
  if (rested) books_.settle_idle(seat);
  seat.idleness.reset();  // it may have found work since
  SeatRevocation& revocation = seat.revocation.emplace(seat);
  revocation.late = seat.gpu->loan.has_value();
  if (rested) {
    revocation.closing = Closing::kRested;
    return books_.set_phase(seat, SeatPhase::kDraining);
  }
  if (!seat.stuck) seat.stuck.emplace(seat, now());
  books_.set_phase(seat, SeatPhase::kRevoked);
  ask(seat, reason);
}

void Revocations::ask(Seat& seat, RevokeReason reason) {
  seat.revocation->alive_at = now();
  send_revoke(seat, reason);
  timers().arm(seat.revocation->answer, after(now(), seat.gpu->settings.silence_limit));
}

void Revocations::send_revoke(Seat& seat, RevokeReason reason) {
  Limit<Duration> drains_for;
  UnitRevocation& revocation = *seat.unit->revocation;
  // A seat by itself that drains for long is asked again. The setting may allow it by then.
  if (seat.unit->single() && !revocation.freezes) revocation.freezes = may_freeze(*seat.unit);
  if (revocation.freezes) {
    if (!is_frozen(seat)) seat.freezing.work = Freezing::Work::kMay;
    drains_for = reason == RevokeReason::kUrgent ? kUrgentDrainsFor : kDrainsFor;
  }
  command(Revoke{seat.id, seat.epoch, reason, drains_for});
}

// A gang of which only a part could be frozen has overrun.
bool Revocations::may_freeze(const Unit& unit) const {
  return can_freeze(unit) && (unit.single() || !has_overrun(unit));
}

void Revocations::drained(Seat& seat) {
  if (seat.revocation->drained()) return;
  seat.revocation->closing = Closing::kDrained;
  seat.stuck.reset();
  books_.set_phase(seat, SeatPhase::kDraining);
  timers().stop(seat.revocation->answer);
  settle_drains(*seat.unit);
}

void Revocations::drained_late(Seat& seat) {
  if (!seat.stuck) return;
  books_.charge(*seat.unit);
  seat.charged_to = {};  // it had no turn: if it asks now, it has been idle
  seat.stuck.reset();
  agenda().touch(*seat.unit);
}

void Revocations::must_drain(Unit& unit) {
  unit.revocation->freezes = false;
  books_.place(unit);
  progress(unit);
}

void Revocations::settle_drains(Unit& unit) {
  if (!is_undrained(unit)) return finish(unit);
  const auto was_ahead = [](const Seat& seat) { return seat.revocation && seat.revocation->was_ahead; };
  const auto is_waited_for = [&](const Seat& seat) { return was_ahead(seat) && is_undrained(seat); };
  if (unit.revocation->is_open && any_seat(unit, was_ahead) && !any_seat(unit, is_waited_for)) return close_again(unit);
  progress(unit);
}

void Revocations::finish(Unit& unit) {
  grants_.end_loan(unit);
  timers().stop(unit.run);
  grants_.forget_in_part(unit);
  if (unit.revocation) {
    const UnitRevocation& revocation = *unit.revocation;
    for (const UnitGpu& on_gpu : unit.gpus) {
      const Seat& lead = *on_gpu.lead;
      // A member that joined since has no part in this: it was not there, and a turn that is lent there goes on.
      const bool is_late = lead.revocation ? lead.revocation->late : on_gpu.gpu->loan.has_value();
      if (lead.kind != LeaseKind::kExclusive || is_late || is_undrained(unit)) continue;
      // If the next unit has started while this one drained, the drain cost no unit anything.
      const bool is_overlapped = may_overlap(unit) && !on_gpu.gpu->holders.empty();
      on_gpu.gpu->cost.add_drain(is_overlapped ? Duration::zero() : now() - revocation.began);
    }
  }
  books_.charge(unit);
  for (Seat* seat : unit.seats) {
    books_.settle_idle(*seat);
    seat->revocation.reset();
    books_.set_phase(*seat, SeatPhase::kIdle);
    books_.place(*seat);
  }
  unit.revocation.reset();
  unit.hold.reset();
  unit.phase = UnitPhase::kIdle;
  queues_.reservations().units_changed();
  timers().stop(unit.thaw);
  agenda().touch(unit);
  queues_.admit(unit);
}

// ---- half drained -------------------------------------------------------------------------------

void Revocations::progress(Unit& unit) {
  UnitRevocation& revocation = *unit.revocation;
  if (revocation.is_open) return;
  const bool any_drained =
      any_seat(unit, [](const Seat& seat) { return seat.revocation && seat.revocation->drained(); });
  // Members that are frozen need no other member's work to come to a stop. One that drains instead may need theirs.
  if (any_drained && is_undrained(unit) && !unit.passed_over() && (!revocation.freezes || has_frozen(unit))) {
    const Duration pause = revocation.pace.pause();
    timers().arm(revocation.half_drained, after(now(), revocation.freezes ? std::max(pause, kFreezePatience) : pause));
  } else {
    timers().stop(revocation.half_drained);
  }
}

void Revocations::open_or_close(Unit& unit) {
  UnitRevocation& revocation = *unit.revocation;
  if (revocation.is_open) return close_again(unit);
  if (has_open_gate(unit)) return;  // a gate that closes later looks again
  // Submissions of a frozen member stand still, and none is let through beside another unit. So the unit's work runs on
  // as far as it is not frozen, all of it goes on in the next turn, and drains after that.
  if (has_frozen(unit) || !is_alone(unit)) return end_undrained(unit);
  const auto is_behind = [](const Seat& seat) { return seat.revocation && seat.revocation->drained(); };
  const bool swapped = any_seat(unit, [&](const Seat& seat) { return is_behind(seat) && seat.revocation->was_ahead; });
  if (swapped) revocation.pace.slow_down();
  revocation.is_open = true;
  for (Seat* seat : unit.seats) {
    if (!seat->revocation) continue;
    seat->revocation->was_ahead = !swapped && is_undrained(*seat);
    if (!seat->revocation->was_ahead) open_again(*seat);
  }
  timers().arm(revocation.half_drained, after(now(), revocation.pace.next_moment()));
}

void Revocations::open_again(Seat& seat) {
  books_.set_wants(seat, false);
  seat.freezing.work = Freezing::Work::kMayNot;
  seat.epoch = books_.next_epoch(*seat.gpu);
  seat.revocation->closing = Closing::kOpen;
  seat.revocation->alive_at = now();
  timers().arm(seat.revocation->answer, probe_at(seat));
  if (!seat.stuck) seat.stuck.emplace(seat, now());
  books_.set_phase(seat, SeatPhase::kRevoked);
  books_.place(seat);
  grants_.announce(seat);
}

void Revocations::close_again(Unit& unit) {
  unit.revocation->is_open = false;
  for (Seat* seat : unit.seats) {
    if (is_undrained(*seat) && !seat->revocation->gate_closed()) ask(*seat, RevokeReason::kGang);
  }
  progress(unit);
}

// ---- stalls -------------------------------------------------------------------------------------

void Revocations::stalled(Unit& unit) {
  if (unit.passed_over()) return;
  report_stall(unit);
  end_undrained(unit);
}

void Revocations::report_stall(const Unit& unit) {
  std::vector<SeatId> partners;
  for (const Unit* partner : partners_of(unit)) {
    for (const Seat* seat : partner->seats) {
      if (seat->wants_since && partners.size() < kMostPartners) partners.push_back(seat->id);
    }
  }
  for (const Seat* seat : unit.seats) {
    if (is_undrained(*seat))
      command(ReportStall{seat->id, seat->epoch, now() - unit.revocation->began, std::exchange(partners, {})});
  }
}

// It counts as drained from now on, and waits for its next turn like any other. Its work runs beside that of the next
// units, on its account.
void Revocations::end_undrained(Unit& unit) {
  if (unit.revocation->is_open) close_again(unit);
  for (Seat* seat : unit.seats) {
    if (!is_undrained(*seat)) continue;
    if (!seat->stuck) seat->stuck.emplace(*seat, now());
    seat->stuck->overruns = true;
    arm_kill(*seat);
  }
  finish(unit);
}

void Revocations::arm_kill(Seat& seat) {
  timers().arm(seat.stuck->kill, std::max(now(), after(seat.stuck->since, seat.gpu->settings.kill_stalled_after)));
}

// Only if another unit waits or runs. Never a suspended unit: the caller of the suspension gives that up in time. In
// its own turn no seat is asked to drain: the end of that turn looks again.
void Revocations::stuck_too_long(Seat& seat) {
  const Unit& unit = *seat.unit;
  if (!runs_on(seat)) return;
  const auto is_wanted = [&unit](const UnitGpu& on_gpu) {
    return on_gpu.gpu->waiting > (unit.phase == UnitPhase::kWaiting ? 1u : 0u) || !on_gpu.gpu->holders.empty();
  };
  if (!is_suspended(unit) && std::any_of(unit.gpus.begin(), unit.gpus.end(), is_wanted))
    return kill(*seat.tenant, KillReason::kStalled);
  timers().arm(seat.stuck->kill, after(now(), seat.gpu->settings.stall_timeout));
}

// ---- silence ------------------------------------------------------------------------------------

void Revocations::heard(Seat& seat) {
  Unit& unit = *seat.unit;
  SeatRevocation& revocation = *seat.revocation;
  revocation.alive_at = now();
  if (seat.phase == SeatPhase::kSilent) {
    books_.set_phase(seat, revocation.gate_closed() ? SeatPhase::kDraining : SeatPhase::kRevoked);
    seat.tenant->kill_sent = false;
    command(ReportAnswering{seat.id});
    --unit.revocation->silent;
    if (!unit.passed_over()) {
      count_again(unit);
      books_.place(unit);
      agenda().touch(unit);
      timers().arm(unit.revocation->stall, after(now(), strictest(unit, &GpuSettings::stall_timeout)));
      progress(unit);
    }
  }
  if (revocation.drained()) {
    timers().stop(revocation.answer);
  } else {
    timers().arm(revocation.answer, probe_at(seat));
  }
}

TimePoint Revocations::probe_at(const Seat& seat) const {
  return after(seat.revocation->alive_at, seat.gpu->settings.silence_limit / kProbesPerSilenceLimit);
}

void Revocations::count_again(Unit& unit) {
  for (Seat* seat : unit.seats) {
    seat->charged_to = now();
    if (seat->revocation) seat->revocation->late = true;
  }
}

void Revocations::unanswered(Seat& seat) {
  if (seat.phase == SeatPhase::kSilent) {
    return kill(*seat.tenant, KillReason::kSilent);
  }
  if (!is_undrained(seat)) return;
  SeatRevocation& revocation = *seat.revocation;
  const TimePoint silent_at = after(revocation.alive_at, seat.gpu->settings.silence_limit);
  if (now() < silent_at) {
    send_revoke(seat, seat.unit->revocation->reason);
    return timers().arm(revocation.answer, silent_at);
  }
  Unit& unit = *seat.unit;
  books_.charge(unit);
  if (unit.revocation->is_open) close_again(unit);
  timers().stop(unit.revocation->stall);
  timers().stop(unit.revocation->half_drained);
  ++unit.revocation->silent;
  books_.set_phase(seat, SeatPhase::kSilent);
  books_.place(unit);
  agenda().touch(unit);
  command(ReportSilent{seat.id, now() - revocation.alive_at});
  const TimePoint kill_at = after(revocation.alive_at, seat.gpu->settings.kill_silent_after);
  timers().arm(revocation.answer, kill_at == TimePoint::max() ? kill_at : std::max(kill_at, now()));
}

void Revocations::kill(Tenant& tenant, KillReason reason) {
  if (!std::exchange(tenant.kill_sent, true)) command(KillTenant{tenant.id, reason});
}

void Revocations::release(Seat& seat) {
  if (rests(seat)) return;
  Unit& unit = *seat.unit;
  books_.begin_gap(seat);
  // It has kept its lease for its hold. Its last report may be older: a seat that finds work again and again does not
  // report each time. And it goes on idling while its gang holds.
  if (seat.idleness && !seat.told_hold.is_unlimited())
    seat.idleness->since = std::max(seat.idleness->since, now() - seat.told_hold.value());
  books_.settle_idle(seat);
  seat.stuck.reset();
  seat.idleness = {.since = now(), .rests = true};
  if (at_work(unit) == 0) finish(unit);
}

}  // namespace gpumux::sched
