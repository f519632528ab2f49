// SPDX-License-Identifier: Apache-2.0
// A job's part of this node, by slurmctld's word. A step's variables say the same, but its user can set them.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "slurm/request.h"

namespace gpumux::slurm {

// In slurmstepd, of a job with all its tasks on this node, or of the batch script's node. Two calls of slurmctld: it
// may take as long as Slurm's MessageTimeout.
base::Result<Allocation> ask_slurmctld(std::uint32_t job);

}  // namespace gpumux::slurm
