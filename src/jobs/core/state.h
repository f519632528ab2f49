// SPDX-License-Identifier: Apache-2.0
// The job core's state: one function per event, and the parts that the events go to. Private to src/jobs/core: all
// other folders see job_core.h.
//
// After an event that may let a job start, or may make one go, the planner looks through the queue. README.md says what
// each part owns. obstacle.cc and invariants.cc change nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "jobs/core/dependencies.h"
#include "jobs/core/gpus.h"
#include "jobs/core/job_core.h"
#include "jobs/core/part.h"
#include "jobs/core/planner.h"
#include "jobs/core/runs.h"
#include "jobs/core/users.h"
#include "jobs/core/waiting.h"

namespace gpumux::jobs {

struct JobCore::State {
  // An event that makes no sense changes nothing. In life.cc if it is about one job, else in job_core.cc.
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

  // nullptr: it is not there, or this is another attempt.
  Job* find(JobId id) const {
    const auto found = common.jobs.find(id);
    return found == common.jobs.end() ? nullptr : found->second.get();
  }
  Job* find(JobId id, std::uint32_t attempt) const {
    Job* const job = find(id);
    return job != nullptr && job->attempt == attempt ? job : nullptr;
  }
  std::optional<Refusal> impossible(const JobSpec& spec) const;  // it could never start
  std::optional<Refusal> refusal(const JobSpec& spec) const;
  std::optional<Refusal> refusal(const RequestAsked& e) const;
  void close_gpu(GpuIndex index, bool Gpu::*why, bool is_closed);

  // Why a job waits. obstacle.cc
  WaitReason reason_of(const Job& job) const;
  Obstacle obstacle_of(const Job& job, const JobStanding& standing) const;
  Obstacle shortage_of(const Job& job) const;

  // invariants.cc
  std::string check() const;
  std::string check_order() const;

  Common common;
  // Each calls only those above it.
  Users users{common};
  Gpus gpus{common};
  Waiting waiting{common, users, gpus};
  Dependencies dependencies{common, waiting};
  Runs runs{common, users, gpus, waiting, dependencies};
  Planner planner{common, users, gpus, waiting, runs};
};

}  // namespace gpumux::jobs
