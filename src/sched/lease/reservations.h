// SPDX-License-Identifier: Apache-2.0
// When a gang gets its GPUs. It needs all of them in the same moment.
//
//  1. A gang starts when its GPUs are free, and no single seat that goes before it on one of them can start there.
//  2. When each GPU of a gang is free, or its holder has no time left, the core revokes all these holders together. It
//     *reserves* the GPUs for the gang.
//  3. The core also reserves them when the gang has waited for gang_ageing. Then each holder goes at its own time.
//  4. On a reserved GPU no unit of a greater key starts. Units of lesser keys still go first.
//  5. All GPUs of a gang are reserved or none. The gang that asked first has the first choice.
//  6. None is reserved for a gang that is obstructed, or that has to wait for a higher priority on one of its GPUs.
//
// So two gangs never keep half of each other's GPUs. Units of lesser keys are finitely many: a unit that has had its
// turn is behind. Its virtual time grew (fair), or it asked later (fifo). So neither a stream of single seats starves a
// gang, nor a stream of gangs a single seat. reservations.cc has all of the code, by these numbers.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "sched/lease/gpu_set.h"
#include "sched/lease/units.h"

namespace gpumux::sched {

class Reservations {
 public:
  // Rules 2 and 3: the gang may have its GPUs reserved. Until it is removed, its request and its seats stay as they
  // are.
  void add_aged(Unit& unit);
  bool is_aged(const Unit& unit) const;
  // No GPU is kept free for the unit any more.
  void remove(Unit& unit);

  // A unit has started, gone or asked: that may change which units are outranked.
  void units_changed() { is_stale_ = is_stale_ || !aged_.empty(); }
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
  bool is_stale_ = false;
};

// Rule 6: whether a unit that holds or waits for one of its GPUs has a higher priority, and does not yield. A lifted
// unit is never outranked.
bool is_outranked(const Unit& unit);
// Rule 4: whether one of its GPUs is kept free for another unit that goes first.
bool is_reserved_against(const Unit& unit, TimePoint now);

}  // namespace gpumux::sched
