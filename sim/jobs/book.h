// SPDX-License-Identifier: Apache-2.0
// The simulated machine's own knowledge: where each job is, and which starts are allowed. Shares no code with the core.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "jobs/core/job_core.h"

namespace gpumux::simjobs {

using base::Duration;
using base::GpuIndex;
using base::TimePoint;
using jobs::GpuSet;
using jobs::JobId;
using jobs::JobSpec;
using jobs::JobState;

struct BookedJob {
  JobSpec spec;
  jobs::Record record;
  bool on_gpus = false;
  bool suspended = false;
  GpuSet gpus;
  std::uint32_t attempt = 0;
  std::uint64_t request = 0;  // since it is on GPUs
  Duration work{};            // that is left to do
  TimePoint since{};          // runs since then
  TimePoint slice_since{};    // its time limit has run down since then, and by `slice` before
  Duration slice{};
  bool running = false;
  TimePoint refused_until{};                 // could not be suspended: is not asked again before
  bool leaving = false;                      // told to go
  bool time_is_over = false;                 // why it was told to
  std::optional<std::uint64_t> made_way_at;  // how much had happened when it was last suspended for another job
  bool fails = false;
  TimePoint submitted{};
  Duration patience = Duration::max();  // check 5
  bool started = false;
};

struct BookedGpu {
  std::uint64_t capacity = 0, foreign = 0;
  bool present = true, drained = false, sick = false;
  bool takes_jobs() const { return present && !drained && !sick; }
  std::set<JobId> jobs;
};

class Book {
 public:
  jobs::QueueSettings settings;
  std::vector<BookedGpu> gpus;
  std::map<JobId, BookedJob> jobs;  // that are not done

  // Put the job there, or take it away. `put` says why that is not allowed; empty: it is.
  std::string put(JobId job, const GpuSet& on);
  void remove(JobId job);

  // When `job` fits somewhere at the latest, if no other job came; none: no time limit tells.
  std::optional<TimePoint> latest_start(const BookedJob& job, TimePoint now) const;

  std::uint64_t request(const BookedJob& job) const;
  // Whether `one`'s turn is before the other's, where all users are one (fifo).
  bool goes_before(const BookedJob& one, const BookedJob& other) const;

 private:
  std::optional<TimePoint> latest_start(const BookedJob& job, const BookedGpu& gpu, TimePoint now) const;
  std::optional<TimePoint> gone_by(const BookedJob& job, const BookedJob& for_whom, TimePoint now) const;
  static std::uint64_t on(const BookedGpu& gpu, std::uint64_t request) {
    return request == 0 || request > gpu.capacity ? gpu.capacity : request;
  }
};

}  // namespace gpumux::simjobs
