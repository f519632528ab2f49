// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/foreign_processes.h"

#include <algorithm>

#include "server/peers/process_info.h"

namespace gpumux::daemon {

ForeignProcesses::ForeignProcesses(const TenantParts& parts) : parts_(parts) {
  for (const auto& [id, session] : parts.table.sessions()) tenants_.push_back(session->peer.pid);
  std::sort(tenants_.begin(), tenants_.end());
  for (const MpsServerView& server : parts.mps.servers()) {
    if (server.pid != 0) controls_.push_back(server.pid);
  }
}

std::vector<GpuProcess> ForeignProcesses::on(const Gpu& gpu) const {
  std::vector<GpuProcess> foreign;
  for (const GpuProcess& process : gpu.use.processes) {
    if (std::binary_search(tenants_.begin(), tenants_.end(), process.pid)) continue;
    if (parts_.table.was_tenant(process.pid, gpu.use.asked_at) || parts_.mover_seats.is_mover(process.pid) ||
        is_of_mps(process.pid))
      continue;
    foreign.push_back(process);
  }
  return foreign;
}

// The server, which the driver lists, is its control daemon's child.
bool ForeignProcesses::is_of_mps(pid_t pid) const {
  if (controls_.empty()) return false;
  const auto process = server::process_info(pid);
  return process && std::find(controls_.begin(), controls_.end(), process->parent) != controls_.end();
}

}  // namespace gpumux::daemon
