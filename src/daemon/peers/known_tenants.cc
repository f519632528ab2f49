// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/known_tenants.h"

#include <limits>

#include "base/limits.h"
#include "base/units.h"
#include "daemon/peers/process_info.h"

namespace gpumux::daemon {

std::string format_known_tenants(const KnownTenants& tenants) {
  std::string text;
  for (const auto& [pid, tenant] : tenants) {
    text += std::to_string(pid) + " " + std::to_string(tenant.start_time) + " " + std::to_string(tenant.seats) + "\n";
  }
  return text;
}

KnownTenants parse_known_tenants(std::string_view text) {
  KnownTenants tenants;
  while (!text.empty() && tenants.size() < base::kMaxTenants) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::size_t first = line.find(' ');
    const std::size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
    if (second == std::string_view::npos) continue;
    const auto pid = base::parse_integer(line.substr(0, first), 1, std::numeric_limits<pid_t>::max());
    const auto start = base::parse_integer(line.substr(first + 1, second - first - 1), 0, UINT64_MAX);
    const auto seats = base::parse_integer(line.substr(second + 1), 0, base::kMaxSeatsPerTenant);
    if (pid && start && seats) tenants[static_cast<pid_t>(*pid)] = {*start, static_cast<std::size_t>(*seats)};
  }
  return tenants;
}

KnownTenants still_living(const KnownTenants& tenants) {
  KnownTenants living;
  for (const auto& [pid, tenant] : tenants) {
    const auto process = process_info(pid);
    if (process && process->start_time == tenant.start_time && process->state != 'Z') living[pid] = tenant;
  }
  return living;
}

bool Returning::has(pid_t pid, std::size_t seats) {
  const auto found = expected_.find(pid);
  if (found == expected_.end() || seats < found->second.seats) return false;
  expected_.erase(found);
  return expected_.empty();
}

bool Returning::forget(pid_t pid) { return expected_.erase(pid) > 0 && expected_.empty(); }

}  // namespace gpumux::daemon
