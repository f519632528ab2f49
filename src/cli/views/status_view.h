// SPDX-License-Identifier: Apache-2.0
// GPUs and seats as people read them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "api_client/types.h"
#include "cli/frame/terminal.h"

namespace gpumux::cli {

// The subject of the table of a GPU's seats.
enum class StatusTable { kTurns, kMemory };

// `gpumux status`: for each GPU a line of its own and a table of its seats, in the order in which they (will) run.
// `gpus`: only these, by index; none: all, and host memory. `jobs`: a line about the jobs of a GPU.
std::vector<std::string> status_lines(const api_client::Snapshot& snapshot, const Output& output,
                                      StatusTable shown = StatusTable::kTurns, const std::set<std::uint32_t>& gpus = {},
                                      const std::map<std::uint32_t, std::string>& jobs = {});

// On which GPUs a program that comes now has to wait: "GPU 0: train.py (4711) has its turn, 2 wait. ...". Empty: on
// none.
std::string turns_line(const api_client::Snapshot& snapshot);

// A duration in three digits at most: "950us", "1.25s", "3h05m"; zero is "-", never is "unlimited".
std::string short_duration(base::Duration duration);

}  // namespace gpumux::cli
