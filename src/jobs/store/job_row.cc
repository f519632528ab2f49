// SPDX-License-Identifier: Apache-2.0
#include "jobs/store/job_row.h"

#include <SQLiteCpp/VariadicBind.h>

#include <type_traits>

#include "base/split.h"
#include "base/units.h"

namespace gpumux::jobs::store {
namespace {

using jobs::GpuSet;

std::vector<std::uint32_t> gpu_list(const std::string& text) {
  std::vector<std::uint32_t> list;
  for (const std::string_view part : base::split(text, ',')) {
    if (const auto index = base::parse_integer(part, 0, base::kMaxGpus - 1))
      list.push_back(static_cast<std::uint32_t>(*index));
  }
  return list;
}

// Calls `use` with the members of a job that are columns, in the order of kJobColumns.
template <class Job, class Use>
void with_columns(Job& job, Use use) {
  auto& spec = job.spec;
  auto& core = job.core;
  use(spec.id, spec.uid, job.token, job.name, spec.gpus, spec.gpu_count, spec.memory, spec.time_limit, spec.on_limit,
      spec.exclusive, spec.requeue, spec.array, spec.array_index, spec.array_limit, core.state, core.outcome,
      core.attempt, core.gpus, core.order, core.priority, core.held, core.ran, job.submitted_at, job.started_at,
      job.ended_at, job.exit_status, job.note, job.log, core.capped, job.command, job.gpu_order, job.gpu_seconds,
      job.peak_memory, job.begin_at);
}

template <class T>
auto to_column(const T& member) {
  if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, double>)
    return member;
  else if constexpr (std::is_same_v<T, GpuSet>)
    return member.to_string();
  else if constexpr (std::is_same_v<T, std::vector<std::uint32_t>>)
    return gpus_text(member);
  else if constexpr (std::is_same_v<T, JobId>)
    return as_signed(member.value);
  else if constexpr (std::is_same_v<T, base::Duration>)
    return std::int64_t{member.count()};
  else
    return static_cast<std::int64_t>(member);
}

template <class T>
void read_column(sqlite3_stmt* row, int at, T& member) {
  if constexpr (std::is_same_v<T, std::string>) {
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(row, at));
    if (text != nullptr) member.assign(text, static_cast<std::size_t>(sqlite3_column_bytes(row, at)));
  } else if constexpr (std::is_same_v<T, double>) {
    member = sqlite3_column_double(row, at);
  } else if constexpr (std::is_same_v<T, std::vector<std::uint32_t>>) {
    std::string text;
    read_column(row, at, text);
    member = gpu_list(text);
  } else if constexpr (std::is_same_v<T, GpuSet>) {
    std::vector<std::uint32_t> list;
    read_column(row, at, list);
    for (const std::uint32_t gpu : list) member.insert({gpu});
  } else if constexpr (std::is_same_v<T, JobId>) {
    member = JobId{as_unsigned(sqlite3_column_int64(row, at))};
  } else {
    member = static_cast<T>(sqlite3_column_int64(row, at));
  }
}

}  // namespace

std::string gpus_text(const std::vector<std::uint32_t>& gpus) {
  std::string text;
  for (const std::uint32_t gpu : gpus) text += (text.empty() ? "" : ",") + std::to_string(gpu);
  return text;
}

void bind_job(SQLite::Statement& insert, const StoredJob& job) {
  with_columns(job, [&](const auto&... members) { SQLite::bind(insert, to_column(members)...); });
}

SelectJobs::SelectJobs(const SQLite::Database& db, const std::string& rest) : db_(db.getHandle()) {
  const std::string sql = "SELECT " + std::string(kJobColumns) + " FROM jobs " + rest;
  check(sqlite3_prepare_v2(db_, sql.c_str(), -1, &statement_, nullptr));
}

std::optional<StoredJob> SelectJobs::next() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return read();
  if (code != SQLITE_DONE) check(code);
  return std::nullopt;
}

void SelectJobs::check(int code) const {
  if (code != SQLITE_OK) throw SQLite::Exception(db_, code);
}

StoredJob SelectJobs::read() const {
  StoredJob job;
  int at = 0;
  with_columns(job, [&](auto&... members) { (read_column(statement_, at++, members), ...); });
  job.core.job = job.spec.id;
  job.spec.order = job.core.order;
  job.spec.priority = job.core.priority;
  job.spec.capped = job.core.capped;
  job.spec.held = job.core.held;
  return job;
}

}  // namespace gpumux::jobs::store
