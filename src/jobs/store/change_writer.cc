// SPDX-License-Identifier: Apache-2.0
#include "jobs/store/change_writer.h"

#include "jobs/store/job_row.h"
#include "jobs/store/use_statement.h"

namespace gpumux::jobs::store {
namespace {

using jobs::Dependency;
using jobs::JobState;

// Old jobs that one Prune looks at, 0.1 s: others may need them all, and then it goes on there the next time.
constexpr std::int64_t kMostLooked = 100'000;

}  // namespace

ChangeWriter::ChangeWriter(SQLite::Database& db)
    : insert_(db, "INSERT INTO jobs (" + std::string(kJobColumns) +
                      ") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) "
                      "ON CONFLICT (uid, token) WHERE token <> '' DO NOTHING"),
      document_(db, "INSERT INTO documents (job, body) VALUES (?,?)"),
      dependency_(db,
                  "INSERT INTO dependencies (job, place, target, whole_array, need, fate, needed) "
                  "VALUES (?,?,?,?,?,?,?)"),
      token_(db, "SELECT id FROM jobs WHERE uid = ? AND token = ? AND token <> ''"),
      last_id_(db, "UPDATE counters SET value = max(value, ?) WHERE name = 'last_id'"),
      update_(db,
              "UPDATE jobs SET state = ?, outcome = ?, attempt = ?, given = ?, ord = ?, priority = ?, held = ?, "
              "ran = ?, capped = ?, started_at = ?, ended_at = ?, exit_status = ?, note = ?, gpu_order = ?, "
              "wanted = ?, gpu_count = ?, memory = ?, time_limit = ? WHERE id = ?"),
      use_(db, "UPDATE jobs SET gpu_time = gpu_time + ?, peak_memory = max(peak_memory, ?) WHERE id = ?"),
      usage_(db, "INSERT OR REPLACE INTO usage (uid, gpu_microseconds, at) VALUES (?,?,?)"),
      keep_(db, "INSERT OR REPLACE INTO kept (key, value) VALUES (?,?)"),
      drop_(db, "DELETE FROM kept WHERE key = ?"),
      old_(db,
           "SELECT ended_at, id, EXISTS (SELECT 1 FROM dependencies WHERE needed <> 0 AND target = jobs.id AND "
           "whole_array = 0) OR EXISTS (SELECT 1 FROM dependencies WHERE needed <> 0 AND target = jobs.array AND "
           "whole_array = 1) FROM jobs WHERE state = 8 AND (ended_at, id) > (?,?) AND ended_at < ? "
           "ORDER BY ended_at, id LIMIT ?"),
      users_old_(db,
                 "SELECT id FROM jobs WHERE state = 8 AND uid = ? AND ended_at < ? AND NOT EXISTS (SELECT 1 FROM "
                 "dependencies WHERE needed <> 0 AND target = jobs.id AND whole_array = 0) AND NOT EXISTS (SELECT 1 "
                 "FROM dependencies WHERE needed <> 0 AND target = jobs.array AND whole_array = 1) "
                 "ORDER BY ended_at, id LIMIT ?"),
      delete_job_(db, "DELETE FROM jobs WHERE id = ?"),
      delete_document_(db, "DELETE FROM documents WHERE job = ?"),
      delete_dependencies_(db, "DELETE FROM dependencies WHERE job = ?"),
      ledger_(db) {}

Applied ChangeWriter::apply(const Insert& change) {
  const StoredJob& job = change.job;
  {
    Use insert(insert_);
    bind_job(*insert, job);
    if (insert->exec() == 0) return {false, find_token(job.spec.uid, job.token), 0};
  }
  const std::int64_t id = as_signed(job.spec.id.value);
  execute(last_id_, id);
  if (job.core.state == JobState::kDone) return {};
  Use document(document_);
  document->bind(1, id);
  document->bindNoCopy(2, change.text().data(), static_cast<int>(change.text().size()));
  document->exec();
  int place = 0;
  for (const Dependency& one : job.spec.after) {
    // A restarted daemon asks what became of it.
    const bool is_needed = one.fate == Dependency::Fate::kPending;
    execute(dependency_, id, place++, as_signed(one.on.value), one.whole_array, static_cast<int>(one.need),
            static_cast<int>(one.fate), is_needed);
  }
  return {};
}

Applied ChangeWriter::apply(const Update& change) {
  const jobs::Record& core = change.core;
  const jobs::Request& request = change.request;
  const std::int64_t id = as_signed(core.job.value);
  // Before anything else is written: it frees pages.
  if (core.state == JobState::kDone) {
    execute(delete_document_, id);
    execute(delete_dependencies_, id);
  }
  const int rows = execute(update_, static_cast<int>(core.state), static_cast<int>(core.outcome), core.attempt,
                           core.gpus.to_string(), as_signed(core.order), core.priority, core.held,
                           std::int64_t{core.ran.count()}, core.capped, change.started_at, change.ended_at,
                           change.exit_status, change.note, gpus_text(change.gpu_order), request.gpus.to_string(),
                           request.gpu_count, as_signed(request.memory), std::int64_t{request.time_limit.count()}, id);
  return {rows > 0, {}, 0};
}

Applied ChangeWriter::apply(const AddToJob& change) {
  return {execute(use_, change.gpu_seconds, as_signed(change.peak_memory), as_signed(change.job.value)) > 0, {}, 0};
}

Applied ChangeWriter::apply(const PutUsage& change) {
  execute(usage_, change.uid, as_signed(change.gpu_microseconds), change.at);
  return {};
}

Applied ChangeWriter::apply(const PutValue& change) {
  if (change.value.empty()) {
    execute(drop_, change.key);
  } else {
    execute(keep_, change.key, change.value);
  }
  return {};
}

Applied ChangeWriter::apply(const Prune& change) {
  std::vector<std::int64_t> ids;
  if (change.uid) {
    Use old(users_old_, *change.uid, change.ended_before, change.at_most);
    while (old->executeStep()) ids.push_back(old->getColumn(0).getInt64());
  } else {
    std::int64_t looked = 0;
    Use old(old_, looked_to_.first, looked_to_.second, change.ended_before, kMostLooked);
    for (; ids.size() < change.at_most && old->executeStep(); ++looked) {
      looked_to_ = {old->getColumn(0).getInt64(), old->getColumn(1).getInt64()};
      if (old->getColumn(2).getInt() == 0) ids.push_back(looked_to_.second);
    }
    if (ids.size() < change.at_most && looked < kMostLooked) looked_to_ = {};
  }
  for (const std::int64_t id : ids) {
    for (SQLite::Statement* statement : {&delete_job_, &delete_document_, &delete_dependencies_})
      execute(*statement, id);
  }
  return {true, {}, static_cast<std::uint32_t>(ids.size())};
}

Applied ChangeWriter::apply(const AddToLedger& change) {
  ledger_.add(change);
  return {};
}

Applied ChangeWriter::apply(const RollUpLedger& change) { return {true, {}, ledger_.roll_up(change)}; }

std::optional<JobId> ChangeWriter::find_token(std::uint32_t uid, const std::string& token) {
  Use find(token_, uid, token);
  if (!find->executeStep()) return std::nullopt;
  return JobId{as_unsigned(find->getColumn(0).getInt64())};
}

}  // namespace gpumux::jobs::store
