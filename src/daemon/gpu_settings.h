// SPDX-License-Identifier: Apache-2.0
// One GPU's settings as people make them: those of the lease core, and what the daemon resolves for it.
#pragma once

#include <cstdint>

#include "sched/events.h"

namespace gpumux::daemon {

inline constexpr std::uint64_t kAutomaticReserve = ~std::uint64_t{0};

struct GpuSettings : sched::GpuSettings {
  // `mode` follows what fits together at the moment (rooms.h); otherwise it is what was set.
  bool auto_mode = true;
  // Where all fits together: whether to measure what gives more, all at once or by quanta. Otherwise at once.
  bool auto_by_gain = true;
  // Kept free on the GPU for what nobody asks us for: contexts, local memory, what is allocated in this moment.
  std::uint64_t reserve = kAutomaticReserve;
  // What one seat evicts is the memory that the next one restores into, where the two may see each other's data.
  bool hand_over = true;
  GpuSettings() {
    // A few milliseconds: what somebody else waits for at least when a turn is over, and enough that a GPU does not run
    // dry.
    in_flight = std::chrono::milliseconds(4);
    // By priority. Equals have the driver's.
    time_slice = sched::kAutomatic;
  }
  bool operator==(const GpuSettings&) const = default;
};

}  // namespace gpumux::daemon
