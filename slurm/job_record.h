// SPDX-License-Identifier: Apache-2.0
// A job's record on this node (containers/record.h): what all its programs may have together of each GPU.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/result.h"
#include "containers/record.h"

namespace gpumux::slurm {

// `task`: a process of the job that Slurm has put into its control group. kUnsupported: that is not named by the job,
// as without proctrack/cgroup.
base::Result<containers::Record> record_of(std::uint32_t job, const std::string& control_group, containers::Part part);

// REQUIRES: root. A record that the job has is replaced: the step that starts last says what the job has.
base::Status keep_record(const std::string& runtime_dir, std::uint32_t job, pid_t task, containers::Part part);

// No error if there is none, and if no daemon has run here.
base::Status forget_record(const std::string& runtime_dir, std::uint32_t job);

}  // namespace gpumux::slurm
