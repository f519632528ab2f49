// SPDX-License-Identifier: Apache-2.0
// Sums the ledger's rows for a report. Throws SQLite::Exception.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include "jobs/store/ledger.h"

namespace gpumux::jobs::store {

// In one transaction of its own.
LedgerReport read_report(SQLite::Database& db, const LedgerQuery& query);

}  // namespace gpumux::jobs::store
