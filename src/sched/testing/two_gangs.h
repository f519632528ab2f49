// SPDX-License-Identifier: Apache-2.0
// The start of tests of gangs.
#pragma once

#include <string>
#include <vector>

#include "sched/testing/one_gpu.h"

namespace gpumux::sched {

// Two GPUs. Tenants 1 and 2 are a gang on GPU 0 and 1, tenants 3 and 4 another one. Tenants 5 and 6 are by themselves
// on GPU 0 and 1.
struct TwoGangs : Script {
  explicit TwoGangs(const GpuSettings& settings = fifo()) : Script(2, settings) {
    for (std::uint64_t id = 1; id <= 6; ++id) tenant(id, {id % 2 == 1 ? 0u : 1u});
    for (std::uint64_t id = 1; id <= 4; ++id) tell(GangJoined{TenantId{id}, id <= 2 ? "x" : "y", 2});
  }
};

inline const SeatId kX0 = seat(1, 0), kX1 = seat(2, 1), kY0 = seat(3, 0), kY1 = seat(4, 1), kS0 = seat(5, 0),
                    kS1 = seat(6, 1);

}  // namespace gpumux::sched
