// SPDX-License-Identifier: Apache-2.0
// The node that the queue runs on, as far as the queue sees it: the programs of its jobs, and where a job's changes are
// told.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "jobs/core/job.h"

namespace gpumux::jobs {

struct ProgramsState {
  bool is_off = false;    // nothing of it runs on a GPU, and none of its memory is there that can be elsewhere
  bool is_stuck = false;  // it will not get there as things are; `why` names the cause
  std::string why;        // "waits for its work to drain", "12.0 GiB are still on its GPUs"
};

// A job is in another state than before.
struct StateChange {
  JobId job;
  std::uint32_t uid = 0;
  const std::string& name;
  base::TimePoint at;  // of the queue's clock
  JobState before{};
  base::Duration lasted{};  // how long it was in that one
  JobState now{};
};

// A run is the programs of one attempt of a job (GPUMUX_RUN_ID). On the loop's thread; none of these calls back.
class Node {
 public:
  virtual ~Node() = default;
  // Holds them off the GPUs: revoked, drained, their memory in host memory; those too that come later.
  virtual void suspend(uid_t uid, const std::string& run) = 0;
  // They wait for their turns again.
  virtual void resume(uid_t uid, const std::string& run) = 0;
  // The priority of its programs from now on, as far as their user may have that.
  virtual void set_priority(uid_t uid, const std::string& run, std::int32_t priority) = 0;
  virtual ProgramsState state(uid_t uid, const std::string& run) const = 0;
  virtual void changed(const StateChange& change) = 0;
};

}  // namespace gpumux::jobs
