// SPDX-License-Identifier: Apache-2.0
// The start of tests of single seats.
#pragma once

#include "sched/testing/script.h"

namespace gpumux::sched {

using namespace std::chrono_literals;

// A GPU whose quantum is known.
inline GpuSettings fixed(settings::Auto<Limit<Duration>> quantum = 10ms) {
  GpuSettings settings = plain();
  settings.quantum = quantum;
  return settings;
}

inline GpuSettings fifo(settings::Auto<Limit<Duration>> quantum = 10ms) {
  GpuSettings settings = fixed(quantum);
  settings.policy = PolicyKind::kFifo;
  return settings;
}

inline const SeatId kA = seat(1, 0), kB = seat(2, 0), kC = seat(3, 0), kD = seat(4, 0);

// One GPU, and the first `seats` of these seats.
struct OneGpu : Script {
  explicit OneGpu(const GpuSettings& settings = plain(), std::uint64_t seats = 2) : Script(1, settings) {
    for (std::uint64_t id = 1; id <= seats; ++id) tenant(id, {0});
  }
};

}  // namespace gpumux::sched
