// SPDX-License-Identifier: Apache-2.0
// The rules of the order of turns, as they stand at one moment: docs/order.md has them on one page. Nothing here
// changes anything.
#pragma once

#include <algorithm>
#include <compare>
#include <optional>

#include "sched/lease/units.h"

namespace gpumux::sched {

// ---- the key ------------------------------------------------------------------------------------

// The virtual time of the unit's group on the GPU, its present turn included. REQUIRES: the unit has the GPU.
std::int64_t virtual_time_of(const Unit& unit, const Gpu& gpu, TimePoint now);
// The unit's key there. The fields are those of the table "One key" in docs/order.md, and operator< compares them.
QueueEntry entry_of(const Unit& unit, const Gpu& gpu, TimePoint now);
// The key of the first unit in the shape's queue, as it stands on `gpu`. The queue has the order of the shape's first
// GPU. REQUIRES: a unit waits.
QueueEntry head_of(const Shape& shape, const Gpu& gpu, TimePoint now);
// The first, in the GPU's order, of the units that head a queue for it and satisfy `is_so`; nullptr: none.
template <class Predicate>
Unit* first_of_heads(const Gpu& gpu, TimePoint now, Predicate is_so) {
  std::optional<QueueEntry> first;
  for (const Shape* shape : gpu.shapes()) {
    if (shape->first() == nullptr || !is_so(*shape->first())) continue;
    const QueueEntry entry = head_of(*shape, gpu, now);
    if (!first || entry < *first) first = entry;
  }
  return first ? first->unit : nullptr;
}
// Whether `is_so` holds for a unit that holds one of this unit's GPUs, or that heads a queue for it.
template <class Predicate>
bool any_before(const Unit& unit, Predicate is_so) {
  return std::any_of(unit.gpus.begin(), unit.gpus.end(), [&](const UnitGpu& on_gpu) {
    const Gpu& gpu = *on_gpu.gpu;
    if (std::any_of(gpu.holders.begin(), gpu.holders.end(), is_so)) return true;
    return std::any_of(gpu.shapes().begin(), gpu.shapes().end(),
                       [&](const Shape* shape) { return shape->first() != nullptr && is_so(shape->first()); });
  });
}

// ---- the end of a turn --------------------------------------------------------------------------

// The unit whose turn it is, or that has borrowed it; nullptr: none, several, or a lender's without a borrower.
Unit* turn_on(const Gpu& gpu);
// Less: the holder goes first; greater: the waiter; equal: time decides.
inline std::strong_ordering precedence(const Unit& waiter, const Unit& holder) {
  if (waiter.lifted) return std::strong_ordering::equal;
  return priority_of(waiter) <=> priority_of(holder);
}
// Whether `unit` has had much less time for its weight than `other` (kBehindPart). The present turn of `other` does not
// count: every unit that waits falls behind by that. Under fifo no unit is behind.
bool is_behind(const Unit& unit, const Unit& other, const Gpu& gpu, TimePoint now);
// How long `holder` may keep `gpu` although `waiter` waits. Zero: it must go now. The rows are those of the table "Time
// left" in docs/order.md.
Duration time_left(const Unit& holder, const Gpu& gpu, const Unit& waiter, TimePoint now);

// ---- lent turns ---------------------------------------------------------------------------------

// Whether it is a single seat that drains in time, lacks nothing, and will lose nothing to a holder that waits for its
// memory.
bool may_borrow(const Unit& unit);
// Whether the holder waits for memory that comes, where turns can be lent.
bool may_lend(const Unit& holder, const Gpu& gpu);
// The first unit in the queue that lacks nothing; nullptr: none.
Unit* complete_on(const Gpu& gpu);
// The unit to which the turn on `gpu` may be lent now; nullptr: none, or some unit has borrowed it, or drains.
Unit* borrower_on(const Gpu& gpu);

// ---- the next unit, and what a holder does for it -----------------------------------------------

// The unit that is next, as far as it can be told while another one still has the GPU. While a holder waits for its
// memory, that is one to which its turn can be lent.
Unit* expected_on(const Gpu& gpu, TimePoint now);
// The table "Idle hold" of docs/order.md. By the ski-rental rule, a holder keeps an idle lease for as long as giving it
// up costs. So it loses at most twice what the best choice would have cost. If no memory has to come for the next unit,
// this switch costs next to nothing, even if others cost much. A holder whose pauses are longer than that gives the
// lease up as soon as it is seen to idle. A holder that waits for its memory is not idle: it lends its turn.
Limit<Duration> idle_hold_of(const Unit& holder, const Gpu& gpu, TimePoint now);

}  // namespace gpumux::sched
