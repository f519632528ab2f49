// SPDX-License-Identifier: Apache-2.0
// Words for facts of seats and GPUs, as all views have them. As they came: not yet printable.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api_client/types.h"
#include "base/clock.h"
#include "cli/frame/terminal.h"

namespace gpumux::cli {

// Holders, the queue in its order, the rest.
std::vector<const api_client::Seat*> in_order(const api_client::Gpu& gpu);

// "waiting #2"
std::string phase_text(const api_client::Seat& seat);
Colour colour_of(const api_client::Seat& seat);

// "python3 in team-a/train-0", "python3 in Slurm job 42", "python3 in container 0123456789ab", "python3"
std::string program_text(const api_client::Seat& seat);
std::string user_text(const api_client::Seat& seat);

// The reason for which it waits, and its remarkable facts. `gpus`: for the names of other tenants.
std::string why_text(const api_client::Seat& seat, const std::vector<api_client::Gpu>& gpus);

// The scheduler knows tenants by number ("quantum of tenant 3"); people know them by name. A tenant that is on none of
// `gpus` stays a number.
std::string name_tenants(std::string_view text, const std::vector<api_client::Gpu>& gpus);

// "auto (now serial), fair, quantum auto (now 50.0ms)"
std::string settings_text(const api_client::Gpu& gpu);

// Empty: none.
std::string bytes_text(std::uint64_t bytes);

// "312 of 700 W". REQUIRES: the driver says the power.
std::string power_text(const api_client::GpuLoad& load);

// "not under gpumux: python3 (4711, 2.0 GiB)". REQUIRES: there are such processes.
std::string foreign_line(const api_client::Gpu& gpu);

// The seat's share and its bound, where they are not the standard ones.
std::string share_text(const api_client::Seat& seat);

// Of its waits, the median and the 99th percentile: "1.20s / 3.00s". Empty: it never waited.
std::string waits_text(const api_client::Seat& seat);

// The part of the window for which the seat had the GPU to use: "42%". Empty: the daemon has just started.
std::string recent_use_text(const api_client::Seat& seat, base::Duration window);

}  // namespace gpumux::cli
