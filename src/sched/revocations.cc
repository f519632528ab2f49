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
// for. So each of those is let through by a few submissions (Step), and again by more, until all have drained. Then all
// have submitted the same collectives. For (2), and if stepping does not help in time: the revocation is taken back
// (Reopen), reported, and tried again later, ever more rarely. For (3): after a while the seat is passed over. Its work
// may still run together with other seats' work, which costs speed and harms none of them.
//
// Where the driver can, work that does not drain at once is frozen instead (may_freeze), and none of this happens.
//
// Stepping may step the wrong member. A member whose kernel is merely long waits for no other member. The member that
// is let through is then ahead, and the first has to follow it. Two members with long kernels could lead each other on
// like that for ever. It shows when a seat that is about to be stepped was itself undrained at the last round of steps.
// Each such swap multiplies the pause before a step, until the pause is longer than the kernels. It also divides the
// submissions of one step. Members let through by many may have gone on into the next collective; one at a time they
// meet.
//
// A tenant may use a permit at any moment. So its report of a drain is true only of the permits that it has seen taken
// back. A seat whose permits are taken back (recalled) is undrained from then on. Its reports count again after the
// RevokeSeen that answers this very Revoke.
//
// Every lease that is given again has a new epoch, a reopened one too. Messages about the revoked lease that are still
// on their way then name an old epoch, and are ignored. So messages may cross without harm.
#include "sched/revocations.h"

#include <algorithm>
#include <utility>

#include "sched/order.h"

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

