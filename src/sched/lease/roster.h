// SPDX-License-Identifier: Apache-2.0
// All GPUs, tenants and units, and which seats are in which unit. Private to src/sched.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/limits.h"
#include "sched/lease/units.h"

namespace gpumux::sched {

class Roster {
 public:
  using Tenants = std::map<TenantId, std::unique_ptr<Tenant>>;
  using Units = std::map<std::uint64_t, std::unique_ptr<Unit>>;

  // nullptr: there is none.
  Gpu* gpu_of(GpuIndex index) const;
  Tenant* tenant_of(TenantId id) const;
  Seat* seat_of(SeatId id) const;
  Seat* seat_in(SeatId id, LeaseEpoch epoch) const;  // only if that is its epoch

  const std::vector<Gpu*>& gpus() const { return gpu_list_; }  // ascending
  const Units& units() const { return units_; }                // by serial
  const Shapes& shapes() const { return shapes_; }

  // REQUIRES: its number is below kMaxGpus, and no GPU has it.
  void add_gpu(std::unique_ptr<Gpu> gpu);
  // REQUIRES: no tenant has the number.
  void add_tenant(TenantId id, std::uint32_t uid);
  // REQUIRES: it has no seats.
  void remove(const Tenant& tenant) { tenants_.erase(tenant.id); }
  // Without seats.
  Unit& make_unit();
  // REQUIRES: it has no seats.
  void remove(const Unit& unit) { units_.erase(unit.serial); }

  // These two change nothing but which unit the seat is in. set_shape() follows.
  static void attach(Seat& seat, Unit& unit);
  static void detach(Seat& seat);
  // Works out the unit's GPUs from its seats. REQUIRES: it does not wait.
  void set_shape(Unit& unit);

 private:
  std::array<std::unique_ptr<Gpu>, base::kMaxGpus> gpus_;
  std::vector<Gpu*> gpu_list_;
  Tenants tenants_;
  Units units_;
  Shapes shapes_;
  std::uint64_t next_serial_ = 1;
};

}  // namespace gpumux::sched
