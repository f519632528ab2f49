// SPDX-License-Identifier: Apache-2.0
// One job's life: its submission, its runs with their time limits, and its end. Private to src/jobs/core.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "jobs/core/dependencies.h"
#include "jobs/core/gpus.h"
#include "jobs/core/part.h"
#include "jobs/core/users.h"
#include "jobs/core/waiting.h"

namespace gpumux::jobs {

// A job that could not be suspended is asked again after this. Host memory comes back when another job ends or resumes,
// in minutes.
inline constexpr Duration kSuspendRetry = std::chrono::seconds(30);

class Runs : Part {
 public:
  Runs(Common& common, Users& users, Gpus& gpus, Waiting& waiting, Dependencies& dependencies)
      : Part(common), users_(users), gpus_(gpus), waiting_(waiting), dependencies_(dependencies) {}

  const JobCounts& counts() const { return counts_; }
  // Whether a job on GPUs is suspending or ending, or has used its time.
  bool may_leave() const { return leaving_ > 0 || overdue_ > 0; }

  // ---- a job comes. REQUIRES: there is none of this id ----
  void submit(const JobSpec& spec, bool by_admin);
  void restore(const Restored& e);

  // ---- it waits ----
  void set_held(Job& job, bool is_held);
  // REQUIRES: it is in the queue, and fits on the GPUs. A suspended job is resumed.
  void start(Job& job, const GpuSet& on);
  void start_failed(Job& job);

  // ---- it runs ----
  void begin_to_run(Job& job);
  void suspend(Job& job, SuspendReason reason);
  // A job that is held does not run, but while it cannot be suspended.
  void suspend_if_held(Job& job);
  void suspended(Job& job);
  void suspend_refused(Job& job);

  // ---- it ends ----
  void ask_to_end(Job& job, CancelReason reason);
  // Its run is over, as ask_to_end() wanted.
  void end_as_told(Job& job);
  void run_again(Job& job);
  // And all that could only have come after it. `recorded`: it is told. The job is gone then.
  void finish(Job& job, Outcome outcome, bool recorded = true);

  void record(const Job& job) const;

  // ---- time ----
  Duration limit_of(const Job& job) const;   // kNoLimit: none
  TimePoint limit_at(const Job& job) const;  // max(): never, or its clock does not run
  // Its request, or the settings, may have another time limit.
  void limit_changed(Job& job);
  void limits_changed();
  std::optional<TimePoint> next_deadline() const;
  void pass_time();

  std::string check() const;  // invariants.cc

 private:
  Job& add(const JobSpec& spec);
  template <class Change>
  void change_counts(Job& job, Change change);
  template <class Change>
  void change(Job& job, Change change);
  // The only way from one step of its life to another: clock, deadline and counts follow.
  void enter(Job& job, const Job::Life& next);
  void occupy(Job& job, const GpuSet& on);
  void vacate(Job& job);
  void back_to_queue(Job& job);
  void end_one(Job& job, Outcome outcome, bool recorded, std::vector<JobId>& broken);
  void arm(Job& job);
  void woken(Job& job);
  std::string check(const Job& job) const;  // invariants.cc

  Users& users_;
  Gpus& gpus_;
  Waiting& waiting_;
  Dependencies& dependencies_;
  std::uint64_t next_order_ = 1;
  std::set<std::pair<TimePoint, JobId>> deadlines_;  // Job::wake
  std::uint32_t overdue_ = 0;                        // running jobs whose time is over
  std::uint32_t leaving_ = 0;                        // jobs that occupy GPUs and are suspending or ending
  JobCounts counts_{};                               // of all that are not done
};

}  // namespace gpumux::jobs
