// SPDX-License-Identifier: Apache-2.0
// The units that a stalled unit may wait for: what an operator is told when a seat stalls.
//
// A kernel that waits for work of another process ends as soon as that process has its GPU. If no tenant has said that
// the two belong together, only a stall shows it: one kernel does not end, and another unit waits.
//
// Likely partners of a stalled unit are the units of the same user that have waited for a lease during the whole of the
// revocation. A unit that had a lease in that time could have done what the kernel waits for. A unit that is being
// revoked gets another turn. A unit that needs one of the stalled unit's GPUs waits
// because of it, which says nothing. (A kernel that spins for work on its own GPU lets that work start: see overlap.)
#include <algorithm>
#include <utility>

#include "sched/lease/revocations.h"

namespace gpumux::sched {
namespace {

TimePoint waits_since(const Unit& unit) {
  TimePoint since = TimePoint::max();
  for (const Seat* seat : unit.seats) {
    if (seat->wants_since) since = std::min(since, *seat->wants_since);
  }
  return since;
}

}  // namespace

std::vector<Unit*> Revocations::partners_of(const Unit& stalled) const {
  std::vector<Unit*> partners;
  if (grants_.are_held()) return partners;  // every unit waits
  for (const auto& [serial, unit] : roster_.units()) {
    if (unit->phase != UnitPhase::kWaiting || waits_since(*unit) > stalled.revocation->began) continue;
    if (unit->seats.front()->tenant->uid != stalled.seats.front()->tenant->uid) continue;
    const auto is_shared = [&stalled](const UnitGpu& on_gpu) { return stalled.on(*on_gpu.gpu) != nullptr; };
    if (std::any_of(unit->gpus.begin(), unit->gpus.end(), is_shared)) continue;
    partners.push_back(unit.get());
  }
  std::sort(partners.begin(), partners.end(), [](const Unit* a, const Unit* b) {
    return std::pair(waits_since(*a), a->seats.front()->id) < std::pair(waits_since(*b), b->seats.front()->id);
  });
  return partners;
}

}  // namespace gpumux::sched