// No seat is let through while another seat may submit. A seat that was silent, stalled, or came back too late with a
// claim may find its GPU given away. Then its revocation stalls, and the unit gets its GPUs back first.
bool may_step(const Seat& seat) {
  const Gpu& gpu = *seat.gpu;
  const bool alone = gpu.holders.empty() && gpu.places.count(Occupancy::kBlocking) == 1;
  if (alone) return true;
  return std::none_of(gpu.seats.begin(), gpu.seats.end(), [&seat](const Seat* other) {
    const bool open =
        other->place == Occupancy::kHolding ||
        (other->place == Occupancy::kBlocking && (!other->revocation->gate_closed() || has_permits(*other)));
    return open && other->unit != seat.unit &&
           (other->kind == LeaseKind::kExclusive || seat.kind == LeaseKind::kExclusive);
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

void Revocations::revoke_unless_spared(Unit& unit, RevokeReason reason) {
  if (const auto spared_until = unit.spared_until(now())) return timers().arm(unit.run, *spared_until);
  revoke(unit, reason);
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
  if (!seat.stuck_since) seat.stuck_since = now();
  books_.set_phase(seat, SeatPhase::kRevoked);
  ask(seat, reason);
}

void Revocations::ask(Seat& seat, RevokeReason reason) {
  seat.revocation->alive_at = now();
  send_revoke(seat, reason);
  timers().arm(seat.revocation->answer, after(now(), seat.gpu->settings.silence_limit));
}

void Revocations::send_revoke(Seat& seat, RevokeReason reason) {
  ++seat.revocation->revokes_unseen;
  Limit<Duration> drains_for;
  UnitRevocation& revocation = *seat.unit->revocation;
  // A seat by itself that drains for long is asked again. The next unit's memory may have come by then.
  if (seat.unit->single() && !revocation.freezes) revocation.freezes = may_freeze(*seat.unit);
  if (revocation.freezes) {
    seat.revocation->may_be_frozen = true;
    drains_for = reason == RevokeReason::kUrgent ? kUrgentDrainsFor : kDrainsFor;
  }
  command(Revoke{seat.id, seat.epoch, reason, drains_for});
}

// Memory of frozen work stays where it is, so a unit whose memory the next one needs drains. Frozen work of a single
// seat can drain later, behind its closed gate. That of a gang cannot, for its kernels wait for each other. So a gang
// drains as long as memory is short on one of its GPUs.
bool Revocations::may_freeze(const Unit& unit) const {
  // A gang of which only a part could be frozen has stalled.
  if (!can_freeze(unit) || (!unit.single() && unit.retry.has_stalled())) return false;
  return std::none_of(unit.gpus.begin(), unit.gpus.end(), [&](const UnitGpu& on_gpu) {
    const Gpu& gpu = *on_gpu.gpu;
    if (!unit.single()) return std::any_of(gpu.seats.begin(), gpu.seats.end(), needs_memory);
    const Unit* const next = expected_on(gpu, now());
    return next != nullptr && has_pages_to_move(*next) && !is_coming(*next);
  });
}

void Revocations::drained(Seat& seat) {
  if (seat.revocation->drained()) return;
  seat.revocation->closing = Closing::kDrained;
  seat.stuck_since.reset();
  books_.set_phase(seat, SeatPhase::kDraining);
  timers().stop(seat.revocation->answer);
  settle_drains(*seat.unit);
}

// The other members may need the work of those that are frozen already, and none is let through beside a successor. So
// the revocation is taken back, and the next one is a drain. A member may say later that it is frozen: see step().
void Revocations::must_drain(Unit& unit) {
  unit.revocation->freezes = false;
  books_.place(unit);
  const bool has_successor =
      std::any_of(unit.gpus.begin(), unit.gpus.end(), [](const UnitGpu& one) { return !one.gpu->holders.empty(); });
  const bool is_stuck = has_frozen(unit) || (has_successor && !unit.single());
  if (is_stuck && is_undrained(unit) && !unit.passed_over() && !unit.is_returning()) return take_back(unit);
  progress(unit);
}

void Revocations::return_if_frozen(Unit& unit) {
  if (unit.phase != UnitPhase::kIdle || unit.single() || !is_suspended(unit) || !has_frozen(unit)) return;
  unit.phase = UnitPhase::kRevoking;
  unit.hold = {.granted_at = now()};
  unit.begin_revocation(RevokeReason::kSuspended, now());
  timers().stop(unit.thaw);
  for (Seat* seat : unit.seats) {
    SeatRevocation& revocation = seat->revocation.emplace(*seat);
    revocation.late = true;
    revocation.closing = seat->freezing.is_frozen ? Closing::kClosed : Closing::kDrained;
    revocation.alive_at = now();
    if (seat->freezing.is_frozen) timers().arm(revocation.answer, probe_at(*seat));
    seat->charged_to = now();
    seat->group->begin(seat->gpu->groups.present());
    books_.set_phase(*seat, SeatPhase::kDraining);
  }
  take_back(unit);
}

void Revocations::settle_drains(Unit& unit) {
  if (!take_back_steps(unit) && !is_undrained(unit)) return finish(unit);
  progress(unit);
}

// When all seats that others were let through for have drained, no seat needs the rest of the steps. A thread that
// comes to the gate later must find it closed. A Revoke does that, and the Drained that answers it says that no
// submission has slipped through. False: there is nothing to take back, or not yet.
bool Revocations::take_back_steps(Unit& unit) {
  const auto is_waited_for = [](const Seat& seat) { return is_undrained(seat) && seat.revocation->was_ahead; };
  return (unit.passed_over() || !any_seat(unit, is_waited_for)) && recall_steps(unit);
}

// The permits of its seats are void. Returns whether a seat had any.
bool Revocations::recall_steps(Unit& unit) {
  bool any = false;
  for (Seat* seat : unit.seats) {
    if (!has_permits(*seat)) continue;
    any = true;
    seat->revocation->recall();
    ask_again(*seat);
  }
  return any;
}

// It must say once more that it has drained.
// REQUIRES: its gate may be open.
void Revocations::ask_again(Seat& seat) {
  books_.set_phase(seat, SeatPhase::kRevoked);
  books_.place(seat);
  ask(seat, RevokeReason::kGang);
}

void Revocations::finish(Unit& unit) {
  grants_.end_loan(unit);
  timers().stop(unit.run);
  stop_returning(unit);
  grants_.forget_in_part(unit);
  if (unit.revocation) {
    const UnitRevocation& revocation = *unit.revocation;
    unit.retry = {};
    unit.step_hurry = revocation.pace.next_hurry();
    for (const UnitGpu& on_gpu : unit.gpus) {
      const Seat& lead = *on_gpu.lead;
      // A member that joined since has no part in this: it was not there, and a turn that is lent there goes on.
      const bool is_late = lead.revocation ? lead.revocation->late : on_gpu.gpu->loan.has_value();
      if (lead.kind != LeaseKind::kExclusive || is_late) continue;
      // If the next unit has started while this one drained, the drain cost no unit anything.
      const bool is_overlapped = may_overlap(unit) && !on_gpu.gpu->holders.empty();
      on_gpu.gpu->cost.add_drain(is_overlapped ? Duration::zero() : now() - revocation.began);
    }
  }
  books_.charge(unit);
  for (Seat* seat : unit.seats) {
    books_.settle_idle(*seat);
    seat->stuck_since.reset();
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
  return_if_frozen(unit);
}

// ---- stepping -----------------------------------------------------------------------------------

void Revocations::progress(Unit& unit) {
  UnitRevocation& revocation = *unit.revocation;
  const bool any_drained =
      any_seat(unit, [](const Seat& seat) { return seat.revocation && seat.revocation->drained(); });
  // Members that are frozen need no other member's work to come to a stop. One that drains instead may need theirs:
  // then step() takes the revocation back.
  if (any_drained && is_undrained(unit) && !unit.passed_over() && (!revocation.freezes || has_frozen(unit))) {
    const Duration pause = revocation.pace.pause(strictest(unit, &GpuSettings::step_delay));
    timers().arm(revocation.step, after(now(), revocation.freezes ? std::max(pause, kFreezePatience) : pause));
  } else {
    timers().stop(revocation.step);
  }
}

void Revocations::step(Unit& unit) {
  if (unit.is_returning()) return;  // it goes on as a whole, and no unit waits for its drain
  // Submissions of a frozen member stand still. All members go on, and drain the next time.
  if (has_frozen(unit)) return take_back(unit);
  const auto is_behind = [](const Seat& seat) {
    return seat.phase == SeatPhase::kDraining && !is_undrained(seat) && !has_permits(seat);
  };
  UnitRevocation& revocation = *unit.revocation;
  bool swapped = false;
  for (Seat* seat : unit.seats) {
    if (!seat->revocation) continue;
    if (is_behind(*seat) && seat->revocation->was_ahead) swapped = true;
    seat->revocation->was_ahead = is_undrained(*seat) && !has_permits(*seat);
  }
  if (swapped && revocation.pace.can_slow_down()) {
    revocation.pace.slow_down();
    for (Seat* seat : unit.seats) {
      if (seat->revocation) seat->revocation->last_step = 0;
    }
    return progress(unit);
  }
  for (Seat* seat : unit.seats) {
    if (!is_behind(*seat) || !may_step(*seat)) continue;
    if (seat->revocation->closing == Closing::kRested) {
      // Its agent knows of no revocation, and would not report a step: it is told first, and let through when it has
      // answered.
      seat->revocation->closing = Closing::kOpen;
      ask_again(*seat);
      continue;
    }
    const std::uint32_t count = revocation.pace.next(seat->revocation->last_step);
    seat->revocation->last_step = seat->revocation->permits = count;
    command(Step{seat->id, seat->epoch, count});
  }
}

// ---- stalls -------------------------------------------------------------------------------------

void Revocations::stalled(Unit& unit) {
  if (unit.passed_over() || unit.is_returning()) return;
  report_stall(unit);
  kill_stuck(unit);
  take_back(unit);
}

// REQUIRES: a seat of the unit has not drained.
void Revocations::report_stall(const Unit& unit) {
  ReportStall report{
      .seat = {}, .epoch = {}, .waited = now() - unit.revocation->began, .undrained = {}, .partners = {}};
  for (const Seat* seat : unit.seats) {
    if (is_undrained(*seat)) report.undrained.push_back(seat->id);
  }
  report.seat = report.undrained.front();
  report.epoch = roster_.seat_of(report.seat)->epoch;
  for (const Unit* partner : partners_of(unit)) {
    for (const Seat* seat : partner->seats) {
      if (seat->wants_since && report.partners.size() < kMostPartners) report.partners.push_back(seat->id);
    }
  }
  command(std::move(report));
}

// The revocation is: its seats have their leases back now, or as soon as it can be.
void Revocations::take_back(Unit& unit) {
  // A unit that never closed its gate has never given up its GPUs, and goes first. Otherwise it waits behind others.
  const bool others_first =
      !has_open_gate(unit) && std::any_of(unit.gpus.begin(), unit.gpus.end(), [](const UnitGpu& on_gpu) {
        return on_gpu.gpu->reserved() != nullptr && on_gpu.gpu->reserved()->is_returning();
      });
  if (!others_first && can_reopen(unit)) return reopen(unit);
  // From now on, when others that cannot be drained go on, its gates are not looked at.
  recall_steps(unit);
  // Its successor has started, or a member that joined while the others held, and that they wait for now, has no GPU.
  // The unit goes to the front of all queues, and gets its GPUs, the missing ones too, when their holders have had
  // their time.
  for (Seat* seat : unit.seats) {
    if (seat->revocation) seat->revocation->late = true;
  }
  unit.revocation->returning_since = now();
  for (const UnitGpu& on_gpu : unit.gpus) ++on_gpu.gpu->waiting;
  queues_.reservations().add_returning(unit);
  agenda().touch(unit);
}

void Revocations::stop_returning(Unit& unit) {
  if (!unit.is_returning()) return;
  unit.revocation->returning_since.reset();
  for (const UnitGpu& on_gpu : unit.gpus) --on_gpu.gpu->waiting;
  queues_.reservations().remove(unit);
  agenda().touch(unit);
}

bool Revocations::can_reopen(Unit& unit) {
  if (grants_.are_held()) return false;
  const bool any_gate = has_open_gate(unit);
  const auto set_aside = [&](const Unit& one) {
    for (Seat* seat : one.seats) {
      const bool is_closed = seat->revocation && seat->revocation->gate_closed();
      if (&one == &unit || any_gate || is_closed) books_.set_place(*seat, Occupancy::kNone);
    }
  };
  set_aside(unit);
  for (Unit* other : queues_.reservations().returning()) set_aside(*other);
  const bool can = std::all_of(unit.seats.begin(), unit.seats.end(), [](const Seat* seat) {
    if (!is_in_revocation(*seat)) return seat->suspended || seat->gpu->can_start();
    const bool shared = seat->kind == LeaseKind::kShared || seat->gpu->settings.mode == Mode::kConcurrent;
    return seat->gpu->can_start(shared ? LeaseKind::kShared : LeaseKind::kExclusive);
  });
  books_.place(unit);
  for (Unit* other : queues_.reservations().returning()) books_.place(*other);
  return can;
}

void Revocations::reopen(Unit& unit) {
  stop_returning(unit);
  agenda().drain_is_over();
  unit.revocation.reset();
  unit.phase = UnitPhase::kHolding;
  unit.yields_since.reset();
  unit.retry.stalled(now(), strictest(unit, &GpuSettings::stall_retry));
  for (const UnitGpu& on_gpu : unit.gpus) on_gpu.gpu->last_holder = unit.serial;
  for (Seat* seat : unit.seats) {
    if (!is_in_revocation(*seat)) continue;
    books_.set_wants(*seat, false);
    books_.set_place(*seat, Occupancy::kNone);
    seat->revocation.reset();
    seat->freezing.is_frozen = false;
    if (seat->gpu->settings.mode == Mode::kConcurrent) seat->kind = LeaseKind::kShared;
    seat->epoch = books_.next_epoch(*seat->gpu);
    books_.set_phase(*seat, SeatPhase::kHolding);
    books_.place(*seat);
    command(Reopen{seat->id, seat->epoch, seat->kind});
  }
  grants_.grant_joined(unit);
  grants_.note_in_part(unit);
  queues_.arm_cap(unit);
  grants_.tell_contention(unit, true);
  agenda().touch(unit);
}

// Never a suspended unit: the caller of the suspension gives that up in time. And only if another unit waits or runs.
void Revocations::kill_stuck(const Unit& unit) {
  // (It is no holder itself: it is being revoked.)
  const auto is_wanted = [](const UnitGpu& on_gpu) { return on_gpu.gpu->waiting > 0 || !on_gpu.gpu->holders.empty(); };
  if (is_suspended(unit) || std::none_of(unit.gpus.begin(), unit.gpus.end(), is_wanted)) return;
  for (const Seat* seat : unit.seats) {
    if (!is_undrained(*seat) || !seat->stuck_since) continue;
    if (now() < after(*seat->stuck_since, seat->gpu->settings.kill_stalled_after)) continue;
    kill(*seat->tenant, KillReason::kStalled);
  }
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
    if (has_permits(seat)) {
      revocation.recall();
      books_.set_phase(seat, SeatPhase::kRevoked);
      books_.place(seat);
    }
    send_revoke(seat, seat.unit->revocation->reason);
    return timers().arm(revocation.answer, silent_at);
  }
  Unit& unit = *seat.unit;
  books_.charge(unit);
  for (Seat* member : unit.seats) {
    if (!has_permits(*member)) continue;
    // No unit waits for its members' gates from now on: they are closed at least.
    member->revocation->recall();
    if (member != &seat) {
      ask_again(*member);
    } else {
      send_revoke(seat, unit.revocation->reason);
    }
  }
  stop_returning(unit);
  timers().stop(unit.revocation->stall);
  timers().stop(unit.revocation->step);
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
  seat.stuck_since.reset();
  seat.idleness = {.since = now(), .rests = true};
  if (at_work(unit) == 0) finish(unit);
}

}  // namespace gpumux::sched
