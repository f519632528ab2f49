// SPDX-License-Identifier: Apache-2.0
#include "jobs/store/job_row.h"

#include <algorithm>

#include "base/units.h"

namespace gpumux::store {
namespace {

using jobs::GpuSet;
using jobs::JobState;

std::vector<std::uint32_t> gpu_list(const std::string& text) {
  std::vector<std::uint32_t> list;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const Result<std::uint64_t> index = base::parse_integer(text.substr(at, comma - at), 0, base::kMaxGpus - 1);
    if (index) list.push_back(static_cast<std::uint32_t>(*index));
    at = comma + 1;
  }
  return list;
}

GpuSet gpu_set(const std::string& text) {
  GpuSet set;
  for (const std::uint32_t gpu : gpu_list(text)) set.insert(base::GpuIndex{gpu});
  return set;
}

}  // namespace

std::string gpus_text(const std::vector<std::uint32_t>& gpus) {
  std::string text;
  for (const std::uint32_t gpu : gpus) text += (text.empty() ? "" : ",") + std::to_string(gpu);
  return text;
}

void bind_job(SQLite::Statement& insert, const StoredJob& job) {
  int at = 1;
  const auto put = [&](std::int64_t value) { insert.bind(at++, value); };
  const auto put_text = [&](const std::string& value) { insert.bind(at++, value); };
  put(as_signed(job.spec.id.value));
  put(job.spec.uid);
  put_text(job.token);
  put_text(job.name);
  put_text(job.spec.gpus.to_string());
  put(job.spec.gpu_count);
  put(as_signed(job.spec.memory));
  put(job.spec.time_limit.count());
  put(static_cast<int>(job.spec.on_limit));
  put(job.spec.exclusive ? 1 : 0);
  put(job.spec.requeue ? 1 : 0);
  put(as_signed(job.spec.array.value));
  put(job.spec.array_index);
  put(job.spec.array_limit);
  put(static_cast<int>(job.core.state));
  put(static_cast<int>(job.core.outcome));
  put(job.core.attempt);
  put_text(job.core.gpus.to_string());
  put(as_signed(job.core.order));
  put(job.core.priority);
  put(job.core.held ? 1 : 0);
  put(job.core.ran.count());
  put(job.submitted_at);
  put(job.started_at);
  put(job.ended_at);
  put(job.exit_status);
  put_text(job.note);
  put_text(job.log);
  put(job.core.capped);
  put_text(job.command);
  put_text(gpus_text(job.gpu_order));
  insert.bind(at++, job.gpu_seconds);
  put(as_signed(job.peak_memory));
  put(job.begin_at);
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
  int at = 0;
  const auto next = [&] { return static_cast<std::int64_t>(sqlite3_column_int64(statement_, at++)); };
  const auto next_unsigned = [&] { return static_cast<std::uint32_t>(next()); };
  const auto next_text = [&] {
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, at));
    const int size = sqlite3_column_bytes(statement_, at++);
    return text == nullptr ? std::string() : std::string(text, static_cast<std::size_t>(size));
  };
  StoredJob job;
  job.spec.id = job.core.job = JobId{as_unsigned(next())};
  job.spec.uid = next_unsigned();
  job.token = next_text();
  job.name = next_text();
  job.spec.gpus = gpu_set(next_text());
  job.spec.gpu_count = next_unsigned();
  job.spec.memory = as_unsigned(next());
  job.spec.time_limit = base::Duration(next());
  job.spec.on_limit = static_cast<jobs::OnLimit>(next());
  job.spec.exclusive = next() != 0;
  job.spec.requeue = next() != 0;
  job.spec.array = JobId{as_unsigned(next())};
  job.spec.array_index = next_unsigned();
  job.spec.array_limit = next_unsigned();
  job.core.state = static_cast<JobState>(next());
  job.core.outcome = static_cast<jobs::Outcome>(next());
  job.core.attempt = next_unsigned();
  job.core.gpus = gpu_set(next_text());
  job.spec.order = job.core.order = as_unsigned(next());
  job.spec.priority = job.core.priority = static_cast<std::int32_t>(next());
  job.spec.held = job.core.held = next() != 0;
  job.core.ran = base::Duration(next());
  job.submitted_at = next();
  job.started_at = next();
  job.ended_at = next();
  job.exit_status = static_cast<int>(next());
  job.note = next_text();
  job.log = next_text();
  job.spec.capped = job.core.capped = static_cast<std::int32_t>(next());
  job.command = next_text();
  job.gpu_order = gpu_list(next_text());
  job.gpu_seconds = sqlite3_column_double(statement_, at++);
  job.peak_memory = as_unsigned(next());
  job.begin_at = next();
  return job;
}

}  // namespace gpumux::store
