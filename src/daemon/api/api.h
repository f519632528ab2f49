// SPDX-License-Identifier: Apache-2.0
// The HTTP API without HTTP: requests in, answers out. docs/api.md is its contract.
//
// Owned by the loop's thread. An answer that takes time comes back as work for another thread, with everything it needs
// copied.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "daemon/api/api_types.h"
#include "daemon/api/daemon_info.h"
#include "daemon/api/metrics.h"
#include "daemon/api/recent_status.h"
#include "daemon/api/status.h"
#include "daemon/gpus/holds.h"
#include "daemon/gpus/leases.h"
#include "daemon/gpus/trials.h"
#include "daemon/loop/rate_limit.h"
#include "daemon/loop/trace_counters.h"
#include "daemon/peers/access.h"
#include "daemon/tenants/tenant_parts.h"
#include "exporter/server.h"

namespace gpumux::daemon {

// A look at the status copies every seat on the loop's thread: 0.5 ms with a thousand of them. A dashboard looks once a
// second.
inline constexpr std::int64_t kStatusBurst = 50;
inline constexpr std::int64_t kStatusPerSecond = 100;

class JobRoutes;

class Api {
 public:
  // `jobs` answers for jobs.
  Api(Leases& leases, const Trials& trials, TenantParts& tenants, const AccessRules& access, DaemonInfo info,
      const LoopStatistics& loop, const TraceCounters& counters, JobRoutes& jobs);

  ApiAnswer answer(const ApiRequest& request);

  // The metrics as text, made on another thread by calling the returned function.
  using MetricsWork = std::function<std::string()>;
  MetricsWork metrics(exporter::Names names, MetricsFormat format);

  // Whether a process that asked for it (POST /v1/hold) keeps a private daemon from ending for want of use.
  bool is_held() { return holds_.any(); }

 private:
  ApiAnswer daemon(const Peer& peer, std::string_view query) const;
  // The only user whose programs' names the peer may see; none: those of all users.
  std::optional<uid_t> names_of(const Peer& peer) const;
  // Whether the account asks for the status too often, or too often for parts of it.
  std::optional<ApiResponse> refuse_status(const Peer& peer);
  ApiAnswer status(const Peer& peer, std::string_view query);
  // A part of the status. `only`: of this GPU alone; `part` makes the answer of the whole status.
  ApiAnswer status_part(const Peer& peer, std::optional<base::GpuIndex> only,
                        std::function<ApiResponse(const nlohmann::ordered_json&)> part);
  ApiAnswer gpu(const Peer& peer, std::string_view which);
  ApiAnswer tenants(const Peer& peer, std::string_view query);
  ApiAnswer tenant(const Peer& peer, const std::string& which);
  ApiAnswer metrics(const ApiRequest& request, std::string_view query);
  ApiAnswer hold(const ApiRequest& request);
  ApiAnswer change(const ApiRequest& request, std::string_view which);
  ApiAnswer change_tenant(const ApiRequest& request, std::string_view which);
  base::Result<std::vector<base::GpuIndex>> select(std::string_view which) const;

  Leases& leases_;
  const Trials& trials_;
  TenantParts& tenants_;
  const AccessRules& access_;
  DaemonInfo info_;
  const LoopStatistics& loop_;
  const TraceCounters& counters_;
  JobRoutes& jobs_;
  std::map<Account, RateLimit> status_limits_;
  Holds holds_;
  std::shared_ptr<StatusRenderer> renderer_ = std::make_shared<StatusRenderer>();
  std::shared_ptr<RecentStatus> recent_ = std::make_shared<RecentStatus>();
};

}  // namespace gpumux::daemon
