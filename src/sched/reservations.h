// SPDX-License-Identifier: Apache-2.0
// The GPUs that are kept free for a unit.
//
// A gang needs all its GPUs in the same moment, and on a busy machine that moment may never come by itself. Two rules
// make it come. A gang whose GPUs are each free or held beyond its holder's quantum gets them all: the core revokes the
// holders together. A gang that has waited for gang_ageing has its GPUs *reserved*: the core grants no unit behind the
// gang there any more. The core makes reservations in one order, longest wait first. Each is for all GPUs of a gang, or
// it is not made. So two gangs never keep half of each other's GPUs. Units ahead of the gang still go first. They are
// finitely many, because a unit that has had its turn is behind (fair: its virtual time grew; fifo: it asked later). So
// neither a stream of single seats starves a gang, nor a stream of gangs a single seat.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "sched/gpu_set.h"
#include "sched/units.h"

namespace gpumux::sched {

class Reservations {
 public:
  // The unit's GPUs may be kept free: it has waited for gang_ageing, or holders go for it. Until it is removed, its
  // request and its seats stay as they are.
  void add_aged(Unit& unit);
  bool is_aged(const Unit& unit) const;
  // The unit must have its lease back.
  void add_returning(Unit& unit);
  const UnitSet& returning() const { return returning_; }
  // No GPU is kept free for the unit any more.
  void remove(Unit& unit);

  // A unit has started, gone or asked: that may change which units are outranked.
  void units_changed() { is_stale_ = is_stale_ || !aged_.empty(); }
  // Which of the units that return go first depends on their gates.
  void gate_closed(const Unit& unit) { is_stale_ = is_stale_ || unit.is_returning(); }
  // Whether they must be made anew before a GPU is granted.
  bool is_stale() const { return is_stale_; }
  // Makes all of them anew. Returns the GPUs that were kept for another unit, or for none.
  GpuSet renew(const std::vector<Gpu*>& gpus);

 private:
  // Units of one shape, the longest wait first.
  struct Earlier {
    using is_transparent = void;
    bool operator()(const Unit* a, const Unit* b) const;
  };

  std::map<const Shape*, std::set<Unit*, Earlier>> aged_;  // the order of shapes says nothing: renew() sorts
  UnitSet returning_;
  bool is_stale_ = false;
};

}  // namespace gpumux::sched
