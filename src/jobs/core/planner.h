// SPDX-License-Identifier: Apache-2.0
// Which job starts where and when, and which has to go for it. Private to src/jobs/core.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "jobs/core/gpus.h"
#include "jobs/core/part.h"
#include "jobs/core/runs.h"
#include "jobs/core/users.h"
#include "jobs/core/waiting.h"

namespace gpumux::jobs {

// A job's way onto GPUs that are not free: the jobs that have to go.
struct WayIn {
  GpuSet gpus;
  std::vector<Job*> victims;
};

// A job that waits, with its expected GPUs and start; max(): the start cannot be told.
struct Planned {
  const Job* job = nullptr;
  GpuSet gpus;
  TimePoint start = TimePoint::max();
};

class Planner : Part {
 public:
  Planner(Common& common, Users& users, Gpus& gpus, Waiting& waiting, Runs& runs)
      : Part(common), users_(users), gpus_(gpus), waiting_(waiting), runs_(runs) {}

  // Looks through the queue: starts jobs, makes jobs give way, and keeps GPUs for a job. look.cc
  void look_through();
  // JobCore::expected_starts(). plan.cc
  std::map<JobId, TimePoint> expected_starts() const;

 private:
  void make_way(const WayIn& way);                                 // look.cc
  std::vector<const Job*> first_in_order(std::size_t most) const;  // plan.cc

  // ---- room.cc ----
  // At the beginning of a look, and after each start.
  void survey_room();
  std::uint64_t least_need(const Job& job) const;
  std::uint64_t least_need_of_all() const;
  std::optional<GpuSet> best_fit(const Job& job, const GpuSet& closed) const;
  TimePoint expected_end(const Job& job, const Job& waiter) const;
  TimePoint expected_end(const Job& job, TimePoint since, const Job& waiter) const;
  TimePoint earliest(const Job& job, const Gpu& gpu, const std::vector<Planned>& planned) const;
  Reservation reserve(const Job& job, const Reservation& before) const;
  bool may_start_beside_reservation(const Job& job, const Gpu& gpu) const;
  bool gives_way(const Job& job, const Job& to) const;
  std::optional<WayIn> way_in(const Job& job, const GpuSet& closed, const GpuSet& before) const;

  Users& users_;
  Gpus& gpus_;
  Waiting& waiting_;
  Runs& runs_;
  JobId claimant_ = kNoJob;  // has the reservation, and others make way for it on those GPUs
  // Of usable GPUs, at this point of a look, in bytes.
  std::uint64_t most_free_ = 0;      // on one of them
  std::uint64_t most_gain_ = 0;      // the same if all jobs went that might have to
  std::vector<std::uint64_t> gain_;  // on each
};

}  // namespace gpumux::jobs
