// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/succession.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "os/runtime_dir.h"
#include "server/loop/files.h"
#include "server/loop/log.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

// The list may be missing or damaged. Tenants look for a new daemon every 50 ms: this is time for a few tries, also of
// those that are not in the list.
constexpr auto kPauseAfterKill = 200ms;
// A line has less than 64 bytes. The list has the tenants that are here and those that are still awaited.
constexpr std::size_t kMaxListBytes = std::size_t{64} * 2 * base::kMaxTenants;

std::string list_of(const std::string& runtime_dir) { return runtime_dir + "/" + os::kKnownTenants; }

}  // namespace

Succession::Succession(Leases& leases, const TenantTable& table, const RunSuspension& suspension,
                       std::string runtime_dir)
    : leases_(leases), table_(table), suspension_(suspension), runtime_dir_(std::move(runtime_dir)) {}

void Succession::read(bool takes_over) {
  if (const auto text = server::read_file(list_of(runtime_dir_), kMaxListBytes))
    awaited_ = still_living(parse_known_tenants(*text));
  // A daemon that stops in good order takes its sockets away.
  was_killed_ = takes_over || ::access((runtime_dir_ + "/" + os::kTenantSocket).c_str(), F_OK) == 0;
}

void Succession::wait() {
  grants_held_until_ = leases_.now();
  if (was_killed_) earliest_grant_ = grants_held_until_ = leases_.now() + kPauseAfterKill;
  if (!awaited_.empty()) {
    grants_held_until_ = leases_.now() + kReturnTimeout;
    server::log_info("waiting for the tenants of an earlier daemon to come back", {{"tenants", awaited_.size()}});
  }
  leases_.apply(node::TenantsAwaited{grants_held_until_});
  if (was_killed_ || !awaited_.empty()) leases_.apply(sched::GrantsHeld{grants_held_until_});
}

bool Succession::may_return() const { return !awaited_.empty() || leases_.now() < grants_held_until_; }

void Succession::look() {
  if (awaited_.empty() || leases_.now() <= grants_held_until_) return;
  server::log_warning("some tenants of the earlier daemon did not come back in time", {{"missing", awaited_.size()}});
  awaited_.clear();
}

void Succession::tenant_changed(const Session& session) {
  write();
  const auto its = awaited_.find(session.peer.pid);
  if (its == awaited_.end() || session.slots().size() < its->second.seats) return;
  awaited_.erase(its);
  if (!awaited_.empty()) return;
  server::log_info("all tenants of the earlier daemon are back");
  const base::TimePoint now = leases_.now();
  const base::TimePoint grants_at = std::max(now, earliest_grant_.value_or(now));
  leases_.apply(node::TenantsAwaited{grants_at});
  if (now < grants_at) {
    leases_.apply(sched::GrantsHeld{grants_at});
  } else {
    leases_.apply(sched::GrantsAllowed{});
  }
}

KnownTenants Succession::known_tenants() const {
  // Tenants that are still awaited are known, too: the next daemon has to wait for them if this one ends before that.
  KnownTenants known = awaited_;
  for (const auto& [id, session] : table_.sessions()) {
    // A tenant that stands still has no lease, and comes back when it goes on. The next daemon need not wait for it.
    if (!session->welcomed || session->process_start == 0 || suspension_.is_parked(*session)) continue;
    KnownTenant& tenant = known[session->peer.pid];
    if (tenant.start_time != session->process_start) tenant = {session->process_start, 0};
    // Not all of its seats may be back yet.
    tenant.seats = std::max(tenant.seats, session->slots().size());
  }
  return known;
}

void Succession::write() {
  const auto written = server::replace_file(list_of(runtime_dir_), format_known_tenants(known_tenants()), 0600,
                                            server::Outlives::kDaemon);
  if (!written) server::log_warning("a later daemon will not know its tenants", {{"why", written.error().message()}});
}

}  // namespace gpumux::daemon
