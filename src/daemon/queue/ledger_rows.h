// SPDX-License-Identifier: Apache-2.0
// From the daemon's ledger to the rows of the store, which outlive the daemon. Pure.
#pragma once

#include <vector>

#include "daemon/tenants/ledger.h"
#include "jobs/service/job_queue.h"
#include "jobs/service/ledger_keeper.h"

namespace gpumux::daemon {

static_assert(2 * jobs::kFlush < kLedgerKeeps, "entries are taken before they leave");
static_assert(jobs::kMaxUnstoredRows >= kMaxLedgerEntries, "a whole ledger fits");

// `gpus`: as the queue knows them, by index.
std::vector<jobs::UsedRow> rows_of(const std::vector<LedgerLine>& lines,
                                   const std::vector<jobs::JobQueue::GpuOf>& gpus);

}  // namespace gpumux::daemon
