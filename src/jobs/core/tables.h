// SPDX-License-Identifier: Apache-2.0
// The jobs, users, GPUs and arrays that the job core remembers. Private to src/jobs/core.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "jobs/core/events.h"
#include "jobs/core/job_core.h"
#include "jobs/core/lanes.h"

namespace gpumux::jobs {

struct User;

struct Job {
  // The steps of its life, each with what counts only then; job.h shows how it goes from one to another.
  struct Queued {                        // JobState::kQueued or kHeld: JobSpec::held says which
    std::optional<TimePoint> begins_at;  // it is not considered before
    std::optional<TimePoint> retry_at;   // when to start it is tried again
  };
  struct Starting {};
  struct Running {
    TimePoint since{};                  // its time limit runs down from then on
    bool overdue = false;               // its time is over
    std::optional<TimePoint> retry_at;  // it could not be suspended, and is asked again then
  };
  struct Suspending {
    SuspendReason reason{};
  };
  struct Suspended {
    std::optional<std::uint64_t> floor;  // its rank is not before this; nothing: its user's
  };
  struct Resuming {};
  struct Ending {
    Outcome as = Outcome::kNone;  // kNone: it is to run again
  };
  struct Done {
    Outcome as = Outcome::kNone;
  };
  using Life = std::variant<Queued, Starting, Running, Suspending, Suspended, Resuming, Ending, Done>;

  JobSpec spec;
  Life life;
  std::uint32_t attempt = 0;
  std::uint32_t failed_starts = 0;
  std::uint32_t pending = 0;             // dependencies that are not met yet
  JobId broken_by;                       // the job because of which it can never start (Record)
  GpuSet gpus;                           // that it occupies, or will be resumed on
  std::optional<std::uint64_t> request;  // per GPU, while it occupies some; 0: the whole GPU
  Duration ran{};                        // how much of its time limit had run down before
  TimePoint wake = TimePoint::max();     // its entry in deadlines
  User* user = nullptr;
  Class* in_class = nullptr;  // where it waits, if nothing but others keep it from starting

  // nullptr: it is in another step of its life.
  template <class Step>
  const Step* in() const {
    return std::get_if<Step>(&life);
  }
  template <class Step>
  Step* in() {
    return std::get_if<Step>(&life);
  }
  JobState state() const;
  Outcome ends_as() const;  // why it was told to end, or how it has ended
  std::optional<std::uint64_t> floor() const { return in<Suspended>() ? in<Suspended>()->floor : std::nullopt; }

  std::uint32_t wanted_gpus() const { return in<Suspended>() ? gpus.size() : spec.wanted_gpus(); }
  bool occupies() const { return request.has_value(); }
  bool waits() const { return in<Queued>() || in<Suspended>(); }
  bool leaves() const { return occupies() && (in<Suspending>() || in<Ending>()); }
  bool has_its_gpus() const { return in<Suspended>() || !spec.gpus.empty(); }  // it takes no others
  bool overdue() const { return in<Running>() && in<Running>()->overdue; }
  bool suspend_refused() const { return in<Running>() && in<Running>()->retry_at; }
  bool in_array_with_limit() const { return spec.array != kNoJob && spec.array_limit != 0; }
  bool counts_in_array() const { return in_array_with_limit() && !in<Queued>() && !in<Done>(); }
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
