// SPDX-License-Identifier: Apache-2.0
// Tenants, seats and units: looking them up, making them, and what belongs to which.
#include <algorithm>

#include "sched/order.h"
#include "sched/state.h"

namespace gpumux::sched {

Gpu* LeaseCore::State::gpu_of(GpuIndex index) const {
  return index.value < gpus.size() ? gpus[index.value].get() : nullptr;
}

Tenant* LeaseCore::State::tenant_of(TenantId id) const {
  const auto found = tenants.find(id);
  return found == tenants.end() ? nullptr : found->second.get();
}

Seat* LeaseCore::State::seat_of(SeatId id) const {
  const Tenant* const tenant = tenant_of(id.tenant);
  if (tenant == nullptr) return nullptr;
  const auto found = tenant->seats.find(id.gpu);
  return found == tenant->seats.end() ? nullptr : found->second.get();
}

Seat* LeaseCore::State::seat_in(SeatId id, LeaseEpoch epoch) const {
  Seat* const seat = seat_of(id);
  return seat != nullptr && seat->epoch == epoch ? seat : nullptr;
}

Unit& LeaseCore::State::make_unit() {
  auto unit = std::make_unique<Unit>();
  unit->serial = next_serial++;
  Unit& made = *unit;
  units.emplace(made.serial, std::move(unit));
  return made;
}

void LeaseCore::State::attach(Seat& seat, Unit& unit) {
  seat.unit = &unit;
  unit.seats.insert(std::upper_bound(unit.seats.begin(), unit.seats.end(), &seat, BySeat()), &seat);
}

void LeaseCore::State::detach(Seat& seat) {
  std::erase(seat.unit->seats, &seat);
  seat.unit = nullptr;
}

void LeaseCore::State::set_shape(Unit& unit) {
  unit.gpus.clear();
  for (Seat* seat : unit.seats) {
    const auto same = [seat](const UnitGpu& on_gpu) { return on_gpu.gpu == seat->gpu; };
    if (std::none_of(unit.gpus.begin(), unit.gpus.end(), same)) unit.gpus.push_back({.gpu = seat->gpu, .lead = seat});
  }
  std::sort(unit.gpus.begin(), unit.gpus.end(),
            [](const UnitGpu& a, const UnitGpu& b) { return a.gpu->index < b.gpu->index; });
  std::vector<Gpu*> here;
  for (const UnitGpu& on_gpu : unit.gpus) here.push_back(on_gpu.gpu);
  Shape* const old = std::exchange(unit.shape, here.empty() ? nullptr : &shapes.join(std::move(here)));
  if (old != nullptr) shapes.leave(*old);
}

}  // namespace gpumux::sched
