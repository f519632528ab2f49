// SPDX-License-Identifier: Apache-2.0
// Which tenants have a memory quota together, and how large it is on each GPU.
//
// Owned by the loop's thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "base/ids.h"
#include "daemon/gpus/leases.h"
#include "daemon/tenants/session.h"

namespace gpumux::daemon {

class Quotas {
 public:
  explicit Quotas(const Leases& leases) : leases_(leases) {}

  // A tenant that has named its run. `memory_limit`: that the tenant asks for, for its run; 0: none.
  void join(Session& session, std::uint64_t memory_limit);
  // The tenant is gone.
  void leave(const Session& session);
  // Of the tenant's seat on this GPU; without a group: no quota.
  sched::Quota on(const Session& session, base::GpuIndex gpu) const;

 private:
  // Tenants that have a quota together, for as long as one of them is there. The key is a claim (no user, and its uid),
  // or a run with a memory limit (its user, and its name).
  struct Group {
    std::uint64_t number = 0;
    std::uint64_t memory_limit = 0;  // of a run
    std::size_t tenants = 0;
  };
  using Key = std::pair<std::optional<uid_t>, std::string>;

  const Leases& leases_;
  std::map<Key, Group> groups_;
  std::uint64_t next_group_ = 1;
};

}  // namespace gpumux::daemon
