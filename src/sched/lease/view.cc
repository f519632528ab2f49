// SPDX-License-Identifier: Apache-2.0
// Views of the core, for people. Linear in the seats; nothing here decides anything.
#include <algorithm>

#include "sched/lease/order.h"
#include "sched/lease/state.h"

namespace gpumux::sched {
namespace {

std::string name(const Unit& unit) {
  if (unit.gang && !unit.gang->keys.empty()) return "gang " + unit.gang->keys.front();
  return "tenant " + std::to_string(unit.seats.front()->id.tenant.value);
}

std::string number(const Gpu& gpu) { return std::to_string(gpu.index.value); }

std::string gang_name(const Unit& unit) {
  if (!unit.gang) return {};
  const Gang& gang = *unit.gang;
  std::string text = gang.keys.empty() ? "own GPUs" : gang.keys.front();
  if (gang.world > 0) text += " (" + std::to_string(gang.members.size()) + " of " + std::to_string(gang.world) + ")";
  return text;
}

// The unit that keeps `waiter` from `gpu`, and how, in words.
std::string in_the_way(const Unit& waiter, const Gpu& gpu) {
  for (const Unit* holder : gpu.holders) {
    if (holder == &waiter) continue;
    if (precedence(waiter, *holder) < 0) return "higher priority of " + name(*holder);
    if (ends_own_turns(*holder, gpu)) return "turn of " + name(*holder) + ", which ends it itself";
    return "quantum of " + name(*holder);
  }
  for (const Seat* seat : gpu.seats) {
    if (seat->unit == &waiter || seat->place == Occupancy::kNone) continue;
    return name(*seat->unit) + (seat->place == Occupancy::kOverlapping ? " drains" : " gives its turn back");
  }
  if (gpu.reserved() != nullptr && gpu.reserved() != &waiter) return "kept free for " + name(*gpu.reserved());
  return {};
}

std::string_view in_words(MemoryOutlook obstacle) {
  switch (obstacle) {
    case MemoryOutlook::kUnknown:
    case MemoryOutlook::kComes:
    case MemoryOutlook::kStays:
    case MemoryOutlook::kWants: break;
    case MemoryOutlook::kOtherTenants: return "memory that other tenants cannot give up";
    case MemoryOutlook::kContexts: return "memory that the contexts of programs use: they do not fit on the GPU";
    case MemoryOutlook::kOtherPrograms: return "memory that programs outside gpumux and contexts use";
    case MemoryOutlook::kNothingMoves: return "memory, of which nothing moves; it is tried again later";
  }
  return {};
}

std::string waits_for(const Seat& seat, bool grants_held) {
  const Unit& unit = *seat.unit;
  if (seat.wants_since && unit.phase == UnitPhase::kIdle && is_suspended(unit))
    return is_suspended(seat) ? "its job, which is suspended" : "a suspended member of " + name(unit);
  if (unit.phase == UnitPhase::kWaiting || unit.phase == UnitPhase::kHolding) {
    for (const Seat* member : unit.seats) {
      if (member->memory.is_obstructed()) return std::string(in_words(member->memory.outlook));
    }
  }
  if (seat.gpu->is_lent_by(unit)) return "its memory to come; another tenant has its turn until then";
  if (seat.wants_since && unit.phase == UnitPhase::kRevoking) {
    if (unit.passed_over()) return "a stopped member of " + name(unit);
    return "its own work to drain";
  }
  if (seat.wants_since && unit.thaw.armed()) return "its own cap: time that it may have";
  if (unit.phase != UnitPhase::kWaiting) return {};
  if (grants_held) return "tenants to come back after a restart";
  std::string here = in_the_way(unit, *seat.gpu);
  if (!here.empty()) return here;
  for (const UnitGpu& on_gpu : unit.gpus) {
    if (on_gpu.gpu == seat.gpu) continue;
    const std::string there = in_the_way(unit, *on_gpu.gpu);
    if (!there.empty()) return "gang needs GPU " + number(*on_gpu.gpu) + ": " + there;
  }
  return {};
}

SeatPhase phase_of(const Seat& seat) {
  if (seat.phase != SeatPhase::kIdle) return seat.phase;
  const bool frozen = is_frozen(seat) && seat.unit->single();
  if (seat.suspension == Suspension::kStandsStill || (is_suspended(seat) && frozen)) return SeatPhase::kSuspended;
  return runs_on(seat) || is_suspended(seat) ? SeatPhase::kDraining : SeatPhase::kIdle;
}

// As if its unit were charged now.
SeatTotals totals_of(const Seat& seat, TimePoint now) {
  SeatTotals totals{seat.grants, seat.switches, seat.held, seat.idle, seat.waited};
  if (is_charged(seat)) totals.held += used_until(seat, now) - seat.charged_to;
  if (rests(seat)) totals.idle += now - seat.idleness->since;
  if (seat.wants_since && !is_suspended(seat)) totals.waited += now - *seat.wants_since;
  return totals;
}

}  // namespace

std::optional<SeatPhase> LeaseCore::phase(SeatId id) const {
  const Seat* const seat = state_->roster.seat_of(id);
  if (seat == nullptr) return std::nullopt;
  return phase_of(*seat);
}

SeatTotals LeaseCore::totals(TimePoint now, SeatId id) const {
  const Seat* const seat = state_->roster.seat_of(id);
  if (seat == nullptr) return {};
  return totals_of(*seat, std::max(now, state_->common.now));
}

Limit<Duration> LeaseCore::quantum(GpuIndex index) const {
  const Gpu* const gpu = state_->roster.gpu_of(index);
  return gpu == nullptr ? Duration::zero() : gpu->quantum();
}

void LeaseCore::uses(TimePoint now, GpuIndex index, std::vector<SeatUse>& uses) const {
  uses.clear();
  const Gpu* const gpu = state_->roster.gpu_of(index);
  if (gpu == nullptr) return;
  now = std::max(now, state_->common.now);
  for (const Seat* seat : gpu->seats) {
    if (is_suspended(*seat)) continue;
    const SeatTotals totals = totals_of(*seat, now);
    uses.push_back({.seat = seat->id,
                    .wanted = totals.held - totals.idle + totals.waited,
                    .has_turn = seat->phase == SeatPhase::kHolding && seat->kind == LeaseKind::kExclusive});
  }
}

std::vector<GpuView> LeaseCore::view(TimePoint now) const {
  State& state = *state_;
  // Everything is reckoned as of `now`; the core's own time is put back below, so that looking changes nothing.
  const TimePoint before = std::exchange(state.common.now, std::max(state.common.now, now));
  std::vector<GpuView> views;
  for (const Gpu* gpu : state.roster.gpus()) {
    GpuView view;
    view.gpu = gpu->index;
    view.settings = gpu->settings;
    view.quantum = gpu->quantum();
    view.switch_cost = gpu->cost.total();
    view.switches = gpu->switches;
    view.interrupts = gpu->interrupts;
    view.held = gpu->held + (gpu->holders.empty() ? Duration::zero() : state.common.now - gpu->held_since);

    // How far each unit is from the GPU: all shapes' queues in this GPU's order.
    std::vector<QueueEntry> order;
    for (const Shape* shape : gpu->shapes()) {
      for (const QueueEntry& queued : shape->queue()) order.push_back(entry_of(*queued.unit, *gpu, state.common.now));
    }
    std::sort(order.begin(), order.end());
    std::map<const Unit*, std::uint32_t> place_of;
    std::uint32_t next_place = 1;
    for (const QueueEntry& entry : order) place_of[entry.unit] = next_place++;

    for (const Seat* seat : gpu->seats) {
      SeatView one;
      static_cast<SeatTotals&>(one) = totals_of(*seat, state.common.now);
      one.seat = seat->id;
      one.phase = phase_of(*seat);
      one.kind = seat->kind;
      one.epoch = seat->epoch;
      one.since = seat->since;
      const auto place = place_of.find(seat->unit);
      if (place != place_of.end()) one.queue_place = place->second;
      one.waits_for = waits_for(*seat, state.grants.are_held());
      one.wait_p50 = seat->waits.percentile(500);
      one.wait_p99 = seat->waits.percentile(990);
      one.gang = gang_name(*seat->unit);
      one.priority = seat->priority;
      one.weight = seat->group->weight();
      one.cap = seat->budget.cap();
      one.poisoned = seat->poisoned;
      one.is_frozen = is_frozen(*seat);
      view.seats.push_back(std::move(one));
    }
    const auto group = [](const SeatView& seat) {
      const bool has_it =
          seat.phase != SeatPhase::kIdle && seat.phase != SeatPhase::kWaiting && seat.phase != SeatPhase::kSuspended;
      return seat.phase == SeatPhase::kHolding ? 0 : has_it ? 1 : seat.queue_place > 0 ? 2 : 3;
    };
    std::stable_sort(view.seats.begin(), view.seats.end(), [&](const SeatView& a, const SeatView& b) {
      return group(a) != group(b) ? group(a) < group(b) : a.queue_place < b.queue_place;
    });
    views.push_back(std::move(view));
  }
  state.common.now = before;
  return views;
}

}  // namespace gpumux::sched
