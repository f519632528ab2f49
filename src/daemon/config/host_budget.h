// SPDX-License-Identifier: Apache-2.0
// How many bytes of host memory the daemon may lend in all (host_memory.h), and how many threads make it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "os/cgroups.h"

namespace gpumux::daemon {

// The bytes that "64G", or "50%" of the available memory, comes to on this machine at this moment. Available memory is
// bounded by the daemon's cgroup, and bounds "64G", too. REQUIRES: settings::set has taken the text.
std::uint64_t host_budget(std::string_view text);
// The memory that a control group, and each above it, still allows. The files have the most bytes, or "max", and the
// bytes in use. The largest number there is: no group has a limit.
std::uint64_t memory_left(const os::CgroupFolder& group, const char* most_file, const char* used_file);
// The last part of the budget, which is promised only to accounts that are promised no more than that.
std::uint64_t reserved_host_memory(std::uint64_t budget, std::uint64_t chunk);
// How many threads make host memory.
std::size_t host_threads();

}  // namespace gpumux::daemon
