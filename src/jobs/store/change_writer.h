// SPDX-License-Identifier: Apache-2.0
// Writes changes to the tables: one prepared statement for each thing that a change may do.
//
// Within the transaction, under the mutex and on the connection of its caller (sqlite_store.cc). Throws
// SQLite::Exception.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "jobs/store/job_store.h"
#include "jobs/store/ledger_writer.h"

namespace gpumux::jobs::store {

class ChangeWriter {
 public:
  explicit ChangeWriter(SQLite::Database& db);
  Applied apply(const Insert& change);
  Applied apply(const Update& change);
  Applied apply(const AddToJob& change);
  Applied apply(const PutUsage& change);
  Applied apply(const PutValue& change);
  Applied apply(const Prune& change);
  Applied apply(const AddToLedger& change);
  Applied apply(const RollUpLedger& change);

 private:
  std::optional<JobId> find_token(std::uint32_t uid, const std::string& token);

  SQLite::Statement insert_, document_, dependency_, token_, last_id_, update_, use_, usage_, keep_, drop_, old_,
      users_old_, delete_job_, delete_document_, delete_dependencies_;
  LedgerWriter ledger_;
  std::pair<WallTime, std::int64_t> looked_to_;  // by Prune; from the beginning again when it is through
};

}  // namespace gpumux::jobs::store
