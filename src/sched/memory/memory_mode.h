// SPDX-License-Identifier: Apache-2.0
// Whether a GPU's programs run all at once or by turns, as far as their memory decides it.
//
// `auto`: at once while all seats' memory fits together and all stand alike, by turns otherwise. `concurrent`: at once;
// where what is there already does not fit, it is had by turns until it does. `serial`: by turns.
//
// Pure: asks the planner, is told the time, remembers what it last found.
#pragma once

#include <optional>

#include "sched/events.h"
#include "sched/memory/residency.h"

namespace gpumux::sched {

// When the memory of all has not fitted, it must fit for a while with this part of the GPU to spare. Only then all run
// at once again. Otherwise an allocator that goes up and down would change the mode with each step of its program.
inline constexpr std::uint64_t kFitMarginDivisor = 16;
inline constexpr Duration kFitDwell = std::chrono::seconds(2);

class MemoryMode {
 public:
  // The reason for the last mode.
  enum class Reason : std::uint8_t {
    kSetting,
    kStanding /* LeaseCore::wants_turns */,
    kLeftToDriver /* a seat's memory is */,
    kTooMuch,
    kFits,
    kNotKnown /* or one seat at most */,
  };

  // The mode that the GPU should have now, `current` if that is to stay. `wants_turns`: LeaseCore::wants_turns. To be
  // asked again whenever memory or that has changed, and at look_again().
  Mode resolve(TimePoint now, const Residency& planner, GpuIndex gpu, settings::Mode setting, bool wants_turns,
               Mode current);
  std::optional<TimePoint> look_again() const { return look_again_; }
  Reason reason() const { return reason_; }
  // Whether there are turns because of memory.
  bool takes_turns_for_memory() const { return did_not_fit_at_.has_value(); }

 private:
  Reason reason_ = Reason::kNotKnown;
  std::optional<TimePoint> did_not_fit_at_;  // for the last time, while there are turns because of memory
  std::optional<TimePoint> look_again_;
};

}  // namespace gpumux::sched
