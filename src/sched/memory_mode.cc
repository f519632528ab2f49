// SPDX-License-Identifier: Apache-2.0
#include "sched/memory_mode.h"

namespace gpumux::sched {

Mode MemoryMode::resolve(TimePoint now, const Residency& planner, GpuIndex gpu, Setting setting, bool wants_turns,
                         Mode current) {
  look_again_ = TimePoint::max();
  if (!setting.is_auto && setting.mode == Mode::kSerial) return Mode::kSerial;
  // The driver's time slicing knows nothing of priorities, shares and caps.
  if (setting.is_auto && wants_turns) return Mode::kSerial;

  const Togetherness all = planner.together(gpu);
  const std::uint64_t margin = turns_for_memory_ ? planner.capacity(gpu) / kFitMarginDivisor : 0;
  const bool fits = planner.fits_together(gpu, margin);
  if (setting.is_auto) {
    if (all.seats < 2 || all.unknown > 0) return current;  // no difference, or not known yet
    // Somebody's memory is left to the driver: nobody knows whether it would fit.
    if (all.silent > 0) return Mode::kSerial;
  } else if (all.evicted == 0 && current == Mode::kConcurrent) {
    return current;  // what does not fit is refused
  }
  if (!fits) {
    did_not_fit_at_ = now;
    turns_for_memory_ = true;
    return Mode::kSerial;
  }
  if (turns_for_memory_ && now - did_not_fit_at_ < kFitDwell) {
    look_again_ = did_not_fit_at_ + kFitDwell;
    return current;
  }
  turns_for_memory_ = false;
  return Mode::kConcurrent;
}

}  // namespace gpumux::sched
