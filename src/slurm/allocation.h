// SPDX-License-Identifier: Apache-2.0
// What a job has on this node, by slurmctld's word. A step's variables say so, too, and its user can set those.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "slurm/request.h"

namespace gpumux::slurm {

// In slurmstepd, of a job with all its tasks on this node, or of the batch script's node. Two calls of slurmctld: it
// may take as long as Slurm's MessageTimeout.
base::Result<Allocation> ask_slurmctld(std::uint32_t job);

}  // namespace gpumux::slurm
