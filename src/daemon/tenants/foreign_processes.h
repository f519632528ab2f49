// SPDX-License-Identifier: Apache-2.0
// Programs that use a GPU outside gpumux: the driver's list of processes, less the tenants and the parts of this
// daemon's MPS servers.
//
// Loop's thread. It holds the tenants at the time when it is made; not to be kept.
#pragma once

#include <sys/types.h>

#include <vector>

#include "daemon/gpus/leases.h"
#include "daemon/tenants/tenant_parts.h"

namespace gpumux::daemon {

class ForeignProcesses {
 public:
  explicit ForeignProcesses(const TenantParts& parts);
  // As of the last look at the GPU.
  std::vector<GpuProcess> on(const Gpu& gpu) const;

 private:
  bool is_of_mps(pid_t pid) const;

  const TenantParts& parts_;
  std::vector<pid_t> tenants_;   // sorted
  std::vector<pid_t> controls_;  // MPS's control daemons
};

}  // namespace gpumux::daemon
