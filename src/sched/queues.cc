// SPDX-License-Identifier: Apache-2.0
// Units that wait.
#include <algorithm>

#include "sched/order.h"
#include "sched/state.h"

namespace gpumux::sched {

void LeaseCore::State::enqueue(Unit& unit) {
  unit.phase = UnitPhase::kWaiting;
  unit.requested = TimePoint::max();
  timers.stop(unit.thaw);
  for (const UnitGpu& on_gpu : unit.gpus) {
    Gpu& gpu = *on_gpu.gpu;
    // With waiters, the present is theirs; without, the holder is the one whom a newcomer must not be ahead of.
    if (gpu.waiting == 0 && gpu.holders.size() == 1)
      gpu.groups.advance(virtual_time_of(*gpu.holders.front(), gpu, now));
  }
  for (Seat* seat : unit.seats) {
    if (seat->wants_since)
      unit.requested = std::min(unit.requested, seat->keeps_place ? seat->turn_since : *seat->wants_since);
    catch_up(*seat);
    set_phase(*seat, SeatPhase::kWaiting);
  }
  for (const UnitGpu& on_gpu : unit.gpus) ++on_gpu.gpu->waiting;
  settle_yielded(unit);
  insert_in_queue(unit);
  if (unit.shape->gpus().size() > 1)
    timers.arm(unit.age, std::max(now, after(unit.requested, strictest(unit, &GpuSettings::gang_ageing))));
  timers.arm(unit.lift, after(now, strictest(unit, &GpuSettings::priority_ageing)));
  reservations.units_changed();
  agenda.touch(unit);
}

// If a seat of it wants, and it may wait. A unit that has spent an allowance freezes whether it wants or not. Otherwise
// it would not be frozen if it asked a moment later.
void LeaseCore::State::queue(Unit& unit) {
  if (unit.phase == UnitPhase::kIdle && !is_suspended(unit) && !freeze(unit) && wants(unit)) enqueue(unit);
}

void LeaseCore::State::dequeue(Unit& unit) {
  if (unit.phase != UnitPhase::kWaiting) return;
  unit.phase = UnitPhase::kIdle;
  unit.shape->erase(unit);
  for (const UnitGpu& on_gpu : unit.gpus) --on_gpu.gpu->waiting;
  for (Seat* seat : unit.seats) set_phase(*seat, SeatPhase::kIdle);
  timers.stop(unit.age);
  timers.stop(unit.lift);
  reservations.remove(unit);
  agenda.touch(unit);
}

}  // namespace gpumux::sched
