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
#include "daemon/api/daemon_info.h"
#include "daemon/api/metrics.h"
#include "daemon/api/recent_status.h"
#include "daemon/api/status.h"
#include "daemon/gpus/holds.h"
#include "daemon/gpus/leases.h"
#include "daemon/gpus/trials.h"
#include "daemon/loop/rate_limit.h"
#include "daemon/loop/trace_counters.h"
#include "daemon/tenants/tenant_parts.h"
#include "exporter/server.h"
#include "server/api/api_types.h"
#include "server/peers/access.h"

namespace gpumux::jobs {
class JobRoutes;
}

namespace gpumux::daemon {

// A look at the status copies every seat on the loop's thread: 0.5 ms with a thousand of them. A dashboard looks once a
// second.
inline constexpr std::int64_t kStatusBurst = 50;
inline constexpr std::int64_t kStatusPerSecond = 100;

class Api {
 public:
  // `jobs` answers for jobs.
  Api(Leases& leases, const Trials& trials, TenantParts& tenants, const server::AccessRules& access, DaemonInfo info,
      const LoopStatistics& loop, const TraceCounters& counters, jobs::JobRoutes& jobs);

  server::ApiAnswer answer(const server::ApiRequest& request);

  // The metrics as text, made on another thread by calling the returned function.
  using MetricsWork = std::function<std::string()>;
  MetricsWork metrics(exporter::Names names, MetricsFormat format);

  // Whether a process that asked for it (POST /v1/hold) keeps a private daemon from ending for want of use.
  bool is_held() { return holds_.any(); }

 private:
  server::ApiAnswer daemon(const server::Peer& peer, std::string_view query) const;
  // The only user whose programs' names the peer may see; none: those of all users.
  std::optional<uid_t> names_of(const server::Peer& peer) const;
  // Whether the account asks for the status too often, or too often for parts of it.
  std::optional<server::ApiResponse> refuse_status(const server::Peer& peer);
  server::ApiAnswer status(const server::Peer& peer, std::string_view query);
  // A part of the status. `only`: of this GPU alone; `part` makes the answer of the whole status.
  server::ApiAnswer status_part(const server::Peer& peer, std::optional<base::GpuIndex> only,
                                std::function<server::ApiResponse(const nlohmann::ordered_json&)> part);
  server::ApiAnswer gpu(const server::Peer& peer, std::string_view which);
  server::ApiAnswer tenants(const server::Peer& peer, std::string_view query);
  server::ApiAnswer tenant(const server::Peer& peer, const std::string& which);
  server::ApiAnswer metrics(const server::ApiRequest& request, std::string_view query);
  server::ApiAnswer hold(const server::ApiRequest& request);
  server::ApiAnswer change(const server::ApiRequest& request, std::string_view which);
  server::ApiAnswer change_tenant(const server::ApiRequest& request, std::string_view which);
  base::Result<std::vector<base::GpuIndex>> select(std::string_view which) const;

  Leases& leases_;
  const Trials& trials_;
  TenantParts& tenants_;
  const server::AccessRules& access_;
  DaemonInfo info_;
  const LoopStatistics& loop_;
  const TraceCounters& counters_;
  jobs::JobRoutes& jobs_;
  std::map<server::Account, RateLimit> status_limits_;
  Holds holds_;
  std::shared_ptr<StatusRenderer> renderer_ = std::make_shared<StatusRenderer>();
  std::shared_ptr<RecentStatus> recent_ = std::make_shared<RecentStatus>();
};

}  // namespace gpumux::daemon
