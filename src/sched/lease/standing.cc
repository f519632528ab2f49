// SPDX-License-Identifier: Apache-2.0
// The order of units under every policy: priorities, ageing, caps.
//
// Priorities. In every queue the higher one is ahead; a holder goes at once for it, and for a lower one only when
// max_runtime is over. Two things keep that from shutting any unit out. First, a unit whose lease max_runtime has ended
// for a lower one's sake *yields*. It queues behind all others until one of them has started, and that one is *safe*
// from it for a quantum. Second, where priority_ageing is set, a unit that has waited that long is *lifted*. It is
// ahead of all that are not, the longest wait first, an equal of the holders, and safe for a quantum when it starts. A
// unit that lifted units hold up is lifted in its turn, at any priority. So a crowd of low priority does not shut out a
// unit of high priority, nor the other way round. (Also on a GPU where no unit ages: gangs are lifted by what holds on
// their other GPUs.) A gang has the highest priority of its members.
//
// Caps. A capped seat has an allowance of lease time (cap_budget.h). A seat that computes on the CPU with a lease would
// spend it. So capped holders are told that their lease is contended, and give an idle lease up.
//
// Here is also whether the standing of a GPU's seats calls for turns (LeaseCore::wants_turns).
#include <algorithm>

#include "sched/lease/order.h"
#include "sched/lease/state.h"

