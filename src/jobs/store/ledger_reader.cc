// SPDX-License-Identifier: Apache-2.0
#include "jobs/store/ledger_reader.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "jobs/store/job_row.h"
#include "jobs/store/ledger_periods.h"

namespace gpumux::jobs::store {
namespace {

using By = LedgerQuery::By;

// Written out for each kind of period, so that SQLite reads that part of the table alone. ?1 since, ?2 until, ?3 uid,
// ?4 names_of, ?5 job, ?6 element.
constexpr char kRows[] =
    "((is_day = 0 AND start > ?1 - 3600 AND start < ?2) OR (is_day = 1 AND start > ?1 - 86400 AND start < ?2)) AND "
    "(?3 IS NULL OR uid = ?3) AND "
    "(?5 IS NULL OR (?6 IS NULL AND job = ?5) OR job IN (SELECT id FROM jobs WHERE (id = ?5 OR array = ?5) AND "
    "(?6 IS NULL OR array_index = ?6)))";

// Seconds that jobs ran between ?1 and ?2. ?3 uid, ?4 now, ?5 job, ?6 element.
constexpr char kRuns[] =
    " AS of_job, total(min(CASE WHEN ended_at > 0 THEN ended_at ELSE ?4 END, ?2) - max(started_at, ?1)) / 1e9, "
    "min(max(started_at, ?1)) FROM jobs "
    "WHERE started_at > 0 AND started_at < min(?2, ?4) AND (ended_at = 0 OR ended_at > ?1) AND "
    "(?3 IS NULL OR uid = ?3) AND (?5 IS NULL OR ((id = ?5 OR array = ?5) AND (?6 IS NULL OR array_index = ?6))) "
    "GROUP BY uid, of_job ORDER BY uid, of_job";

// A column, or one constant where the reader does not see it.
std::string seen(const std::string& column) {
  return "CASE WHEN ?4 IS NULL OR uid = ?4 THEN " + column + " ELSE '' END";
}

std::string select_for(By by) {
  const bool has_pod = by == By::kPod || by == By::kProgram;
  const bool has_parts = by == By::kJob || by == By::kProgram;
  const std::string columns = "uid, " + (has_pod ? seen("namespace") : "''") + " AS of_namespace, " +
                              (has_pod ? seen("pod") : "''") + " AS of_pod, " + (has_parts ? "is_others" : "0") +
                              " AS of_others, " + (by == By::kProgram ? seen("program") : "''") + " AS of_program, " +
                              (by == By::kJob ? "job" : "0") + " AS of_job";
  // total() is a real number, and does not overflow.
  return "SELECT " + columns +
         ", total(held) AS all_held, total(gpu_time), total(waited), total(resident), total(evicted), total(switches) "
         "FROM ledger WHERE " +
         kRows +
         " GROUP BY uid, of_namespace, of_pod, of_others, of_program, of_job "
         "ORDER BY all_held DESC, uid, of_namespace, of_pod, of_others, of_program, of_job";
}

void bind(SQLite::Statement& select, const LedgerQuery& query) {
  select.bind(1, query.since / kNanoseconds);
  // The second in which it ends is part of it.
  select.bind(2, query.until / kNanoseconds + (query.until % kNanoseconds != 0 ? 1 : 0));
  if (query.uid) select.bind(3, static_cast<std::int64_t>(*query.uid));
  if (query.names_of) select.bind(4, static_cast<std::int64_t>(*query.names_of));
  if (query.job) select.bind(5, as_signed(query.job->value));
  if (query.element) select.bind(6, static_cast<std::int64_t>(*query.element));
}

LedgerTotal read_row(SQLite::Statement& row) {
  const auto real = [&](int column) { return row.getColumn(column).getDouble(); };
  LedgerTotal total;
  if (const std::int64_t uid = row.getColumn(0).getInt64(); uid != kNoUid)
    total.owner.uid = static_cast<std::uint32_t>(uid);
  total.owner.pod_namespace = row.getColumn(1).getString();
  total.owner.pod = row.getColumn(2).getString();
  total.others = row.getColumn(3).getInt() != 0;
  total.program = row.getColumn(4).getString();
  total.job = jobs::JobId{as_unsigned(row.getColumn(5).getInt64())};
  total.sums = {real(6), real(7), real(8), real(9), real(10), static_cast<std::uint64_t>(real(11))};
  return total;
}

// Of jobs without any use of a GPU, too.
void add_runs(SQLite::Database& db, const LedgerQuery& query, LedgerReport& report) {
  if (query.by != By::kUser && query.by != By::kJob) return;
  std::map<std::pair<std::uint32_t, jobs::JobId>, std::size_t> rows;
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const LedgerTotal& row = report.rows[i];
    if (row.owner.uid && !row.others) rows.insert({{*row.owner.uid, row.job}, i});
  }
  SQLite::Statement select(db, std::string("SELECT uid, ") + (query.by == By::kJob ? "id" : "0") + kRuns);
  select.bind(1, query.since);
  select.bind(2, query.until);
  if (query.uid) select.bind(3, static_cast<std::int64_t>(*query.uid));
  select.bind(4, query.now);
  if (query.job) select.bind(5, as_signed(query.job->value));
  if (query.element) select.bind(6, static_cast<std::int64_t>(*query.element));
  while (select.executeStep()) {
    LedgerTotal row;
    row.owner.uid = static_cast<std::uint32_t>(select.getColumn(0).getInt64());
    row.job = jobs::JobId{as_unsigned(select.getColumn(1).getInt64())};
    row.run = select.getColumn(2).getDouble();
    report.since = std::min(report.since, select.getColumn(3).getInt64());
    const auto known = rows.find({*row.owner.uid, row.job});
    if (known != rows.end()) {
      report.rows[known->second].run = row.run;
    } else if (report.rows.size() < query.at_most) {
      report.rows.push_back(std::move(row));
    }
  }
}

void name_jobs(SQLite::Database& db, LedgerReport& report) {
  SQLite::Statement find(db, "SELECT name, array, array_index FROM jobs WHERE id = ?");
  for (LedgerTotal& row : report.rows) {
    if (row.job == jobs::kNoJob) continue;
    find.reset();
    find.bind(1, as_signed(row.job.value));
    if (!find.executeStep()) continue;
    row.job_name = find.getColumn(0).getString();
    row.array = jobs::JobId{as_unsigned(find.getColumn(1).getInt64())};
    row.array_index = static_cast<std::uint32_t>(find.getColumn(2).getInt64());
  }
}

}  // namespace

