// SPDX-License-Identifier: Apache-2.0
// The job core's memory. Private to src/jobs/core.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "jobs/core/dependencies.h"
#include "jobs/core/gpus.h"
#include "jobs/core/job_core.h"
#include "jobs/core/part.h"
#include "jobs/core/tables.h"
#include "jobs/core/users.h"
#include "jobs/core/waiting.h"

namespace gpumux::jobs {

// A job that could not be started, and not by its own fault, is tried again after this; twice as long each time.
inline constexpr Duration kStartRetry = std::chrono::seconds(1);
inline constexpr Duration kMaxStartRetry = std::chrono::minutes(1);
// For a job that could not be suspended: host memory comes back when another job ends or resumes, in minutes.
inline constexpr Duration kSuspendRetry = std::chrono::seconds(30);

inline bool contains(const std::vector<Job*>& jobs, const Job* job) {
  return std::find(jobs.begin(), jobs.end(), job) != jobs.end();
}

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

struct JobCore::State : Common {
  std::uint64_t next_order = 1;
  std::set<std::pair<TimePoint, JobId>> deadlines;
  std::uint64_t most_free = 0;      // bytes on a usable GPU, at this point of a look
  std::uint64_t most_gain = 0;      // the same if all jobs went that might have to
  std::vector<std::uint64_t> gain;  // on each
  std::uint32_t overdue = 0;        // running jobs whose time is over
  std::uint32_t leaving = 0;        // jobs that occupy GPUs and are suspending or ending
  JobCounts counts{};               // of all that are not done

  // Each calls only those above it.
  Users users{*this};
  Gpus gpus{*this};
  Waiting waiting{*this, users, gpus};
  Dependencies dependencies{*this, waiting};

  // ---- life.cc: events
  void on(const GpuAdded& e);
  void on(const GpuRemoved& e);
  void on(const GpuDrained& e);
  void on(const GpuHealth& e);
  void on(const ForeignUse& e);
  void on(const SettingsChanged& e);
  void on(const UserLimitsChanged& e);
  void on(const SchedulingHeld& e);
  void on(const Submitted& e);
  void on(const Restored& e);
  void on(const UsageRestored& e);
  void on(const Withdrawn& e);
  void on(const CancelAsked& e);
  void on(const HoldAsked& e);
  void on(const ReleaseAsked& e);
  void on(const SuspendAsked& e);
  void on(const RequeueAsked& e);
  void on(const PriorityAsked& e);
  void on(const RequestAsked& e);
  void on(const StartConfirmed& e);
  void on(const StartFailed& e);
  void on(const Ended& e);
  void on(const Suspended& e);
  void on(const SuspendRefused& e);
  void on(const Resumed& e);
  void on(const TimePassed& e);

  Job* find(JobId id) const {
    const auto found = jobs.find(id);
    return found == jobs.end() ? nullptr : found->second.get();
  }
  Job* find(JobId id, std::uint32_t attempt);                    // of this attempt
  std::optional<Refusal> impossible(const JobSpec& spec) const;  // it could never start
  std::optional<Refusal> refusal(const JobSpec& spec) const;
  std::optional<Refusal> refusal(const RequestAsked& e) const;
  Job& take(const JobSpec& spec);
  template <class Change>
  void change_counts(Job& job, Change change);  // of jobs by state
  void set_state(Job& job, JobState state);
  void record(const Job& job);
  void back_to_queue(Job& job);
  void end_as_told(Job& job);
  void run_again(Job& job);
  void begin_to_run(Job& job);
  void suspend(Job& job, SuspendReason reason);
  void suspend_if_held(Job& job);
  void ask_to_end(Job& job, CancelReason reason);
  void finish(Job& job, Outcome outcome, bool recorded = true);
  void end_one(Job& job, Outcome outcome, bool recorded, std::vector<JobId>& broken);
  void arm(Job& job);
  void woken(Job& job);
  TimePoint limit_at(const Job& job) const;  // max(): never, or its clock does not run
  static void clamp(QueueSettings& settings);
  void close_gpu(GpuIndex index, bool Gpu::*why, bool is_closed);
  void rearm_all();
  void limit_changed(Job& job);
  void run_clock(Job& job);  // its time limit begins to run down, or goes on
  void stop_clock(Job& job);
  Duration limit_of(const Job& job) const;  // kNoLimit: none

  WaitReason reason_of(const Job& job) const;

  // ---- plan.cc
  std::vector<const Job*> first_in_order(std::size_t most) const;
  std::map<JobId, TimePoint> plan() const;

  // ---- obstacle.cc
  Obstacle obstacle_of(const Job& job, const JobStanding& standing) const;
  Obstacle shortage_of(const Job& job) const;

  void settle_shares();

  // ---- capacity.cc: GPUs
  void occupy(Job& job, const GpuSet& on);
  void vacate(Job& job);
  void survey_room();  // at the beginning of a look, and after each start
  std::uint64_t least_need(const Job& job) const;
  std::uint64_t least_need_of_all() const;
  std::optional<GpuSet> best_fit(const Job& job, const GpuSet& closed) const;
  bool may_start_beside_reservation(const Job& job, const Gpu& gpu) const;
  std::optional<WayIn> way_in(const Job& job, const GpuSet& closed) const;
  bool gives_way(const Job& job, const Job& to) const;
  TimePoint expected_end(const Job& job, const Job& waiter) const;
  TimePoint expected_end(const Job& job, TimePoint since, const Job& waiter) const;
  TimePoint earliest(const Job& job, const Gpu& gpu, const std::vector<Planned>& planned) const;
  Reservation reserve(const Job& job, const Reservation& before) const;

  // ---- look.cc: starting jobs
  void look_through();
  void start(Job& job, const GpuSet& on);
  void make_way(const WayIn& way);

  std::string check() const;
};

}  // namespace gpumux::jobs
