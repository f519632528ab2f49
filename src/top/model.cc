// SPDX-License-Identifier: Apache-2.0
#include "top/model.h"

#include <set>
#include <utility>

#include "api_client/holds.h"
#include "base/split.h"
#include "cli/jobs/job_view.h"

namespace gpumux::top {

void Model::begin_anew() {
  history_ = cli::TraceHistory(kAllTimes);
  marks_.forget_tenants();
  job_of_.clear();
  next_event_ = 0;
  jobs_have_changed_ = true;
}

void Model::take_snapshot(api_client::Snapshot snapshot, base::TimePoint now) {
  marks_.take_snapshot(snapshot, now);
  marks_.forget(now - kHistory);
  history_.forget(now - kHistory);
  std::set<std::uint64_t> there;
  for (const api_client::Gpu& gpu : snapshot.gpus) {
    for (const api_client::Seat& seat : gpu.seats) there.insert(seat.tenant);
  }
  std::erase_if(job_of_, [&](const auto& one) { return !there.contains(one.first); });
  snapshot_ = std::move(snapshot);
  snapshot_time_ = now;
}

base::Status Model::take_trace(std::string_view lines) {
  for (const std::string_view line : base::split(lines, '\n')) {
    if (line.empty()) continue;
    const auto event = api_client::parse_trace_event(line);
    if (!event) return tl::unexpected(event.error());
    // The ring has moved on, and the ends of turns are missing.
    if (next_event_ != 0 && event->sequence > next_event_) history_ = cli::TraceHistory(kAllTimes);
    next_event_ = event->sequence + 1;
    if (event->event == "job") jobs_have_changed_ = true;
    if (event->tenant != 0 && event->job != 0) job_of_[event->tenant] = event->job;
    marks_.take_event(*event);
    history_.add(*event);
  }
  if (snapshot_) {
    for (const api_client::TraceEvent& phase : api_client::phases_of(*snapshot_, snapshot_time_))
      history_.add_phase(phase);
  }
  return {};
}

void Model::take_jobs(api_client::JobPage page) {
  cli::sort_for_queue(page.jobs);
  jobs_ = std::move(page);
}

void Model::lose(const base::Error& error, std::int64_t unix_ns) {
  lost_ = {error.message(), error.code == base::Code::kUnavailable, lost_ ? lost_->since_unix_ns : unix_ns};
}

std::uint64_t Model::job_of(std::uint64_t tenant) const {
  const auto found = job_of_.find(tenant);
  return found == job_of_.end() ? 0 : found->second;
}

}  // namespace gpumux::top
