// SPDX-License-Identifier: Apache-2.0
// Judges an installation. Pure: facts in, findings out.
#pragma once

#include <optional>

#include "cli/doctor/facts.h"
#include "cli/doctor/finding.h"

namespace gpumux::cli {

// CUDA 12.0 (driver 525): the first with cuGetProcAddress_v2, the door through which today's frameworks take the
// driver's functions. An older driver has doors that nothing here has been tested with.
inline constexpr int kOldestCudaVersion = 12000;
inline constexpr char kOldestDriver[] = "525";

// Every check, in the order in which a reader should mend things.
Findings check_all(const Facts& facts);

// Nothing: there is nothing to look at.
Finding check_driver(const Facts& facts);
std::optional<Finding> check_host_memory(const Facts& facts);
void check_daemon(const Facts& facts, Findings& findings);
// Nothing: the daemon has no queue for this user.
std::optional<Finding> check_queue(const Facts& facts);
void check_foreign(const Facts& facts, Findings& findings);
void check_environment(const Facts& facts, Findings& findings);  // environment_check.cc

}  // namespace gpumux::cli
