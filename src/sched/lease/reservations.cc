// SPDX-License-Identifier: Apache-2.0
#include "sched/lease/reservations.h"

#include <algorithm>
#include <array>
#include <utility>

#include "sched/lease/order.h"
#include "sched/lease/queues.h"
#include "sched/lease/settler.h"

namespace gpumux::sched {

bool Reservations::Earlier::operator()(const Unit* a, const Unit* b) const {
  if (a->requested != b->requested) return a->requested < b->requested;
  return a->seats.front()->id < b->seats.front()->id;
}

void Reservations::add_aged(Unit& unit) {
  if (aged_[unit.shape].insert(&unit).second) is_stale_ = true;
}

bool Reservations::is_aged(const Unit& unit) const {
  const auto shape = aged_.find(unit.shape);
  return shape != aged_.end() && shape->second.contains(&unit);
}

void Reservations::remove(Unit& unit) {
  const auto shape = aged_.find(unit.shape);
  if (shape == aged_.end() || shape->second.erase(&unit) == 0) return;
  if (shape->second.empty()) aged_.erase(shape);
  for (const UnitGpu& on_gpu : unit.gpus) {
    if (on_gpu.gpu->reserved_ == &unit) on_gpu.gpu->reserved_ = nullptr;
  }
  is_stale_ = true;
}

// ---- rules 5 and 6: which units have their GPUs reserved ----------------------------------------

// Of the gangs of one shape only the first can get anything.
GpuSet Reservations::renew(const std::vector<Gpu*>& gpus) {
  is_stale_ = false;
  std::vector<Unit*> candidates;
  for (const auto& [shape, units] : aged_) {
    const auto first = std::find_if(units.begin(), units.end(), [](const Unit* unit) { return !is_outranked(*unit); });
    if (first != units.end()) candidates.push_back(*first);
  }
  std::sort(candidates.begin(), candidates.end(), Earlier());
  std::array<Unit*, base::kMaxGpus> before{};
  for (Gpu* gpu : gpus) before[gpu->index.value] = std::exchange(gpu->reserved_, nullptr);
  for (Unit* const unit : candidates) {
    const auto is_free = [](const UnitGpu& on_gpu) { return on_gpu.gpu->reserved_ == nullptr; };
    if (!std::all_of(unit->gpus.begin(), unit->gpus.end(), is_free)) continue;
    for (const UnitGpu& on_gpu : unit->gpus) on_gpu.gpu->reserved_ = unit;
  }
  GpuSet changed;
  for (const Gpu* gpu : gpus) {
    if (gpu->reserved_ != before[gpu->index.value]) changed.set(gpu->index.value);
  }
  return changed;
}

void Queues::settle_reservations() {
  if (!reservations_.is_stale()) return;
  for (GpuSet changed = reservations_.renew(roster_.gpus()); !changed.empty();)
    agenda().touch_around(*roster_.gpu_of({changed.take_first()}));
}

bool is_outranked(const Unit& unit) {
  if (unit.lifted) return false;
  return any_before(unit, [priority = priority_of(unit)](const Unit* other) {
    return !other->yields_since && priority_of(*other) > priority;
  });
}

// ---- rule 4: what a reservation keeps from other units ------------------------------------------

bool is_reserved_against(const Unit& unit, TimePoint now) {
  for (const UnitGpu& on_gpu : unit.gpus) {
    const Unit* const reserved = on_gpu.gpu->reserved();
    if (reserved == nullptr || reserved == &unit) continue;
    // Of its own shape only units ahead of it come here: the shape's queue has one order, even if its GPUs' orders
    // differ.
    if (reserved->shape == unit.shape) continue;
    if (!(entry_of(unit, *on_gpu.gpu, now) < entry_of(*reserved, *on_gpu.gpu, now))) return true;
  }
  return false;
}

// ---- rule 1: a gang makes way on its other GPUs ---------------------------------------------------

bool Queues::gives_way(const Unit& gang, const Gpu& here) const {
  for (const UnitGpu& on_gpu : gang.gpus) {
    Gpu& gpu = *on_gpu.gpu;
    if (&gpu == &here) continue;
    const Unit* const single = gpu.first_single();
    if (single == nullptr || is_reserved_against(*single, now()) || !(single->queued() < entry_of(gang, gpu, now())))
      continue;
    agenda().give_way(here, *single, gpu);
    return true;
  }
  return false;
}

// ---- rules 2 and 3: holders go for a gang, or for a single unit ---------------------------------

void Queues::age(Unit& unit) {
  if (unit.phase == UnitPhase::kWaiting && !is_obstructed(unit)) reservations_.add_aged(unit);
}

// Revokes the holders that keep `waiter` from its GPUs and have no time left. Unless the GPUs are reserved, it revokes
// all of these holders or none.
void Settler::preempt_for(Unit& waiter) {
  std::vector<std::pair<Unit*, const Gpu*>> to_go;
  bool whole = true;
  bool is_reserved = true;
  for (const UnitGpu& on_gpu : waiter.gpus) {
    Gpu& gpu = *on_gpu.gpu;
    if (gpu.reserved() != &waiter) is_reserved = false;
    Unit* const holder = turn_on(gpu);
    if (holder == nullptr) {
      if (!gpu.can_start()) whole = false;
      continue;
    }
    const auto consider = [&](Unit* unit) {
      if (time_left(*unit, gpu, waiter, now()) > Duration::zero()) {
        whole = false;
      } else if (std::none_of(to_go.begin(), to_go.end(), [&](const auto& one) { return one.first == unit; })) {
        to_go.emplace_back(unit, &gpu);
      }
    };
    consider(holder);
    // A gang does not borrow: the lender has to go, too.
    if (gpu.loan && waiter.gpus.size() > 1) consider(gpu.loan->lender);
  }
  if (to_go.empty() || !(whole || is_reserved)) return;
  if (waiter.gpus.size() > 1 && !is_reserved) {
    if (is_reserved_against(waiter, now())) return;
    queues_.age(waiter);  // so that what is given up for it goes to it
  }
  for (const auto& [holder, gpu] : to_go) revoke_for(waiter, *holder, *gpu);
}

}  // namespace gpumux::sched
