// SPDX-License-Identifier: Apache-2.0
// One daemon after another (daemon/peers/known_tenants.h). This daemon grants nothing until the tenants of the earlier
// one are back, and writes down its own tenants for the next one.
//
// The list has a seat before the seat's first request is read. So a daemon that is killed leaves no holder that the
// next one does not know. The list need not outlive the machine, for its processes do not.
//
// Owned by the loop's thread.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "daemon/gpus/leases.h"
#include "daemon/peers/known_tenants.h"
#include "daemon/tenants/run_suspension.h"
#include "daemon/tenants/session.h"
#include "daemon/tenants/tenant_table.h"

namespace gpumux::daemon {

class Succession {
 public:
  Succession(Leases& leases, const TenantTable& table, const RunSuspension& suspension, std::string runtime_dir);

  // At start, before the sockets are made. `takes_over`: a private daemon gave way. Its tenants come as those of a
  // killed daemon do, for their number is not known.
  void read(bool takes_over);
  // When the sockets are made: before that no tenant can come back, however long the start takes.
  void wait();
  // Tenants of the earlier daemon may still come back.
  bool may_return() const;
  // Gives up waiting for tenants that did not come back in time.
  void look();

  void tenant_changed(const Session& session);
  // After a tenant has gone; and when this daemon ends, before the connections go.
  void write();

 private:
  KnownTenants known_tenants() const;

  Leases& leases_;
  const TenantTable& table_;
  const RunSuspension& suspension_;
  const std::string runtime_dir_;
  bool was_killed_ = false;  // the earlier daemon
  KnownTenants awaited_;     // tenants of the earlier daemon that are still to come back
  base::TimePoint grants_held_until_{};
  std::optional<base::TimePoint> earliest_grant_;  // after an earlier daemon was killed
};

}  // namespace gpumux::daemon
