// SPDX-License-Identifier: Apache-2.0
// The standing of tenants' seats among others: priority, share and cap, as the tenant asks and as the daemon allows.
//
// Owned by the loop's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/ids.h"
#include "base/result.h"
#include "base/standing.h"
#include "containers/record.h"
#include "daemon/gpus/leases.h"
#include "daemon/tenants/ports.h"
#include "daemon/tenants/session.h"
#include "daemon/tenants/tenant_table.h"
#include "server/peers/access.h"

namespace gpumux::daemon {

class Standings {
 public:
  Standings(Leases& leases, const server::AccessRules& access, const JobPort& jobs, const TenantTable& table)
      : leases_(leases), access_(access), jobs_(jobs), table_(table) {}

  // The most that a program of the peer gets of what it asks for, in this run. None: as it asks.
  struct Caps {
    enum class By {
      kAdminGroup,  // only users who may change settings get more
      kJob,         // the run is a job's, and has its priority
      kClaims,      // those of its container; a share by claims is the share, and no bound
    };
    template <class T>
    struct Cap {
      T most;
      By by;
    };
    std::optional<Cap<std::int32_t>> priority;
    std::optional<Cap<std::uint32_t>> share;
  };
  // The peer need not be a tenant: its container is looked up.
  Caps caps_of(const server::Peer& peer, const std::string& run) const;
  // Finds the container of a process; null: in none.
  using ContainerOf = std::function<std::shared_ptr<const containers::Record>(pid_t)>;
  void set_container_of(ContainerOf container_of) { container_of_ = std::move(container_of); }

  // The standing of a new tenant that asks for `wanted`. Logs what it does not get.
  base::Standing allowed(const Session& session, base::Standing wanted) const;
  struct Share {
    std::string group;  // of the seats that have it together; empty: the seat's own
    std::uint32_t weight = 1;
  };
  Share share_on(const Session& session, base::GpuIndex gpu) const;

  // How the tenant stands from now on, as long as it is connected, if `by` may want that.
  base::Status change(Session& session, const base::Standing& wanted, const server::Peer& by);
  // For programs of the run that are connected; later ones say it themselves. As far as the priority may be.
  void set_run_priority(uid_t uid, const std::string& run, std::int32_t priority);

 private:
  Caps caps_of(const server::Peer& peer, const containers::Record* container, const std::string& run) const;
  Caps caps_of(const Session& session) const { return caps_of(session.peer, session.container.get(), session.run); }
  void tell(const Session& session);

  Leases& leases_;
  const server::AccessRules& access_;
  const JobPort& jobs_;
  const TenantTable& table_;
  ContainerOf container_of_;
};

}  // namespace gpumux::daemon
