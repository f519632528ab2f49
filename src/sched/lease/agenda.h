// SPDX-License-Identifier: Apache-2.0
// The GPUs that settle() has yet to look at, and why.
#pragma once

#include <cstdint>
#include <utility>

#include "sched/lease/gpu_set.h"
#include "sched/lease/units.h"

namespace gpumux::sched {

class Agenda {
 public:
  // Something about the GPU has changed.
  void touch(const Gpu& gpu) { changed_.set(gpu.index.value); }
  void touch(const Unit& unit) {
    for (const UnitGpu& on_gpu : unit.gpus) touch(*on_gpu.gpu);
  }
  // The GPU's reservation has changed, or the place of the unit that has it. A gang that the reservation keeps off is
  // no longer in the way of units behind it, on the rest of its GPUs as well.
  void touch_around(const Gpu& gpu) {
    touch(gpu);
    for (const Shape* shape : gpu.shapes()) {
      if (const Unit* const first = shape->first()) touch(*first);
    }
  }

  // A gang that is next on `here` gives way to `single`, which is ahead of it on `there`. That unit starts in a moment,
  // or when a drain is over that keeps it or those before it. Looking again now would find the same, and two GPUs would
  // look at each other for ever.
  void give_way(const Gpu& here, const Unit& single, const Gpu& there) {
    if (must_wait_for_drain(single) || gave_way_.has(here.index.value)) return wait_for_drain(here);
    gave_way_.set(here.index.value);
    touch(there);
  }
  // A unit has started, or an event has come: gangs look again whether they give way.
  void look_again() { gave_way_ = {}; }
  // The unit that is next there waits for a drain, which may be another GPU's.
  void wait_for_drain(const Gpu& gpu) { held_up_.set(gpu.index.value); }
  // Units that a drain kept from their GPUs may start now, or may no longer be next.
  void drain_is_over() {
    while (!held_up_.empty()) changed_.set(held_up_.take_first());
  }
  // The unit that is next there is given a heads-up when all is at rest.
  void hand_over(const Gpu& gpu) { handing_over_.set(gpu.index.value); }

  // Whether every GPU has been looked at since it has changed.
  bool is_at_rest() const { return changed_.empty(); }
  // REQUIRES: not at rest.
  std::uint32_t take_changed() {
    const std::uint32_t index = changed_.take_first();
    looked_at_.set(index);
    return index;
  }
  GpuSet take_handing_over() { return std::exchange(handing_over_, {}); }
  // The GPUs that were looked at since the last call.
  GpuSet take_looked_at() { return std::exchange(looked_at_, {}); }

 private:
  GpuSet changed_;
  GpuSet gave_way_;
  GpuSet held_up_;
  GpuSet handing_over_;
  GpuSet looked_at_;
};

}  // namespace gpumux::sched
