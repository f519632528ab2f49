// SPDX-License-Identifier: Apache-2.0
// The books of use: the ledger, how long seats have used their GPUs lately, the peaks of jobs, and moved memory.
//
// Owned by the loop's thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/limits.h"
#include "daemon/gpus/leases.h"
#include "daemon/tenants/host_memory.h"
#include "daemon/tenants/job_memory.h"
#include "daemon/tenants/ledger.h"
#include "daemon/tenants/recent_use.h"
#include "daemon/tenants/session.h"
#include "daemon/tenants/tenant_table.h"

namespace gpumux::daemon {

class UseBooks {
 public:
  UseBooks(const Leases& leases, const HostMemory& host, const TenantTable& table)
      : leases_(leases), host_(host), table_(table) {}

  void opened(const Session& session, Slot& slot);
  // The seat has a new report of its memory.
  void reported(const Session& session, Slot& slot);
  // The seat is about to close. REQUIRES: the machine still has it.
  void closed(const Session& session, const Slot& slot, base::TimePoint now);

  // The figures of all programs so far, those of the last minutes included (ledger.h).
  std::vector<LedgerLine> ledger() { return ledger_.lines(live_figures(), leases_.now()); }
  // The figures that have come since the last call.
  std::vector<LedgerLine> take_from_ledger() { return ledger_.take(live_figures()); }
  // About once a second: notes how long each seat has used its GPU.
  void note_use();
  const RecentUse& recent_use() const { return recent_use_; }
  // By job (job_memory.h).
  std::map<std::uint64_t, std::uint64_t> take_peaks() { return job_memory_.take(); }
  // The memory that was moved by seats that are gone.
  const MovedMemory& moved_before(base::GpuIndex gpu) const { return moved_before_.at(gpu.value); }

 private:
  LedgerFigures figures(const Session& session, const Slot& slot, base::TimePoint now) const;
  std::map<const Ledger::Entry*, LedgerFigures> live_figures() const;

  const Leases& leases_;
  const HostMemory& host_;
  const TenantTable& table_;
  Ledger ledger_;
  RecentUse recent_use_;
  JobMemory job_memory_;
  std::array<MovedMemory, base::kMaxGpus> moved_before_{};
};

}  // namespace gpumux::daemon
