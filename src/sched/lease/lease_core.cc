// SPDX-License-Identifier: Apache-2.0
// One function per event. Each checks the event against what is known; an event that makes no sense changes nothing.
#include "sched/lease/lease_core.h"

#include <algorithm>
#include <utility>

#include "sched/lease/state.h"
#include "settings/settings.gen.h"

namespace gpumux::sched {
namespace {

// No setting may make the core ask for a moment that is not later: it would never come to rest.
constexpr Duration kShortestSetting = std::chrono::microseconds(1);
// An epoch that a new GPU starts with is at least 1: 0 means "no lease".
constexpr std::uint64_t kFirstEpoch = 1;
// A claimed epoch above this is not believed: no tenant may use up the numbers.
constexpr std::uint64_t kMaxClaimedEpoch = std::uint64_t{1} << 62;

template <class Field>
void raise(Field&, Duration) {}  // no time
void raise(Duration& field, Duration least) { field = std::max(field, least); }
template <class T>
void raise(Limit<T>& field, Duration least) {
  if (T* const value = field.if_value()) raise(*value, least);
}
template <class T>
void raise(settings::Auto<T>& field, Duration least) {
  if (T* const value = field.if_value()) raise(*value, least);
}

GpuSettings sane(GpuSettings s) {
  settings::visit_leases(s, [](const settings::Setting& setting, auto& field) {
    raise(field, std::min(Duration(setting.type.minimum), kShortestSetting));
  });
  return s;
}

// Whether the claim can be true, by what is known already. Seats that have drained since the restart, or were silent,
// prove nothing.
bool is_believable(const Seat& seat, const SeatClaimed& claim) {
  std::uint32_t overlapping = 0;
  for (const Seat* other : seat.gpu->seats) {
    if (other->unit == seat.unit || other->place == Occupancy::kNone) continue;
    if (other->revocation && other->revocation->late) continue;
    if (other->kind == LeaseKind::kShared && claim.kind == LeaseKind::kShared) continue;
    if (other->place != Occupancy::kOverlapping) return false;
    ++overlapping;
  }
  return overlapping <= 1;
}

}  // namespace

LeaseCore::LeaseCore() : state_(std::make_unique<State>()) {}
LeaseCore::~LeaseCore() = default;

void LeaseCore::apply(TimePoint now, const Event& event, std::vector<Command>& commands) {
  State& state = *state_;
  state.common.now = std::max(state.common.now, now);
  state.common.out = &commands;
  std::visit([&state](const auto& e) { state.on(e); }, event);
  state.settler.settle();
  state.common.out = nullptr;
}

std::optional<TimePoint> LeaseCore::next_deadline() const {
  const Timer* const timer = state_->common.timers.earliest();
  if (timer == nullptr) return std::nullopt;
  return timer->at();
}

// ---- GPUs and settings --------------------------------------------------------------------------

void LeaseCore::State::on(const GpuAdded& e) {
  if (e.gpu.value >= base::kMaxGpus || roster.gpu_of(e.gpu) != nullptr) return;
  auto gpu = std::make_unique<Gpu>();
  gpu->index = e.gpu;
  gpu->settings = sane(e.settings);
  if (grants.are_held()) gpu->cost.skip_next_paging();
  gpu->policy = gpu->settings.policy;
  gpu->next_epoch.value = std::max(e.first_epoch.value, kFirstEpoch);
  roster.add_gpu(std::move(gpu));
}

void LeaseCore::State::on(const SettingsChanged& e) {
  Gpu* const gpu = roster.gpu_of(e.gpu);
  if (gpu == nullptr) return;
  const GpuSettings before = gpu->settings;
  gpu->settings = sane(e.settings);
  common.agenda.touch(*gpu);
  rearm(*gpu, before);
  grants.seats_changed(*gpu);
  // Without overlap no turn is lent, and an idle holder does not keep its own.
  if (before.idle_hold == gpu->settings.idle_hold && before.overlap == gpu->settings.overlap) return;
  for (Seat* seat : gpu->seats) {
    if (!is_suspended(*seat)) grants.tell_contention(*seat);
  }
}

// New limits hold for what is under way, too, counted from now. Limits that have not changed go on: else a setting that
// is changed again and again would put off what they bound. A gang's limits are the least of its GPUs.
void LeaseCore::State::rearm(Gpu& gpu, const GpuSettings& before) {
  const GpuSettings& limits = gpu.settings;
  for (Seat* seat : gpu.seats) {
    Unit& unit = *seat->unit;
    if (unit.phase == UnitPhase::kWaiting && unit.gpus.size() > 1 && !queues.reservations().is_aged(unit)) {
      common.timers.arm(unit.age,
                        std::max(common.now, after(unit.requested, strictest(unit, &GpuSettings::gang_ageing))));
    }
    if (unit.phase == UnitPhase::kWaiting && limits.priority_ageing != before.priority_ageing)
      common.timers.arm(unit.lift, unit.lifted ? TimePoint::max()
                                               : after(common.now, strictest(unit, &GpuSettings::priority_ageing)));
    if (has_overrun(*seat)) revocations.arm_kill(*seat);
    if (!seat->revocation) continue;
    SeatRevocation& revocation = *seat->revocation;
    if (seat->phase == SeatPhase::kSilent) {
      common.timers.arm(revocation.answer, std::max(common.now, after(revocation.alive_at, limits.kill_silent_after)));
    } else if (!revocation.drained() && limits.silence_limit != before.silence_limit) {
      revocation.alive_at = common.now;
      common.timers.arm(revocation.answer, revocations.probe_at(*seat));
    }
    if (limits.stall_timeout != before.stall_timeout && !unit.passed_over())
      common.timers.arm(unit.revocation->stall, after(common.now, strictest(unit, &GpuSettings::stall_timeout)));
  }
}

void LeaseCore::State::on(const GrantsHeld& e) {
  grants.hold_until(e.until);
  // No memory moves before the mover serves, and it may have to start again, too. That is no cost of a switch.
  for (Gpu* gpu : roster.gpus()) gpu->cost.skip_next_paging();
}

void LeaseCore::State::on(const GrantsAllowed&) {
  grants.allow();
  for (const Gpu* gpu : roster.gpus()) common.agenda.touch(*gpu);
}

// ---- tenants and seats --------------------------------------------------------------------------

void LeaseCore::State::on(const TenantConnected& e) {
  if (roster.tenant_of(e.tenant) == nullptr) roster.add_tenant(e.tenant, e.uid);
}

void LeaseCore::State::on(const TenantGone& e) {
  Tenant* const tenant = roster.tenant_of(e.tenant);
  if (tenant == nullptr) return;
  while (!tenant->seats.empty()) gangs.remove_seat(*tenant->seats.rbegin()->second);
  gangs.leave(*tenant);
  roster.remove(*tenant);
}

void LeaseCore::State::on(const SeatOpened& e) {
  Tenant* const tenant = roster.tenant_of(e.seat.tenant);
  Gpu* const gpu = roster.gpu_of(e.seat.gpu);
  if (tenant == nullptr || gpu == nullptr || roster.seat_of(e.seat) != nullptr) return;
  if (tenant->seats.size() >= base::kMaxSeatsPerTenant) return;
  auto seat = std::make_unique<Seat>();
  seat->id = e.seat;
  seat->gpu = gpu;
  seat->tenant = tenant;
  seat->group = gpu->groups.join(*seat, e.share_group);
  books.set_standing(*seat, e.priority, e.weight, e.cap);
  seat->account = e.account;
  seat->ends_own_turns = e.ends_own_turns;
  seat->freezing.ability = e.can_freeze ? Freezing::Ability::kUntried : Freezing::Ability::kNone;
  seat->suspension = e.is_suspended ? Suspension::kDrains : Suspension::kNone;
  seat->since = common.now;
  Unit& unit = tenant->gang != nullptr ? *tenant->gang : roster.make_unit();
  gangs.unplace(unit);
  roster.attach(*seat, unit);
  gpu->seats.insert(seat.get());
  tenant->seats.emplace(e.seat.gpu, std::move(seat));
  roster.set_shape(unit);
  grants.seats_changed(*gpu);
  grants.tell_contention(*roster.seat_of(e.seat));  // so that it knows how long to hold when a contended grant comes
  gangs.rebuild(unit, false);
}

void LeaseCore::State::on(const SeatClosed& e) {
  if (Seat* const seat = roster.seat_of(e.seat)) gangs.remove_seat(*seat);
}

// ---- what tenants had before a restart ----------------------------------------------------------

void LeaseCore::State::on(const SeatClaimed& e) {
  Seat* const seat = roster.seat_of(e.seat);
  const bool is_new = seat != nullptr && seat->epoch.value == 0 && seat->grants == 0;
  if (!is_new || e.epoch.value > kMaxClaimedEpoch) return;
  seat->gpu->next_epoch.value = std::max(seat->gpu->next_epoch.value, e.epoch.value + 1);
  if (e.claim == Claim::kWaiting) {
    seat->epoch = e.epoch;
    return on(Requested{e.seat});
  }
  if (e.epoch.value == 0) return;  // every lease has a number
  if (is_suspended(*seat)) seat->suspension = Suspension::kDrains;
  const bool believable = is_believable(*seat, e);
  Unit& unit = *seat->unit;
  gangs.unplace(unit);
  if (!unit.hold) unit.hold = {.granted_at = common.now};
  books.set_wants(*seat, false);
  seat->epoch = e.epoch;
  seat->kind = e.kind;
  seat->charged_to = common.now;
  seat->group->begin(seat->gpu->groups.present());
  if (e.claim == Claim::kHolding && believable) {
    books.set_phase(*seat, SeatPhase::kHolding);
  } else {
    // "Draining" means that its page says so. Its gate may be closing still: the GateClosed that follows tells.
    seat->revocation.emplace(*seat).late = true;
    if (e.claim == Claim::kDraining) seat->freezing.work = Freezing::Work::kMay;
    books.set_phase(*seat, SeatPhase::kRevoked);
    // When an earlier daemon revoked it is not known. A revocation that goes on has decided already.
    const bool begins = !unit.revocation;
    if (begins) unit.begin_revocation(RevokeReason::kBadClaim, unit.hold->granted_at);
    unit.revocation->freezes = can_freeze(unit) && (begins || unit.revocation->freezes);
    unit.revocation->reason = RevokeReason::kBadClaim;
    if (e.claim == Claim::kDraining) {
      seat->revocation->alive_at = common.now;
      common.timers.arm(seat->revocation->answer, revocations.probe_at(*seat));
    } else {
      revocations.ask(*seat, RevokeReason::kBadClaim);
    }
  }
  gangs.rebuild(unit, true);
}

// ---- the life of a lease ------------------------------------------------------------------------

void LeaseCore::State::on(const Requested& e) {
  Seat* const seat = roster.seat_of(e.seat);
  if (seat == nullptr || seat->wants_since) return;
  Unit& unit = *seat->unit;
  if (seat->phase == SeatPhase::kHolding) {
    if (!rests(*seat)) return;  // crossed a grant
    // Its gang still holds, for it too.
    books.settle_idle(*seat);
    seat->epoch = books.next_epoch(*seat->gpu);
    ++seat->grants;
    grants.announce(*seat);
    return;
  }
  unit.idle_watch.end_gap(common.now);
  books.set_wants(*seat, true);
  queues.admit(unit);
}

void LeaseCore::State::on(const RevokeSeen& e) {
  Seat* const seat = roster.seat_in(e.seat, e.epoch);
  if (seat == nullptr) return;
  if (is_in_revocation(*seat)) revocations.heard(*seat);
}

void LeaseCore::State::on(const GateClosed& e) {
  Seat* const seat = roster.seat_in(e.seat, e.epoch);
  if (seat == nullptr) return;
  // Unasked, before a release: its program gives the lease up, as at its end. It has not been idle for its hold.
  if (!is_in_revocation(*seat) && !rests(*seat)) seat->idleness.reset();
  if (!is_in_revocation(*seat)) return;
  revocations.heard(*seat);
  SeatRevocation& revocation = *seat->revocation;
  if (revocation.gate_closed()) return;
  revocation.closing = Closing::kClosed;
  if (seat->phase == SeatPhase::kRevoked) books.set_phase(*seat, SeatPhase::kDraining);
  books.place(*seat->unit);
  common.agenda.touch(*seat->unit);
  if (!has_open_gate(*seat->unit)) {
    for (const UnitGpu& on_gpu : seat->unit->gpus) common.agenda.hand_over(*on_gpu.gpu);
  }
  revocations.progress(*seat->unit);
}

void LeaseCore::State::on(const Drained& e) {
  Seat* const seat = roster.seat_in(e.seat, e.epoch);
  if (seat == nullptr) return;
  // Only a seat that was told that it may freeze its work is believed: a suspended gang gets a turn for it.
  const bool was_frozen = is_frozen(*seat);
  if (seat->freezing.work != Freezing::Work::kMayNot)
    seat->freezing.work = e.is_frozen ? Freezing::Work::kFrozen : Freezing::Work::kMay;
  if (is_frozen(*seat) && !was_frozen) {
    ++seat->gpu->interrupts;
    if (seat->freezing.ability == Freezing::Ability::kUntried) seat->freezing.ability = Freezing::Ability::kProven;
  }
  if (seat->phase == SeatPhase::kHolding) {
    seat->poisoned |= e.poisoned;
    revocations.release(*seat);
  } else if (is_in_revocation(*seat)) {
    seat->poisoned |= e.poisoned;
    revocations.heard(*seat);
    if (is_frozen(*seat)) on(Requested{e.seat});  // before the next unit is chosen
    revocations.drained(*seat);
  } else {
    seat->poisoned |= e.poisoned;
    revocations.drained_late(*seat);
    if (is_frozen(*seat)) on(Requested{e.seat});
    settle_suspended(*seat->unit);
  }
}

void LeaseCore::State::on(const CannotFreeze& e) {
  Seat* const seat = roster.seat_of(e.seat);
  if (seat == nullptr || seat->freezing.ability == Freezing::Ability::kNone) return;
  seat->freezing.ability = Freezing::Ability::kNone;
  for (const UnitGpu& on_gpu : seat->unit->gpus) grants.seats_changed(*on_gpu.gpu);
  if (seat->unit->phase == UnitPhase::kRevoking) revocations.must_drain(*seat->unit);
}

void LeaseCore::State::on(const Idling& e) {
  Seat* const seat = roster.seat_in(e.seat, e.epoch);
  if (seat == nullptr || seat->phase != SeatPhase::kHolding || rests(*seat)) return;
  seat->idleness = {.since = common.now};
  const Unit& unit = *seat->unit;
  if (at_work(unit) > 1) return;  // others of its gang go on
  for (const UnitGpu& on_gpu : unit.gpus) grants.heads_up(*on_gpu.gpu);
}

// ---- time ---------------------------------------------------------------------------------------

void LeaseCore::State::on(const TimePassed&) {
  for (Timer* timer = common.timers.earliest(); timer != nullptr && timer->at() <= common.now;
       timer = common.timers.earliest()) {
    common.timers.stop(*timer);
    fire(*timer);
  }
}

void LeaseCore::State::fire(Timer& timer) {
  switch (timer.kind) {
    case TimerKind::kRun: return common.agenda.touch(*timer.unit);
    case TimerKind::kStall: return revocations.stalled(*timer.unit);
    case TimerKind::kHalfDrained: return revocations.open_or_close(*timer.unit);
    case TimerKind::kAge: return queues.age(*timer.unit);
    case TimerKind::kLift: return queues.lift(*timer.unit);
    case TimerKind::kThaw: return revocations.cap_is_due(*timer.unit);
    case TimerKind::kAnswer: return revocations.unanswered(*timer.seat);
    case TimerKind::kStuck: return revocations.stuck_too_long(*timer.seat);
    case TimerKind::kGrantsHeld: return on(GrantsAllowed());
  }
}

}  // namespace gpumux::sched
