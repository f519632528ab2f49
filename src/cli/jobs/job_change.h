// SPDX-License-Identifier: Apache-2.0
// gpumux set --job: changes jobs' wishes.
#pragma once

#include <string>
#include <vector>

#include "api_client/client.h"
#include "base/result.h"
#include "cli/jobs/submission.h"

namespace gpumux::cli {

// Asks for the change of each job, and prints each job's wishes now. Returns the exit status. `command` is for errors.
int change_requests(const char* command, const api_client::Client& client, const std::vector<std::string>& ids,
                    const api_client::Submission& wanted);

// "priority 5, time limit 2:00:00, 20.0 GiB on each of GPUs 0,2": the wishes that `wanted` names, as `job` has them
// now.
std::string describe_request(const api_client::Submission& wanted, const api_client::Job& job);

}  // namespace gpumux::cli
