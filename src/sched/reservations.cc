// SPDX-License-Identifier: Apache-2.0
#include "sched/reservations.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "sched/order.h"

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

void Reservations::add_returning(Unit& unit) {
  returning_.insert(&unit);
  is_stale_ = true;
}

void Reservations::remove(Unit& unit) {
  const auto shape = aged_.find(unit.shape);
  const bool was_aged = shape != aged_.end() && shape->second.erase(&unit) > 0;
  if (was_aged && shape->second.empty()) aged_.erase(shape);
  if (!was_aged && !returning_.contains(&unit)) return;
  returning_.erase(&unit);
  for (const UnitGpu& on_gpu : unit.gpus) {
    if (on_gpu.gpu->reserved_ == &unit) on_gpu.gpu->reserved_ = nullptr;
  }
  is_stale_ = true;
}

// Units that must have their leases back come first: those with an open gate before the others, which have to wait for
// that. Then come the gangs, longest wait first. Only the first gang of a shape can get anything.
GpuSet Reservations::renew(const std::vector<Gpu*>& gpus) {
  is_stale_ = false;
  enum Class { kWithOpenGate, kReturning, kAged };
  std::vector<std::tuple<Class, TimePoint, SeatId, Unit*>> candidates;
  for (Unit* unit : returning_) {
    candidates.emplace_back(has_open_gate(*unit) ? kWithOpenGate : kReturning, *unit->revocation->returning_since,
                            unit->seats.front()->id, unit);
  }
  for (const auto& [shape, units] : aged_) {
    // Nothing is kept free for who has to wait for a higher priority on another of its GPUs, for as long as that likes.
    const auto first = std::find_if(units.begin(), units.end(), [](const Unit* unit) { return !is_outranked(*unit); });
    if (first != units.end()) candidates.emplace_back(kAged, (*first)->requested, (*first)->seats.front()->id, *first);
  }
  std::sort(candidates.begin(), candidates.end());
  std::array<Unit*, base::kMaxGpus> before{};
  for (Gpu* gpu : gpus) before[gpu->index.value] = std::exchange(gpu->reserved_, nullptr);
  for (const auto& candidate : candidates) {
    Unit* const unit = std::get<Unit*>(candidate);
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

}  // namespace gpumux::sched
