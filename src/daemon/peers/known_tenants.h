// SPDX-License-Identifier: Apache-2.0
// Which tenants a restarted daemon has to wait for.
//
// A daemon that dies leaves holders holding and waiters waiting; all of them reconnect within moments. Until they have,
// the new daemon must not grant anything: a tenant that is not back yet may hold the GPU. So the daemon keeps a list of
// its tenants in the folder of its sockets. A new daemon waits for the listed tenants that still live, at most
// kReturnTimeout.
//
// One line a tenant: pid, start time (which together name a process), number of seats.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace gpumux::daemon {

// Tenants look for a new daemon every 50 ms; a swapped-out one may need a second. A holder that is later still loses
// its lease.
inline constexpr std::chrono::seconds kReturnTimeout{2};

struct KnownTenant {
  std::uint64_t start_time = 0;
  std::size_t seats = 0;
};
using KnownTenants = std::map<pid_t, KnownTenant>;

std::string format_known_tenants(const KnownTenants& tenants);
// Lines that are not of the form are skipped: this file is ours, but may be from another version.
KnownTenants parse_known_tenants(std::string_view text);
// Leaves out those that have ended since, or that another process has the number of.
KnownTenants still_living(const KnownTenants& tenants);

}  // namespace gpumux::daemon
