// SPDX-License-Identifier: Apache-2.0
// The answer to GET /v1/status. The loop's thread only copies the state; another thread makes the text. With a thousand
// tenants the text takes milliseconds, which waiting tenants must not pay.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/gpus/leases.h"
#include "daemon/gpus/trials.h"
#include "daemon/tenants/tenant_parts.h"

namespace gpumux::daemon {

struct SeatStatus {
  sched::SeatView view{};
  std::shared_ptr<const TenantLabel> label{};
  std::string note{};
  std::string not_interrupted{};  // Session::not_interrupted
  std::uint64_t submissions = 0;
  bool reports_memory = false;
  sched::SeatMemoryView memory{};  // as it is planned with
  wire::Memory said{};             // as the tenant said it
  MpsClient mps{};
  base::Duration recent{};  // its use of the window (tenants/recent_use.h)
};

struct GpuStatus {
  std::uint32_t index = 0;
  Gpu gpu;
  sched::GpuView view;  // its seats are moved to `seats`
  std::vector<SeatStatus> seats;
  std::vector<GpuProcess> foreign;
  sched::GpuMemory memory;  // its seats are copied to `seats`
  MovedMemory moved;        // by all that there were
  std::vector<RefusedAllocation> refused;
  std::string mode_why;  // Trials::why
  std::optional<Gain::Finding> finding;
};

struct StatusSnapshot {
  base::TimePoint now;
  base::Duration recent{};  // how long the window of recent use is
  std::vector<GpuStatus> gpus;
  std::vector<MpsServerView> mps_servers{};
  std::uint64_t host_budget = 0;
  std::uint64_t host_lent = 0;
  std::uint64_t host_ready = 0;
  bool host_is_short = false;
  HostLoans host_loans{};
  HostMade host_made{};
  std::string host_why_not{};  // why it is not of a tmpfs of the daemon's own
  std::string why_no_mover{};

  void hide_names_but_of(uid_t uid);
};

// Loop's thread.
StatusSnapshot take_status(const Leases& leases, const Trials& trials, const TenantParts& tenants);

// "waiting", "holding", ...
std::string_view phase_text(sched::SeatPhase phase);

// Not the loop's thread: asks for users' names and processes' states.
class StatusRenderer {
 public:
  nlohmann::ordered_json render(const StatusSnapshot& snapshot);
  const std::string& user(uid_t uid);

 private:
  std::unordered_map<uid_t, std::string> users_;
};

// {"gpus": [...]} without seats: the answer to PATCH.
nlohmann::ordered_json render_settings(const std::vector<std::pair<std::uint32_t, Gpu>>& gpus);

}  // namespace gpumux::daemon
