// SPDX-License-Identifier: Apache-2.0
// The queue as a whole, as `gpumux admin` shows it, and the result of a change.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "api_client/jobs.h"
#include "cli/frame/terminal.h"

namespace gpumux::cli {

// GET /v1/queue in full, for `gpumux admin show`.
std::vector<std::string> queue_state_lines(const api_client::QueueState& queue, const Output& output);

// The jobs that have each GPU, and the job for which it is kept: "jobs: 17 (train) of eva; kept for job 19". Nothing
// for a GPU without any.
std::map<std::uint32_t, std::string> jobs_of_gpus(const api_client::QueueState& queue);

// A line for each thing that is different now: "GPU 3: takes jobs -> drained". If nothing is, a line that says so.
std::vector<std::string> queue_change_lines(const api_client::QueueState& before, const api_client::QueueState& now);

}  // namespace gpumux::cli
