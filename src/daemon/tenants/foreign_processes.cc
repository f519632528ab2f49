// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/foreign_processes.h"

#include <algorithm>

namespace gpumux::daemon {

ForeignProcesses::ForeignProcesses(const Translator& translator) : translator_(translator) {
  for (const auto& [id, session] : translator.sessions()) tenants_.push_back(session->peer.pid);
  std::sort(tenants_.begin(), tenants_.end());
}

std::vector<GpuProcess> ForeignProcesses::on(const Gpu& gpu) const {
  std::vector<GpuProcess> foreign;
  for (const GpuProcess& process : gpu.use.processes) {
    if (std::binary_search(tenants_.begin(), tenants_.end(), process.pid)) continue;
    if (!translator_.was_tenant(process.pid, gpu.use.asked_at)) foreign.push_back(process);
  }
  return foreign;
}

}  // namespace gpumux::daemon
