// SPDX-License-Identifier: Apache-2.0
// The daemon about itself.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "daemon/gpus/inventory.h"

namespace gpumux::daemon {

struct DaemonInfo {
  std::string version;
  pid_t pid = 0;
  uid_t uid = 0;
  bool is_private = false;
  std::int64_t started_unix_ns = 0;
  std::string config_file;
  std::string runtime_dir;
  DriverInfo driver;
};

// How late the loop was for the core's deadlines, and what it found of itself (loop/self_check.h).
struct LoopStatistics {
  std::uint64_t fired = 0;
  std::uint64_t late_over_1ms = 0;
  base::Duration latest{};
  std::uint64_t broken_invariants = 0;
};

}  // namespace gpumux::daemon
