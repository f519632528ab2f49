// SPDX-License-Identifier: Apache-2.0
#include "jobs/store/change_writer.h"

#include "jobs/store/checks.h"
#include "jobs/store/job_row.h"
#include "jobs/store/use_statement.h"

namespace gpumux::store {
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
      core_(db,
            "UPDATE jobs SET state = ?, outcome = ?, attempt = ?, given = ?, ord = ?, priority = ?, held = ?, ran = ?, "
            "capped = ? WHERE id = ?"),
      rest_(db,
            "UPDATE jobs SET started_at = coalesce(?, started_at), ended_at = coalesce(?, ended_at), "
            "exit_status = coalesce(?, exit_status), note = coalesce(?, note) WHERE id = ?"),
      request_(db, "UPDATE jobs SET wanted = ?, gpu_count = ?, memory = ?, time_limit = ? WHERE id = ?"),
      gpu_order_(db, "UPDATE jobs SET gpu_order = ? WHERE id = ?"),
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
  Use document(document_);
  document->bind(1, id);
  document->bindNoCopy(2, change.text().data(), static_cast<int>(change.text().size()));
  document->exec();
  int place = 0;
  for (const Dependency& one : job.spec.after) {
    Use dependency(dependency_);
    dependency->bind(1, id);
    dependency->bind(2, place++);
    dependency->bind(3, as_signed(one.on.value));
    dependency->bind(4, one.whole_array ? 1 : 0);
    dependency->bind(5, static_cast<int>(one.need));
    dependency->bind(6, static_cast<int>(one.fate));
    dependency->bind(7, is_needed(job, one) ? 1 : 0);
    dependency->exec();
  }
  Use last_id(last_id_);
  last_id->bind(1, id);
  last_id->exec();
  return {};
}

Applied ChangeWriter::apply(const Update& change) {
  bool there = true;
  if (change.core) {
    Use core(core_);
    core->bind(1, static_cast<int>(change.core->state));
    core->bind(2, static_cast<int>(change.core->outcome));
    core->bind(3, static_cast<std::int64_t>(change.core->attempt));
    core->bind(4, change.core->gpus.to_string());
    core->bind(5, as_signed(change.core->order));
    core->bind(6, change.core->priority);
    core->bind(7, change.core->held ? 1 : 0);
    core->bind(8, static_cast<std::int64_t>(change.core->ran.count()));
    core->bind(9, change.core->capped);
    core->bind(10, as_signed(change.job.value));
    // Before anything else is written: it frees pages.
    if (change.core->state == JobState::kDone) {
      for (SQLite::Statement* statement : {&delete_document_, &delete_dependencies_}) {
        Use one(*statement);
        one->bind(1, as_signed(change.job.value));
        one->exec();
      }
    }
    there = core->exec() > 0;
  }
  if (change.request) {
    Use request(request_);
    request->bind(1, change.request->gpus.to_string());
    request->bind(2, static_cast<std::int64_t>(change.request->gpu_count));
    request->bind(3, as_signed(change.request->memory));
    request->bind(4, static_cast<std::int64_t>(change.request->time_limit.count()));
    request->bind(5, as_signed(change.job.value));
    request->exec();
  }
  if (change.gpu_order) {
    Use order(gpu_order_);
    order->bind(1, gpus_text(*change.gpu_order));
    order->bind(2, as_signed(change.job.value));
    order->exec();
  }
  if (!change.core || change.started_at || change.ended_at || change.exit_status || change.note) {
    Use rest(rest_);
    if (change.started_at) rest->bind(1, *change.started_at);
    if (change.ended_at) rest->bind(2, *change.ended_at);
    if (change.exit_status) rest->bind(3, *change.exit_status);
    if (change.note) rest->bind(4, *change.note);
    rest->bind(5, as_signed(change.job.value));
    there = rest->exec() > 0;
  }
  return {there, {}, 0};
}

Applied ChangeWriter::apply(const AddToJob& change) {
  Use use(use_);
  use->bind(1, change.gpu_seconds);
  use->bind(2, as_signed(change.peak_memory));
  use->bind(3, as_signed(change.job.value));
  return {use->exec() > 0, {}, 0};
}

Applied ChangeWriter::apply(const PutUsage& change) {
  Use usage(usage_);
  usage->bind(1, static_cast<std::int64_t>(change.uid));
  usage->bind(2, as_signed(change.gpu_microseconds));
  usage->bind(3, change.at);
  usage->exec();
  return {};
}

Applied ChangeWriter::apply(const PutValue& change) {
  Use statement(change.value.empty() ? drop_ : keep_);
  statement->bind(1, change.key);
  if (!change.value.empty()) statement->bind(2, change.value);
  statement->exec();
  return {};
}

Applied ChangeWriter::apply(const Prune& change) {
  std::vector<std::int64_t> ids;
  std::int64_t looked = 0;
  if (change.uid) {
    Use old(users_old_);
    old->bind(1, static_cast<std::int64_t>(*change.uid));
    old->bind(2, change.ended_before);
    old->bind(3, static_cast<std::int64_t>(change.at_most));
    while (old->executeStep()) ids.push_back(old->getColumn(0).getInt64());
  } else {
    Use old(old_);
    old->bind(1, looked_to_.first);
    old->bind(2, looked_to_.second);
    old->bind(3, change.ended_before);
    old->bind(4, kMostLooked);
    for (; ids.size() < change.at_most && old->executeStep(); ++looked) {
      looked_to_ = {old->getColumn(0).getInt64(), old->getColumn(1).getInt64()};
      if (old->getColumn(2).getInt() == 0) ids.push_back(looked_to_.second);
    }
  }
  if (!change.uid && ids.size() < change.at_most && looked < kMostLooked) looked_to_ = {};
  for (const std::int64_t id : ids) {
    for (SQLite::Statement* statement : {&delete_job_, &delete_document_, &delete_dependencies_}) {
      Use remove(*statement);
      remove->bind(1, id);
      remove->exec();
    }
  }
  return {true, {}, static_cast<std::uint32_t>(ids.size())};
}

Applied ChangeWriter::apply(const AddToLedger& change) {
  ledger_.add(change);
  return {};
}

Applied ChangeWriter::apply(const RollUpLedger& change) { return {true, {}, ledger_.roll_up(change)}; }

std::optional<JobId> ChangeWriter::find_token(std::uint32_t uid, const std::string& token) {
  Use find(token_);
  find->bind(1, static_cast<std::int64_t>(uid));
  find->bind(2, token);
  if (!find->executeStep()) return std::nullopt;
  return JobId{as_unsigned(find->getColumn(0).getInt64())};
}

}  // namespace gpumux::store