namespace gpumux::sched {
namespace {

// A unit that was due to be lifted, but waits among equals only, is looked at again after this part of priority_ageing.
// A guess: it is lifted late by this part at most, for as many timers.
constexpr std::int64_t kLooksPerAgeing = 8;
// A look is later than now whatever the setting is, or the core would never come to rest.
constexpr Duration kShortestLook = std::chrono::microseconds(1);

}  // namespace

void LeaseCore::State::on(const StandingChanged& e) {
  Seat* const seat = roster.seat_of(e.seat);
  if (seat == nullptr) return;
  books.charge(*seat);
  books.settle_allowance(*seat);
  Unit& unit = *seat->unit;
  if (e.priority != seat->priority) books.begin_anew(*seat);
  books.set_standing(*seat, e.priority, e.weight, e.cap);
  if (unit.phase == UnitPhase::kWaiting) books.requeue(unit);
  if (unit.phase == UnitPhase::kHolding) {
    grants.tell_contention(unit, unit.told_contended);
    queues.arm_cap(unit);
  }
  queues.admit(unit);
  for (const UnitGpu& on_gpu : unit.gpus) grants.seats_changed(*on_gpu.gpu);
  queues.reservations().units_changed();
  common.agenda.touch(unit);
}

// ---- priorities ---------------------------------------------------------------------------------

// It has waited for priority_ageing. A unit that waits among equals only is looked at again: shares decide there.
void Queues::lift(Unit& unit) {
  if (unit.phase != UnitPhase::kWaiting || unit.lifted) return;
  const auto is_lifted = [](const Unit* other) {
    return other->phase == UnitPhase::kHolding ? other->hold->is_safe : other->lifted;
  };
  const Limit<Duration> ageing = strictest(unit, &GpuSettings::priority_ageing);
  const bool ages = !ageing.is_unlimited();
  if (!any_before(unit, is_lifted) && !(ages && is_outranked(unit))) {
    if (ages) timers().arm(unit.lift, after(now(), std::max(ageing.value() / kLooksPerAgeing, kShortestLook)));
    return;
  }
  unit.lifted = true;
  unit.yields_since.reset();
  books_.requeue(unit);
  if (!ages) return;
  // Units that wait where they do not age are looked at when they have waited for this unit as long as it has waited.
  for (const UnitGpu& on_gpu : unit.gpus) {
    for (const Shape* shape : on_gpu.gpu->shapes()) {
      for (const QueueEntry& entry : shape->queue()) {
        if (!entry.unit->lifted && !entry.unit->lift.armed())
          timers().arm(entry.unit->lift, after(now(), ageing.value()));
      }
    }
  }
}

// It yields, and another unit has started since it was told to go: that is over.
void Queues::stop_yielding(Unit& unit) {
  if (!unit.yields_since) return;
  const TimePoint since = *unit.yields_since;
  for (const UnitGpu& on_gpu : unit.gpus) {
    for (Unit* holder : on_gpu.gpu->holders) {
      if (holder->hold->granted_at < since) continue;
      holder->hold->is_safe = true;
      unit.yields_since.reset();
    }
  }
}

void Queues::stop_yielding_to(Unit& started) {
  started.hold->is_safe = started.lifted;
  started.lifted = false;
  started.yields_since.reset();
  for (const UnitGpu& on_gpu : started.gpus) {
    for (const Shape* shape : on_gpu.gpu->shapes()) {
      // Behind them are only units that cannot run at all.
      std::vector<Unit*> yielding;
      for (auto entry = shape->queue().rbegin(); entry != shape->queue().rend(); ++entry) {
        if (entry->unit->yields_since) yielding.push_back(entry->unit);
        if (!entry->unit->yields_since && !entry->obstructed) break;
      }
      for (Unit* unit : yielding) {
        unit->yields_since.reset();
        books_.requeue(*unit);
        started.hold->is_safe = true;
      }
    }
  }
}

bool LeaseCore::wants_turns(GpuIndex index) const {
  const Gpu* const gpu = state_->roster.gpu_of(index);
  if (gpu == nullptr) return false;
  const auto takes_part = [](const Seat* seat) { return !is_suspended(*seat); };
  const Seat* first = nullptr;
  std::size_t seats = 0, groups = 0;
  bool differs = false;
  for (const Seat* seat : gpu->seats) {
    if (!takes_part(seat)) continue;
    if (first == nullptr) first = seat;
    const auto& members = seat->group->seats();
    ++seats;
    groups += *std::find_if(members.begin(), members.end(), takes_part) == seat ? 1u : 0u;
    differs = differs || seat->budget.is_capped() || seat->ends_own_turns || seat->priority != first->priority ||
              seat->group->weight() != first->group->weight();
  }
  // The driver's slices are the same for each seat. So are the shares, if each group has one seat, or there is one
  // group.
  return differs || (groups > 1 && seats > groups);
}

bool LeaseCore::has_overruns(GpuIndex index) const {
  const Gpu* const gpu = state_->roster.gpu_of(index);
  return gpu != nullptr &&
         std::any_of(gpu->seats.begin(), gpu->seats.end(), [](const Seat* seat) { return has_overrun(*seat); });
}

// ---- caps ---------------------------------------------------------------------------------------

void Queues::arm_cap(Unit& unit) {
  TimePoint ends = TimePoint::max();
  for (Seat* seat : unit.seats) {
    if (!seat->budget.is_capped()) continue;
    books_.settle_allowance(*seat);
    ends = std::min(ends, after(now(), seat->budget.lasts()));
  }
  timers().arm(unit.thaw, ends);
}

// Whether it may not queue now. It will when its timer fires.
bool Queues::freeze(Unit& unit) {
  Duration longest = Duration::zero();
  for (Seat* seat : unit.seats) {
    if (!seat->budget.is_capped()) continue;
    books_.settle_allowance(*seat);
    if (seat->budget.is_spent() || unit.thaw.armed()) longest = std::max(longest, seat->budget.thaws_in());
  }
  timers().arm(unit.thaw, longest == Duration::zero() ? TimePoint::max() : after(now(), longest));
  return unit.thaw.armed();
}

void Revocations::cap_is_due(Unit& unit) {
  if (unit.phase == UnitPhase::kHolding) {
    if (grants_.are_held()) return timers().arm(unit.thaw, after(now(), kCapWindow));
    for (Seat* seat : unit.seats) books_.settle_allowance(*seat);
    const bool any_spent = any_seat(unit, [](const Seat& seat) { return seat.budget.is_spent(); });
    return any_spent ? revoke(unit, RevokeReason::kCap) : queues_.arm_cap(unit);
  }
  queues_.admit(unit);
}

}  // namespace gpumux::sched
