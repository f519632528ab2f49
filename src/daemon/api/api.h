// SPDX-License-Identifier: Apache-2.0
// The HTTP API without HTTP: requests in, answers out. docs/api.md is its contract.
//
// Owned by the loop's thread. An answer that takes time comes back as work for another thread, with everything it needs
// copied.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/result.h"
#include "daemon/api/api_types.h"
#include "daemon/api/status.h"
#include "daemon/gpus/holds.h"
#include "daemon/gpus/inventory.h"
#include "daemon/gpus/leases.h"
#include "daemon/loop/rate_limit.h"
#include "daemon/peers/access.h"
#include "daemon/tenants/translate.h"

namespace gpumux::daemon {

struct DaemonInfo {
  std::string version;
  pid_t pid = 0;
  uid_t uid = 0;
  bool is_private = false;
  std::int64_t started_unix_ns = 0;
  std::string config_file;
  std::string runtime_dir;
  DriverInfo driver;
};

// How late the loop was for the core's deadlines.
struct TimerStatistics {
  std::uint64_t fired = 0;
  std::uint64_t late_over_1ms = 0;
  base::Duration latest{};
};

// A look at the status copies every seat on the loop's thread: 0.5 ms with a thousand of them. A dashboard looks once a
// second.
inline constexpr std::int64_t kStatusBurst = 50;
inline constexpr std::int64_t kStatusPerSecond = 100;

class JobRoutes;

class Api {
 public:
  Api(Leases& leases, Translator& translator, const AccessRules& access, DaemonInfo info,
      const TimerStatistics& timers);

  // Who answers for jobs; until then, nobody does.
  void set_jobs(JobRoutes* jobs) { jobs_ = jobs; }

  ApiAnswer answer(const ApiRequest& request);

  // Whether a process that asked for it (POST /v1/hold) keeps a private daemon from ending for want of use.
  bool is_held() { return holds_.any(); }

 private:
  ApiAnswer daemon(const Peer& peer) const;
  // The only user whose programs' names the peer may see; none: everybody's.
  std::optional<uid_t> names_of(const Peer& peer) const;
  ApiAnswer status(const Peer& peer);
  ApiAnswer hold(const ApiRequest& request);
  ApiAnswer change(const ApiRequest& request, std::string_view which);
  ApiAnswer change_tenant(const ApiRequest& request, std::string_view which);
  base::Result<std::vector<base::GpuIndex>> select(std::string_view which) const;

  Leases& leases_;
  Translator& translator_;
  const AccessRules& access_;
  DaemonInfo info_;
  const TimerStatistics& timers_;
  std::unordered_map<Account, RateLimit> status_limits_;
  JobRoutes* jobs_ = nullptr;
  Holds holds_;
  std::shared_ptr<StatusRenderer> renderer_ = std::make_shared<StatusRenderer>();
};

}  // namespace gpumux::daemon
