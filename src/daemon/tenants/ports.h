// SPDX-License-Identifier: Apache-2.0
// What the parts of this folder ask of the job queue and of MPS, which lie above them. The daemon connects these ports
// before the first tenant; until then there are no jobs, and no MPS.
//
// Owned by the loop's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/tenants/mps_view.h"
#include "daemon/tenants/session.h"

namespace gpumux::daemon {

struct JobPort {
  // The job that a user's run is of; 0: none. Asked when a tenant says Hello.
  std::function<std::uint64_t(uid_t, const std::string&)> job_of = [](uid_t, const std::string&) { return 0; };
  // The priority that a user's run may have beyond the one that any run may ask for, which is 0.
  std::function<std::int32_t(uid_t, const std::string&)> granted_priority = [](uid_t, const std::string&) { return 0; };
};

struct MpsPort {
  // A tenant asks for MPS. Without it, the library does not ask.
  std::function<base::Status(Session&, const wire::MpsAsked&)> asked;
  // The MPS servers that this daemon has started.
  std::function<std::vector<MpsServerView>()> servers = [] { return std::vector<MpsServerView>(); };
};

}  // namespace gpumux::daemon
