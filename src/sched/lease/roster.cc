// SPDX-License-Identifier: Apache-2.0
#include "sched/lease/roster.h"

#include <algorithm>
#include <utility>

namespace gpumux::sched {

Gpu* Roster::gpu_of(GpuIndex index) const { return index.value < gpus_.size() ? gpus_[index.value].get() : nullptr; }

Tenant* Roster::tenant_of(TenantId id) const {
  const auto found = tenants_.find(id);
  return found == tenants_.end() ? nullptr : found->second.get();
}

Seat* Roster::seat_of(SeatId id) const {
  const Tenant* const tenant = tenant_of(id.tenant);
  if (tenant == nullptr) return nullptr;
  const auto found = tenant->seats.find(id.gpu);
  return found == tenant->seats.end() ? nullptr : found->second.get();
}

Seat* Roster::seat_in(SeatId id, LeaseEpoch epoch) const {
  Seat* const seat = seat_of(id);
  return seat != nullptr && seat->epoch == epoch ? seat : nullptr;
}

void Roster::add_gpu(std::unique_ptr<Gpu> gpu) {
  const auto by_index = [](const Gpu* a, const Gpu* b) { return a->index < b->index; };
  gpu_list_.insert(std::upper_bound(gpu_list_.begin(), gpu_list_.end(), gpu.get(), by_index), gpu.get());
  gpus_[gpu->index.value] = std::move(gpu);
}

void Roster::add_tenant(TenantId id, std::uint32_t uid) {
  auto tenant = std::make_unique<Tenant>();
  tenant->id = id;
  tenant->uid = uid;
  tenants_.emplace(id, std::move(tenant));
}

Unit& Roster::make_unit() {
  auto unit = std::make_unique<Unit>();
  unit->serial = next_serial_++;
  Unit& made = *unit;
  units_.emplace(made.serial, std::move(unit));
  return made;
}

void Roster::attach(Seat& seat, Unit& unit) {
  seat.unit = &unit;
  unit.seats.insert(std::upper_bound(unit.seats.begin(), unit.seats.end(), &seat, BySeat()), &seat);
}

void Roster::detach(Seat& seat) {
  std::erase(seat.unit->seats, &seat);
  seat.unit = nullptr;
}

void Roster::set_shape(Unit& unit) {
  unit.gpus.clear();
  for (Seat* seat : unit.seats) {
    const auto same = [seat](const UnitGpu& on_gpu) { return on_gpu.gpu == seat->gpu; };
    if (std::none_of(unit.gpus.begin(), unit.gpus.end(), same)) unit.gpus.push_back({.gpu = seat->gpu, .lead = seat});
  }
  std::sort(unit.gpus.begin(), unit.gpus.end(),
            [](const UnitGpu& a, const UnitGpu& b) { return a.gpu->index < b.gpu->index; });
  std::vector<Gpu*> here;
  for (const UnitGpu& on_gpu : unit.gpus) here.push_back(on_gpu.gpu);
  Shape* const old = std::exchange(unit.shape, here.empty() ? nullptr : &shapes_.join(std::move(here)));
  if (old != nullptr) shapes_.leave(*old);
}

}  // namespace gpumux::sched
