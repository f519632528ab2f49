// SPDX-License-Identifier: Apache-2.0
// The things that keep a job from starting, with their numbers. JobStanding::reason names each in a word.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "jobs/core/job.h"

namespace gpumux::jobs {

// kDependency: a job, or an array, of its `after`. `others`: the number of further jobs.
struct WaitsForEnd {
  JobId job;
  bool is_array = false;
  std::uint64_t others = 0;
};

// kPriority, and kGpuMemory where all room is kept for another job. `first`: the first in order that cannot start yet
// and could take one of its GPUs, or the user's job before it that the user's limit keeps waiting; kNoJob: there is
// none. `before`: jobs that go first, that one included. Jobs that want other GPUs do not count.
struct WaitsForOthers {
  JobId first = kNoJob;
  std::uint64_t before = 0;
};

// kGpuMemory: a GPU that it needs has too little room, or a job there shares its GPUs with no other.
struct WaitsForRoom {
  GpuIndex gpu;
  std::uint64_t room = 0;  // bytes that the GPU may promise
  std::uint64_t free = 0;
  std::uint64_t promised = 0;  // to jobs
  std::uint64_t foreign = 0;   // used by programs other than jobs
  std::vector<JobId> jobs;     // that are there, in the order in which they came
  bool is_alone = false;       // this job or the one there is exclusive
};

// kGpuMemory where there is room: the job starts in a moment. kBegin, kRetry: not before `at`.
struct WaitsForMoment {
  TimePoint at{};
};

// kUserLimit, kArrayLimit. `kept_for`: GPUs are kept for that job of the same user, the first of `kept_jobs`. They have
// `kept_gpus` together, and count as if they ran.
struct WaitsForLimit {
  enum class Of : std::uint8_t { kJobs, kGpus, kElements } of = Of::kJobs;
  std::uint32_t used = 0;
  std::uint32_t limit = 0;
  JobId kept_for = kNoJob;
  std::uint32_t kept_jobs = 0;
  std::uint32_t kept_gpus = 0;
};

// kDrained: these of the GPUs that it needs take no jobs (any GPUs: of those that are large enough). `usable`: how many
// do.
struct WaitsForGpus {
  GpuSet closed;
  std::uint32_t usable = 0;
};

// monostate: no reason, or one that says all (kHeld, kPaused).
using Obstacle = std::variant<std::monostate, WaitsForEnd, WaitsForOthers, WaitsForRoom, WaitsForMoment, WaitsForLimit,
                              WaitsForGpus>;

}  // namespace gpumux::jobs
