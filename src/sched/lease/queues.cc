// SPDX-License-Identifier: Apache-2.0
#include "sched/lease/queues.h"

#include <algorithm>

#include "sched/lease/order.h"

namespace gpumux::sched {

void Queues::enqueue(Unit& unit) {
  for (const Seat* seat : unit.seats) books_.charge_what_runs_on(*seat->group);
  unit.phase = UnitPhase::kWaiting;
  unit.requested = TimePoint::max();
  timers().stop(unit.thaw);
  for (const UnitGpu& on_gpu : unit.gpus) {
    Gpu& gpu = *on_gpu.gpu;
    // With waiters, the present is theirs; without, the holder is the one whom a newcomer must not be ahead of.
    if (gpu.waiting == 0 && gpu.holders.size() == 1)
      gpu.groups.advance(virtual_time_of(*gpu.holders.front(), gpu, now()));
  }
  for (Seat* seat : unit.seats) {
    if (seat->wants_since)
      unit.requested = std::min(unit.requested, seat->keeps_place ? seat->turn_since : *seat->wants_since);
    books_.catch_up(*seat);
    books_.set_phase(*seat, SeatPhase::kWaiting);
  }
  for (const UnitGpu& on_gpu : unit.gpus) ++on_gpu.gpu->waiting;
  stop_yielding(unit);
  books_.insert_in_queue(unit);
  if (unit.shape->gpus().size() > 1)
    timers().arm(unit.age, std::max(now(), after(unit.requested, strictest(unit, &GpuSettings::gang_ageing))));
  timers().arm(unit.lift, after(now(), strictest(unit, &GpuSettings::priority_ageing)));
  reservations_.units_changed();
  agenda().touch(unit);
}

void Queues::admit(Unit& unit) {
  if (unit.phase != UnitPhase::kIdle) return;
  if (may_wait(unit)) {
    if (!freeze(unit) && wants(unit)) enqueue(unit);
  } else if (!any_seat(unit, runs_on)) {
    for (Seat* seat : unit.seats) {
      if (is_suspended(*seat)) seat->suspension = Suspension::kStandsStill;
    }
  }
}

void Queues::dequeue(Unit& unit) {
  if (unit.phase != UnitPhase::kWaiting) return;
  unit.phase = UnitPhase::kIdle;
  unit.shape->erase(unit);
  for (const UnitGpu& on_gpu : unit.gpus) --on_gpu.gpu->waiting;
  for (Seat* seat : unit.seats) books_.set_phase(*seat, SeatPhase::kIdle);
  timers().stop(unit.age);
  timers().stop(unit.lift);
  reservations_.remove(unit);
  agenda().touch(unit);
}

}  // namespace gpumux::sched
