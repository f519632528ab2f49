// SPDX-License-Identifier: Apache-2.0
#include "jobs/store/ledger_writer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "jobs/store/job_row.h"
#include "jobs/store/ledger_periods.h"
#include "jobs/store/use_statement.h"

namespace gpumux::jobs::store {
namespace {

// In the order of the table's primary key, which is the order of a Row's first nine places.
constexpr char kKey[] =
    "is_day = ?1 AND start = ?2 AND uid = ?3 AND namespace = ?4 AND pod = ?5 AND is_others = ?6 AND program = ?7 AND "
    "job = ?8 AND gpu = ?9";

// `values`: for the places behind the key.
template <class Row, class... Values>
int execute_with_key(SQLite::Statement& statement, const Row& row, const Values&... values) {
  return execute(statement, row.is_day, row.start, row.uid, row.pod_namespace, row.pod, row.is_others, row.program,
                 row.job, row.gpu, values...);
}

}  // namespace

struct LedgerWriter::Row {
  bool is_day = false;
  std::int64_t start = 0;
  std::int64_t uid = kNoUid;
  std::string pod_namespace;
  std::string pod;
  bool is_others = false;
  std::string program;
  std::int64_t job = 0;
  std::string gpu;
  LedgerSums sums;
};

LedgerWriter::LedgerWriter(SQLite::Database& db)
    : add_(db, std::string("UPDATE ledger SET held = held + ?10, gpu_time = gpu_time + ?11, waited = waited + ?12, "
                           "resident = resident + ?13, evicted = evicted + ?14, switches = switches + ?15 WHERE ") +
                   kKey),
      insert_(db, "INSERT INTO ledger VALUES (?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15)"),
      count_(db,
             "SELECT count(*) FROM (SELECT 1 FROM ledger WHERE is_day = ?1 AND start = ?2 AND uid = ?3 AND "
             "namespace = ?4 AND pod = ?5 AND is_others = 0 LIMIT ?6)"),
      old_(
          db,
          "SELECT start, uid, namespace, pod, is_others, program, job, gpu, held, gpu_time, waited, resident, evicted, "
          "switches FROM ledger WHERE is_day = ?1 AND start < ?2 ORDER BY start LIMIT ?3"),
      remove_(db, std::string("DELETE FROM ledger WHERE ") + kKey) {}

int LedgerWriter::put(SQLite::Statement& statement, const Row& row) {
  const LedgerSums& sums = row.sums;
  return execute_with_key(statement, row, sums.held, sums.gpu_time, sums.waited, sums.resident_byte_seconds,
                          sums.evicted_byte_seconds, as_signed(sums.switches));
}

bool LedgerWriter::is_full(const Row& row) {
  Use count(count_, row.is_day, row.start, row.uid, row.pod_namespace, row.pod, kMaxOwnerRows);
  return count->executeStep() && count->getColumn(0).getInt64() >= std::int64_t{kMaxOwnerRows};
}

void LedgerWriter::add(const Row& row) {
  if (put(add_, row) > 0) return;
  if (!row.is_others && is_full(row)) {
    Row others = row;
    others.is_others = true;
    others.program.clear();
    others.job = 0;
    return this->add(others);
  }
  put(insert_, row);
}

void LedgerWriter::add(const AddToLedger& change) {
  const auto& [owner, program, gpu] = change.row;
  add(Row{.is_day = false,
          .start = begin_of(change.at, kHour),
          .uid = owner.uid ? static_cast<std::int64_t>(*owner.uid) : kNoUid,
          .pod_namespace = owner.pod_namespace,
          .pod = owner.pod,
          .is_others = !program,
          .program = program ? program->name : "",
          .job = program ? as_signed(program->job.value) : 0,
          .gpu = gpu,
          .sums = change.sums});
}

std::vector<LedgerWriter::Row> LedgerWriter::old(bool is_day, std::int64_t before, std::uint32_t at_most) {
  std::vector<Row> rows;
  Use old(old_, is_day, before, at_most);
  while (old->executeStep()) {
    const auto text = [&](int column) { return old->getColumn(column).getString(); };
    const auto real = [&](int column) { return old->getColumn(column).getDouble(); };
    rows.push_back(
        {.is_day = is_day,
         .start = old->getColumn(0).getInt64(),
         .uid = old->getColumn(1).getInt64(),
         .pod_namespace = text(2),
         .pod = text(3),
         .is_others = old->getColumn(4).getInt() != 0,
         .program = text(5),
         .job = old->getColumn(6).getInt64(),
         .gpu = text(7),
         .sums = {real(8), real(9), real(10), real(11), real(12), as_unsigned(old->getColumn(13).getInt64())}});
  }
  return rows;
}

std::uint32_t LedgerWriter::roll_up(const RollUpLedger& change) {
  const std::vector<Row> hours = old(false, begin_of(change.hours_before, kHour), change.at_most);
  for (const Row& hour : hours) {
    execute_with_key(remove_, hour);
    Row day = hour;
    day.is_day = true;
    day.start = hour.start - hour.start % kDay;
    add(day);
  }
  const std::vector<Row> days = old(true, begin_of(change.days_before, kDay), change.at_most);
  for (const Row& day : days) execute_with_key(remove_, day);
  return static_cast<std::uint32_t>(std::max(hours.size(), days.size()));
}

}  // namespace gpumux::jobs::store
