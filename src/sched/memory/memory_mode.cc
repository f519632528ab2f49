// SPDX-License-Identifier: Apache-2.0
#include "sched/memory/memory_mode.h"

namespace gpumux::sched {

Mode MemoryMode::resolve(TimePoint now, const Residency& planner, GpuIndex gpu, settings::Mode setting,
                         bool wants_turns, Mode current) {
  const bool is_auto = setting == settings::Mode::kAuto;
  look_again_.reset();
  reason_ = Reason::kSetting;
  if (setting == settings::Mode::kSerial) return Mode::kSerial;
  // The driver's time slicing knows nothing of priorities, shares and caps.
  if (is_auto && wants_turns) {
    reason_ = Reason::kStanding;
    return Mode::kSerial;
  }
  const Togetherness all = planner.together(gpu);
  const std::uint64_t margin = did_not_fit_at_ ? planner.capacity(gpu) / kFitMarginDivisor : 0;
  const bool fits = planner.fits_together(gpu, margin);
  if (is_auto) {
    reason_ = Reason::kNotKnown;
    if (all.seats < 2 || all.unknown > 0) return current;
    // It is unknown whether it would fit.
    reason_ = Reason::kLeftToDriver;
    if (all.silent > 0) return Mode::kSerial;
  } else if (all.evicted == 0 && current == Mode::kConcurrent) {
    return current;  // allocations that do not fit are refused
  }
  reason_ = Reason::kTooMuch;
  if (!fits) {
    did_not_fit_at_ = now;
    return Mode::kSerial;
  }
  if (did_not_fit_at_ && now - *did_not_fit_at_ < kFitDwell) {
    look_again_ = *did_not_fit_at_ + kFitDwell;
    return current;
  }
  did_not_fit_at_.reset();
  reason_ = Reason::kFits;
  return Mode::kConcurrent;
}

}  // namespace gpumux::sched