void LedgerSums::add(const LedgerSums& other) {
  held += other.held;
  gpu_time += other.gpu_time;
  waited += other.waited;
  resident_byte_seconds += other.resident_byte_seconds;
  evicted_byte_seconds += other.evicted_byte_seconds;
  switches += other.switches;
}

LedgerReport read_report(SQLite::Database& db, const LedgerQuery& query) {
  SQLite::Transaction one_moment(db);
  LedgerReport report{.since = query.since, .until = query.until, .rows = {}, .rest = {}};
  if (query.now != 0) report.until = std::max(report.since, std::min(report.until, query.now));
  SQLite::Statement bounds(
      db,
      std::string("SELECT min(start), max(start + CASE is_day WHEN 0 THEN 3600 ELSE 86400 END) FROM ledger WHERE ") +
          kRows);
  bind(bounds, query);
  if (bounds.executeStep() && !bounds.getColumn(0).isNull()) {
    report.since = bounds.getColumn(0).getInt64() * kNanoseconds;
    report.until = bounds.getColumn(1).getInt64() * kNanoseconds;
  } else if (query.now != 0 && query.since == 0) {
    report.since = report.until;
  }
  SQLite::Statement select(db, select_for(query.by));
  bind(select, query);
  while (select.executeStep()) {
    LedgerTotal row = read_row(select);
    if (report.rows.size() < query.at_most) {
      report.rows.push_back(std::move(row));
    } else {
      if (!report.rest) report.rest.emplace();
      report.rest->add(row.sums);
    }
  }
  add_runs(db, query, report);
  name_jobs(db, report);
  return report;
}

}  // namespace gpumux::jobs::store
