// SPDX-License-Identifier: Apache-2.0
// A job as a row of the table `jobs` (schema.h): its columns, how they are written, and how they are read.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>
#include <sqlite3.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "jobs/store/job_store.h"

namespace gpumux::jobs::store {

// SQLite's integers have a sign; ours that have none come back as they were.
inline std::int64_t as_signed(std::uint64_t value) { return static_cast<std::int64_t>(value); }
inline std::uint64_t as_unsigned(std::int64_t value) { return static_cast<std::uint64_t>(value); }

// In the order in which SelectJobs and bind_job take them.
inline constexpr const char* kJobColumns =
    "id, uid, token, name, wanted, gpu_count, memory, time_limit, on_limit, exclusive, requeue, array, array_index, "
    "array_limit, state, outcome, attempt, given, ord, priority, held, ran, submitted_at, started_at, ended_at, "
    "exit_status, note, log, capped, command, gpu_order, gpu_time, peak_memory, begin_at";

// "2,0": as GPUs are written in a column.
std::string gpus_text(const std::vector<std::uint32_t>& gpus);

// Binds a job to the places of a statement that inserts kJobColumns.
void bind_job(SQLite::Statement& insert, const StoredJob& job);

// A query whose rows are jobs, read straight from SQLite. Lists have a hundred thousand of them with 34 columns each.
// An object for each column would cost as much as the reading.
class SelectJobs {
 public:
  // `rest`: the text after "SELECT ... FROM jobs".
  SelectJobs(const SQLite::Database& db, const std::string& rest);
  ~SelectJobs() { sqlite3_finalize(statement_); }
  SelectJobs(const SelectJobs&) = delete;
  SelectJobs& operator=(const SelectJobs&) = delete;

  void bind(int place, std::int64_t value) { check(sqlite3_bind_int64(statement_, place, value)); }
  std::optional<StoredJob> next();

 private:
  void check(int code) const;
  StoredJob read() const;

  sqlite3* db_;
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace gpumux::jobs::store
