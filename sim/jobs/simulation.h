// SPDX-License-Identifier: Apache-2.0
// Random users submit random jobs to the job core in virtual time. The machine's runner is slow, refuses and fails, its
// GPUs come and go, and its daemon is restarted. A book of its own, kept from the commands alone, says after each of
// them whether it is allowed:
//   1. No GPU is promised more than it may promise at the time of a start; exclusive jobs are alone.
//   2. No attempt is started twice, and none while another one of the job has not ended; a job is resumed where it was.
//   3. Every job ends exactly once; when nothing disturbs any more, all of them do. No job starves.
//   4. A passed job is not delayed: a start behind the one for which GPUs are kept never moves its latest start (fifo).
//   5. No job waits beyond a bound, however many come after it (fifo, one priority, time limits).
//   6. No job makes way, comes back and makes way again unless something else has happened between.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "jobs/core/events.h"

namespace gpumux::simjobs {

struct Options {
  std::uint64_t seed = 1;
  std::uint64_t jobs = 1000;
  std::uint32_t gpus = 0;         // 0: by seed
  std::uint32_t users = 0;        // 0: by seed
  std::uint32_t backlog = 0;      // about this many jobs wait all the time; 0: by seed
  std::uint32_t check_every = 1;  // events between two checks of the core's own invariants; 0: never
  bool faults = true;             // failures, restarts, drains, changes of settings
  bool plain = false;             // fifo, one priority, every job has a time limit: check 5 applies
  bool keep_log = false;
};

struct Outcome {
  std::string wrong;  // empty: all was well
  std::uint64_t events = 0, starts = 0, resumes = 0, suspensions = 0, refusals = 0, backfills = 0, restarts = 0;
  std::uint64_t longest_queue = 0;
  base::Duration longest_wait{}, time{};
  std::uint64_t log_hash = 0;
  std::string log;
};

Outcome simulate(const Options& options);

}  // namespace gpumux::simjobs
