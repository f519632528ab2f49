// SPDX-License-Identifier: Apache-2.0
#include "view/top/model.h"

#include <array>
#include <set>
#include <utility>

#include "base/split.h"
#include "jobs/commands/job_view.h"

namespace gpumux::view {
namespace {

// Red is for what is wrong.
constexpr std::array<Hue, 5> kHues{Hue::kGreen, Hue::kYellow, Hue::kCyan, Hue::kMagenta, Hue::kBlue};
// From a to z.
constexpr std::size_t kLetters = 26;

}  // namespace

void Model::begin_anew() {
  history_ = cli::TraceHistory(kAllTimes);
  places_.clear();
  job_of_.clear();
  next_event_ = 0;
  jobs_have_changed_ = true;
}

void Model::take_snapshot(api_client::Snapshot snapshot, base::TimePoint now) {
  std::set<std::uint64_t> there;
  for (const api_client::Gpu& gpu : snapshot.gpus) {
    for (const api_client::Seat& seat : gpu.seats) there.insert(seat.tenant);
  }
  std::erase_if(places_,
                [&](const auto& one) { return !there.contains(one.first) && one.second.seen < now - kHistory; });
  std::set<std::size_t> taken;
  for (const auto& [tenant, place] : places_) taken.insert(place.number);
  for (const std::uint64_t tenant : there) {
    if (!places_.contains(tenant)) {
      std::size_t free = 0;
      while (taken.contains(free)) ++free;
      taken.insert(free);
      places_[tenant].number = free;
    }
    places_[tenant].seen = now;
  }
  snapshot_ = std::move(snapshot);
  snapshot_time_ = now;
  history_.forget(now - kHistory);
  std::erase_if(job_of_, [&](const auto& one) { return !there.contains(one.first); });
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
    history_.add(*event);
  }
  if (snapshot_) {
    for (const api_client::TraceEvent& phase : cli::phases_of(*snapshot_, snapshot_time_)) history_.add_phase(phase);
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

Mark Model::mark_of(std::uint64_t tenant) const {
  const auto found = places_.find(tenant);
  if (found == places_.end()) return {};
  const std::size_t number = found->second.number;
  return {static_cast<char>('a' + number % kLetters), kHues[number % kHues.size()]};
}

std::uint64_t Model::job_of(std::uint64_t tenant) const {
  const auto found = job_of_.find(tenant);
  return found == job_of_.end() ? 0 : found->second;
}

}  // namespace gpumux::view
