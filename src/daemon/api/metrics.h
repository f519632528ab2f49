// SPDX-License-Identifier: Apache-2.0
// The text of GET /metrics; docs/metrics.md lists it. Taken on the loop's thread as a copy, turned into text elsewhere.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "daemon/api/daemon_info.h"
#include "daemon/api/exposition.h"
#include "daemon/api/status.h"
#include "daemon/loop/trace_counters.h"
#include "daemon/tenants/ledger.h"
#include "jobs/service/job_routes.h"

namespace gpumux::daemon {

struct MetricsSnapshot {
  StatusSnapshot status;
  DaemonInfo info;
  LoopStatistics loop;
  std::map<std::int32_t, TraceCounters::Counts> counters{};
  std::uint64_t tenants = 0;
  std::uint64_t unknown_calls = 0;  // driver entries that went past the library
  jobs::QueueFigures queue{};
  std::vector<LedgerLine> ledger{};  // empty where names are hidden
};

// Not the loop's thread: asks for users' names.
std::string render_metrics(const MetricsSnapshot& snapshot, StatusRenderer& names, MetricsFormat format);

}  // namespace gpumux::daemon
