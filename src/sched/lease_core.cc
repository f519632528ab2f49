// SPDX-License-Identifier: Apache-2.0
// One function per event. Each checks the event against what is known; an event that makes no sense changes nothing.
#include "sched/lease_core.h"

#include <algorithm>

#include "sched/state.h"
#include "settings/settings.gen.h"

namespace gpumux::sched {
namespace {

// No setting may make the core ask for a moment that is not later: it would never come to rest.
constexpr Duration kShortestSetting = std::chrono::microseconds(1);
// An epoch that a new GPU starts with is at least 1: 0 means "no lease".
constexpr std::uint64_t kFirstEpoch = 1;

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

}  // namespace

LeaseCore::LeaseCore() : state_(std::make_unique<State>()) {}
LeaseCore::~LeaseCore() = default;

void LeaseCore::apply(TimePoint now, const Event& event, std::vector<Command>& commands) {
  State& state = *state_;
  state.now = std::max(state.now, now);
  state.out = &commands;
  std::visit([&state](const auto& e) { state.on(e); }, event);
  state.settle();
  state.out = nullptr;
}

std::optional<TimePoint> LeaseCore::next_deadline() const {
  const Timer* const timer = state_->timers.earliest();
  if (timer == nullptr) return std::nullopt;
  return timer->at();
}

// ---- GPUs and settings --------------------------------------------------------------------------

void LeaseCore::State::on(const GpuAdded& e) {
  if (e.gpu.value >= gpus.size() || gpus[e.gpu.value] != nullptr) return;
  auto gpu = std::make_unique<Gpu>();
  gpu->index = e.gpu;
  gpu->settings = sane(e.settings);
  gpu->policy = gpu->settings.policy;
  gpu->next_epoch.value = std::max(e.first_epoch.value, kFirstEpoch);
  gpu_list.insert(std::upper_bound(gpu_list.begin(), gpu_list.end(), gpu.get(),
                                   [](const Gpu* a, const Gpu* b) { return a->index < b->index; }),
                  gpu.get());
  gpus[e.gpu.value] = std::move(gpu);
}

void LeaseCore::State::on(const SettingsChanged& e) {
  Gpu* const gpu = gpu_of(e.gpu);
  if (gpu == nullptr) return;
  const GpuSettings before = gpu->settings;
  gpu->settings = sane(e.settings);
  agenda.touch(*gpu);
  rearm(*gpu, before);
  seats_changed(*gpu);
  // Without overlap no turn is lent, and an idle holder does not keep its own.
  if (before.idle_hold == gpu->settings.idle_hold && before.overlap == gpu->settings.overlap) return;
  for (Seat* seat : gpu->seats) {
    if (!seat->suspended) tell_contention(*seat);
  }
}

// New limits hold for what is under way, too, counted from now. Limits that have not changed go on: else a setting that
// is changed again and again would put off what they bound. A gang's limits are the least of its GPUs.
void LeaseCore::State::rearm(Gpu& gpu, const GpuSettings& before) {
  const GpuSettings& limits = gpu.settings;
  for (Seat* seat : gpu.seats) {
    Unit& unit = *seat->unit;
    if (unit.phase == UnitPhase::kWaiting && unit.gpus.size() > 1 && !reservations.is_aged(unit)) {
      timers.arm(unit.age, std::max(now, after(unit.requested, strictest(unit, &GpuSettings::gang_ageing))));
    }
    if (unit.phase == UnitPhase::kWaiting && limits.priority_ageing != before.priority_ageing)
      timers.arm(unit.lift,
                 unit.lifted ? TimePoint::max() : after(now, strictest(unit, &GpuSettings::priority_ageing)));
    if (!seat->revocation) continue;
    SeatRevocation& revocation = *seat->revocation;
    if (seat->phase == SeatPhase::kSilent) {
      timers.arm(revocation.answer, std::max(now, after(revocation.alive_at, limits.kill_silent_after)));
    } else if (!revocation.drained() && limits.silence_limit != before.silence_limit) {
      revocation.alive_at = now;
      timers.arm(revocation.answer, probe_at(*seat));
    }
    if (limits.stall_timeout != before.stall_timeout && !unit.passed_over() && !unit.is_returning())
      timers.arm(unit.revocation->stall, after(now, strictest(unit, &GpuSettings::stall_timeout)));
  }
}

void LeaseCore::State::on(const GrantsHeld& e) {
  grants_held = true;
  timers.arm(grants_held_timer, e.until);
}

void LeaseCore::State::on(const GrantsAllowed&) {
  grants_held = false;
  timers.stop(grants_held_timer);
  for (Gpu* gpu : gpu_list) agenda.touch(*gpu);
}

// ---- tenants and seats --------------------------------------------------------------------------

void LeaseCore::State::on(const TenantConnected& e) {
  const auto [slot, is_new] = tenants.try_emplace(e.tenant);
  if (!is_new) return;
  slot->second = std::make_unique<Tenant>();
  slot->second->id = e.tenant;
  slot->second->uid = e.uid;
}

void LeaseCore::State::on(const TenantGone& e) {
  Tenant* const tenant = tenant_of(e.tenant);
  if (tenant == nullptr) return;
  while (!tenant->seats.empty()) remove_seat(*tenant->seats.rbegin()->second);
  leave_gang(*tenant);
  tenants.erase(e.tenant);
}

void LeaseCore::State::on(const SeatOpened& e) {
  Tenant* const tenant = tenant_of(e.seat.tenant);
  Gpu* const gpu = gpu_of(e.seat.gpu);
  if (tenant == nullptr || gpu == nullptr || seat_of(e.seat) != nullptr) return;
  if (tenant->seats.size() >= base::kMaxSeatsPerTenant) return;
  auto seat = std::make_unique<Seat>();
  seat->id = e.seat;
  seat->gpu = gpu;
  seat->tenant = tenant;
  seat->group = gpu->groups.join(*seat, e.share_group);
  set_standing(*seat, e.priority, e.weight, e.cap);
  seat->ends_own_turns = e.ends_own_turns;
  seat->suspended = e.is_suspended;
  seat->since = now;
  Unit& unit = tenant->gang != nullptr ? *tenant->gang : make_unit();
  unplace(unit);
  attach(*seat, unit);
  gpu->seats.insert(seat.get());
  tenant->seats.emplace(e.seat.gpu, std::move(seat));
  set_shape(unit);
  seats_changed(*gpu);
  tell_contention(*seat_of(e.seat));  // so that it knows how long to hold when a contended grant comes
  rebuild(unit, false);
}

void LeaseCore::State::on(const SeatClosed& e) {
  if (Seat* const seat = seat_of(e.seat)) remove_seat(*seat);
}

// ---- the life of a lease ------------------------------------------------------------------------

void LeaseCore::State::on(const Requested& e) {
  Seat* const seat = seat_of(e.seat);
  if (seat == nullptr || seat->wants_since) return;
  Unit& unit = *seat->unit;
  if (seat->phase == SeatPhase::kHolding) {
    if (!rests(*seat)) return;  // crossed a grant
    // Its gang still holds, for it too.
    settle_idle(*seat);
    seat->epoch = next_epoch(*seat->gpu);
    ++seat->grants;
    announce(*seat);
    return;
  }
  unit.idle_watch.end_gap(now);
  set_wants(*seat, true);
  queue(unit);
}

void LeaseCore::State::on(const RevokeSeen& e) {
  Seat* const seat = seat_in(e.seat, e.epoch);
  if (seat == nullptr || !is_in_revocation(*seat)) return;
  if (seat->revocation->revokes_unseen > 0) --seat->revocation->revokes_unseen;
  heard(*seat);
}

void LeaseCore::State::on(const GateClosed& e) {
  Seat* const seat = seat_in(e.seat, e.epoch);
  if (seat == nullptr) return;
  // Unasked, before a release: its program gives the lease up, as at its end. It has not been idle for its hold.
  if (!is_in_revocation(*seat) && !rests(*seat)) seat->idleness.reset();
  if (!is_in_revocation(*seat)) return;
  heard(*seat);
  SeatRevocation& revocation = *seat->revocation;
  if (revocation.gate_closed() || (revocation.closing == Closing::kRecalled && revocation.revokes_unseen > 0)) return;
  revocation.closing = Closing::kClosed;
  if (seat->phase == SeatPhase::kRevoked) set_phase(*seat, SeatPhase::kDraining);
  reservations.gate_closed(*seat->unit);
  place(*seat);
  agenda.touch(*seat->gpu);
  if (!has_open_gate(*seat->unit)) {
    for (const UnitGpu& on_gpu : seat->unit->gpus) agenda.hand_over(*on_gpu.gpu);
  }
  progress(*seat->unit);
}

void LeaseCore::State::on(const Drained& e) {
  Seat* const seat = seat_in(e.seat, e.epoch);
  if (seat == nullptr) return;
  if (seat->phase == SeatPhase::kHolding) {
    seat->poisoned |= e.poisoned;
    release(*seat);
  } else if (is_in_revocation(*seat)) {
    seat->poisoned |= e.poisoned;
    heard(*seat);
    // If it was said before the tenant knew that its permits were taken back, it does not count. The tenant says it
    // again.
    if (seat->revocation->closing != Closing::kRecalled) drained(*seat);
  }
}

void LeaseCore::State::on(const Stepped& e) {
  Seat* const seat = seat_in(e.seat, e.epoch);
  if (seat == nullptr || !is_in_revocation(*seat)) return;
  SeatRevocation& revocation = *seat->revocation;
  if (revocation.permits > 0 && e.count > 0) {
    revocation.permits -= std::min(revocation.permits, e.count);
    revocation.closing = Closing::kClosed;
  }
  heard(*seat);
  progress(*seat->unit);
}

void LeaseCore::State::on(const Idling& e) {
  Seat* const seat = seat_in(e.seat, e.epoch);
  if (seat == nullptr || seat->phase != SeatPhase::kHolding || rests(*seat)) return;
  seat->idleness = {.since = now};
  const Unit& unit = *seat->unit;
  if (at_work(unit) > 1) return;  // others of its gang go on
  for (const UnitGpu& on_gpu : unit.gpus) heads_up(*on_gpu.gpu);
}

// ---- time ---------------------------------------------------------------------------------------

void LeaseCore::State::on(const TimePassed&) {
  for (Timer* timer = timers.earliest(); timer != nullptr && timer->at() <= now; timer = timers.earliest()) {
    timers.stop(*timer);
    fire(*timer);
  }
}

void LeaseCore::State::fire(Timer& timer) {
  switch (timer.kind) {
    case TimerKind::kRun: return agenda.touch(*timer.unit);
    case TimerKind::kStall: return stalled(*timer.unit);
    case TimerKind::kStep: return step(*timer.unit);
    case TimerKind::kAge: return age(*timer.unit);
    case TimerKind::kLift: return lift(*timer.unit);
    case TimerKind::kThaw: return cap_is_due(*timer.unit);
    case TimerKind::kAnswer: return unanswered(*timer.seat);
    case TimerKind::kGrantsHeld: return on(GrantsAllowed());
  }
}

}  // namespace gpumux::sched
