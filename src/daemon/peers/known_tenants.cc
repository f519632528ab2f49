// SPDX-License-Identifier: Apache-2.0
#include "daemon/peers/known_tenants.h"

#include <limits>

#include "base/limits.h"
#include "base/split.h"
#include "base/units.h"
#include "server/peers/process_info.h"

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
  for (const std::string_view line : base::split(text, '\n')) {
    if (tenants.size() == base::kMaxTenants) break;
    const auto words = base::split(line, ' ');
    if (words.size() != 3) continue;
    const auto pid = base::parse_integer(words[0], 1, std::numeric_limits<pid_t>::max());
    const auto start = base::parse_integer(words[1], 0, UINT64_MAX);
    const auto seats = base::parse_integer(words[2], 0, base::kMaxSeatsPerTenant);
    if (pid && start && seats) tenants[static_cast<pid_t>(*pid)] = {*start, static_cast<std::size_t>(*seats)};
  }
  return tenants;
}

KnownTenants still_living(const KnownTenants& tenants) {
  KnownTenants living;
  for (const auto& [pid, tenant] : tenants) {
    const auto process = server::process_info(pid);
    if (process && process->start_time == tenant.start_time && process->state != 'Z') living[pid] = tenant;
  }
  return living;
}

}  // namespace gpumux::daemon
