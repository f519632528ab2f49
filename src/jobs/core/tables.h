// SPDX-License-Identifier: Apache-2.0
// The jobs, users, GPUs and arrays that the job core remembers. Private to src/jobs/core.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "jobs/core/events.h"
#include "jobs/core/job_core.h"
#include "jobs/core/lanes.h"

namespace gpumux::jobs {

struct Class;
struct User;

// The time limit of a job that runs, running down.
struct Clock {
  TimePoint since{};
  bool overdue = false;  // its time is over
};

struct Job {
  JobSpec spec;
  JobState state = JobState::kQueued;
  Outcome ends_as = Outcome::kNone;  // why it was told to end (kNone: to run again), or how it has ended
  SuspendReason suspended_for{};     // of kSuspending
  std::uint32_t attempt = 0;
  std::uint32_t failed_starts = 0;
  std::uint32_t pending = 0;  // dependencies that are not met yet
  JobId broken_by;            // the job because of which it can never start (Record)
  GpuSet gpus;
  std::optional<std::uint64_t> request;  // per GPU, while it occupies some; 0: the whole GPU
  std::optional<std::uint64_t> floor;    // its rank is not before this; nothing: its user's
  std::optional<Clock> clock;            // of kRunning
  Duration ran{};                        // how much of its time limit had run down before
  std::optional<TimePoint> begins_at;    // it is not considered before
  std::optional<TimePoint> retry_at;     // when to start or to suspend it is tried again
  TimePoint wake = TimePoint::max();     // its entry in deadlines
  User* user = nullptr;
  Class* in_class = nullptr;  // where it waits, if nothing but others keep it from starting

  std::uint32_t wanted_gpus() const { return state == JobState::kSuspended ? gpus.size() : spec.wanted_gpus(); }
  bool occupies() const { return request.has_value(); }
  bool waits() const { return !has_started(state) || state == JobState::kSuspended; }
  bool leaves() const { return occupies() && (state == JobState::kSuspending || state == JobState::kEnding); }
  bool has_its_gpus() const { return state == JobState::kSuspended || !spec.gpus.empty(); }  // it takes no others
  bool overdue() const { return clock && clock->overdue; }
  bool suspend_refused() const { return clock && retry_at; }
  bool in_array_with_limit() const { return spec.array != kNoJob && spec.array_limit != 0; }
  bool counts_in_array() const {
    return in_array_with_limit() && state != JobState::kQueued && state != JobState::kHeld && state != JobState::kDone;
  }
};

// Where `job` stands towards the other one: by the capped priority, as its level does. Jobs of one user with the same
// cap stand by the priority as given, as in their lane. So no job gives way to one behind it in the queue.
inline Standing standing_towards(const Job& job, const Job& other) {
  return {job.spec.capped, job.user == other.user ? job.spec.priority : job.spec.capped};
}

struct User {
  std::uint32_t uid = 0;
  std::optional<UserLimits> limits;
  std::uint64_t usage = 0;  // in Shares' units
  TimePoint charged_to{};
  std::uint32_t running = 0, gpus = 0;  // that occupy GPUs
  std::uint32_t suspended_gpus = 0;     // of suspended jobs
  std::uint32_t queued = 0;             // that wait: queued, held, suspended
  std::uint64_t limited = 0;            // the last look in which the user's limits kept a job waiting
  JobId limited_job;                    // the first of those
  std::map<std::pair<std::int32_t, JobId>, std::unique_ptr<Lane>> lanes;
};

struct Gpu {
  GpuIndex index;
  std::uint64_t capacity = 0, foreign = 0, promised = 0;
  bool present = false, drained = false, sick = false;
  std::uint32_t suspended = 0;  // jobs that will come back to it
  std::vector<Job*> occupants;  // in the order in which they came
  bool usable() const { return present && !drained && !sick; }
};

struct Array {
  std::uint32_t limit = 0, active = 0;
  std::uint64_t unfinished = 0;
  JobId failed;  // the last of those that the core has known; kNoJob: none
  std::vector<Class*> parked;
};

}  // namespace gpumux::jobs
