// SPDX-License-Identifier: Apache-2.0
// Writes the ledger's rows. Called as ChangeWriter is, and by it alone.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>

#include "jobs/store/job_store.h"

namespace gpumux::jobs::store {

class LedgerWriter {
 public:
  explicit LedgerWriter(SQLite::Database& db);
  void add(const AddToLedger& change);
  // How many rows it has worked on.
  std::uint32_t roll_up(const RollUpLedger& change);

 private:
  struct Row;
  void add(const Row& row);
  bool is_full(const Row& row);
  int put(SQLite::Statement& statement, const Row& row);
  std::vector<Row> old(bool is_day, std::int64_t before, std::uint32_t at_most);

  SQLite::Statement add_, insert_, count_, old_, remove_;
};

}  // namespace gpumux::jobs::store
