// SPDX-License-Identifier: Apache-2.0
#include "cli/jobs/job_texts.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "cli/views/status_view.h"

namespace gpumux::cli {
namespace {

using api_client::Job;

base::Duration between(std::int64_t from_unix_ns, std::int64_t until_unix_ns) {
  return base::Duration(std::max<std::int64_t>(0, until_unix_ns - from_unix_ns));
}

}  // namespace

std::string time_text(base::Duration duration) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(duration);
  return seconds < std::chrono::seconds(100) ? std::to_string(seconds.count()) + "s" : short_duration(seconds);
}

base::Duration elapsed(const Job& job, std::int64_t now) {
  if (job.started_unix_ns > 0 && !job.waits())
    return between(job.started_unix_ns, job.is_done() && job.ended_unix_ns > 0 ? job.ended_unix_ns : now);
  return between(job.submitted_unix_ns, job.is_done() && job.ended_unix_ns > 0 ? job.ended_unix_ns : now);
}

std::string state_text(const Job& job) {
  if (!job.is_done() || job.outcome.empty()) return job.state;
  return job.outcome == "ok" ? "done" : job.outcome;
}

Colour colour_of(const Job& job) {
  if (job.state == "running" || job.state == "starting" || job.state == "resuming") return Colour::kGreen;
  if (job.state == "queued") return Colour::kYellow;
  if (job.state == "suspended" || job.state == "suspending") return Colour::kCyan;
  if (job.state == "held") return Colour::kDim;
  if (job.is_done()) return job.outcome == "ok" ? Colour::kGreen : Colour::kRed;
  return Colour::kNone;
}

std::string gpus_text(const Job& job) {
  if (!job.gpus.empty()) return joined(job.gpus);
  if (!job.gpu_ids.empty()) return "(" + joined(job.gpu_ids) + ")";
  return job.gpus_wanted > 0 ? "any " + std::to_string(job.gpus_wanted) : "";
}

std::string memory_text(const Job& job) {
  return job.memory_bytes == 0 ? "whole" : base::format_bytes(job.memory_bytes);
}

std::string date_text(std::int64_t unix_ns) {
  return unix_ns <= 0 ? "-" : local_time_text(unix_ns, "%Y-%m-%d %H:%M:%S");
}

std::string time_left(const Job& job) {
  if (!job.limit_in || job.is_done()) return "";
  return *job.limit_in > base::Duration::zero() ? time_text(*job.limit_in) + " left"
                                                : "over since " + time_text(-*job.limit_in);
}

std::string limit_text(const Job& job) { return job.time_limit ? base::format_time_limit(*job.time_limit) : ""; }

std::string start_text(const Job& job) {
  if (!job.starts_in || job.is_done()) return "";
  return *job.starts_in < std::chrono::seconds(1) ? "soon" : "within " + time_text(*job.starts_in);
}

std::string gpu_time_text(double gpu_seconds) {
  // To whole seconds, as the report has it.
  return gpu_seconds <= 0 ? "" : time_text(std::chrono::seconds(std::llround(std::min(gpu_seconds, 9e9))));
}

std::string peak_text(std::uint64_t bytes) { return bytes == 0 ? "" : base::format_bytes(bytes); }

std::string exit_text(const Job& job) { return job.exit_status ? std::to_string(*job.exit_status) : "-"; }

}  // namespace gpumux::cli
