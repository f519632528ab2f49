// SPDX-License-Identifier: Apache-2.0
// Why a job waits, in numbers.
#include "jobs/core/obstacle.h"

#include "jobs/core/state.h"

namespace gpumux::jobs {
namespace {

WaitsForEnd first_of(const std::vector<Dependency>& after) {
  WaitsForEnd waits;
  for (const Dependency& dependency : after) {
    if (dependency.fate != Dependency::Fate::kPending) continue;
    if (waits.job != kNoJob) {
      ++waits.others;
    } else {
      waits.job = dependency.on;
      waits.is_array = dependency.whole_array;
    }
  }
  return waits;
}

// Of the two limits the one that is reached, by what runs or else with those that are to start.
WaitsForLimit limit_of_user(const Job& job, const UserLimits& limits, const ToStart& others) {
  using Of = WaitsForLimit::Of;
  const User& user = *job.user;
  const std::uint32_t wanted = job.wanted_gpus();
  if (user.running >= limits.running) return {Of::kJobs, user.running, limits.running.value()};
  if (user.gpus + wanted > limits.gpus) return {Of::kGpus, user.gpus, limits.gpus.value()};
  if (user.running + others.jobs >= limits.running)
    return {Of::kJobs, user.running, limits.running.value(), others.first, others.jobs, others.gpus};
  return {Of::kGpus, user.gpus, limits.gpus.value(), others.first, others.jobs, others.gpus};
}

}  // namespace

WaitReason JobCore::State::reason_of(const Job& job) const {
  if (!job.waits()) return WaitReason::kNone;
  if (job.spec.held) return WaitReason::kHeld;
  if (job.pending > 0) return WaitReason::kDependency;
  const auto* const queued = job.in<Job::Queued>();
  if (queued != nullptr && queued->begins_at) return WaitReason::kBegin;
  if (queued != nullptr && queued->retry_at) return WaitReason::kRetry;
  if (common.held) return WaitReason::kPaused;
  if (!users.may_run(job)) return WaitReason::kUserLimit;
  if (queued != nullptr && job.in_array_with_limit()) {
    const Array& array = common.arrays.at(job.spec.array);
    if (array.active >= array.limit) return WaitReason::kArrayLimit;
  }
  const std::uint32_t wanted = job.wanted_gpus();
  if (gpus.usable_for(job).size() < wanted) return WaitReason::kDrained;
  if (gpus.reservation().job == job.spec.id || waiting.rivals_of(job).place == 1) return WaitReason::kGpuMemory;
  return WaitReason::kPriority;
}

// The GPU that keeps it waiting: of those that are kept for it, or that it names, the first without room. Of any GPUs
// the one with most room: the others have less.
Obstacle JobCore::State::shortage_of(const Job& job) const {
  const bool is_kept = gpus.reservation().job == job.spec.id;
  const Gpu* worst = nullptr;
  for (const GpuIndex index : is_kept ? gpus.reservation().gpus : gpus.usable_for(job)) {
    const Gpu& gpu = gpus.at(index);
    if (gpus.fits_now(job, gpu)) continue;
    if (worst == nullptr) worst = &gpu;
    if (job.has_its_gpus() || is_kept) break;
    if (gpus.free_on(gpu) > gpus.free_on(*worst)) worst = &gpu;
  }
  if (worst == nullptr) {
    if (gpus.reservation().job == kNoJob || is_kept) return WaitsForMoment{common.now};
    return WaitsForOthers{gpus.reservation().job, 1};
  }
  WaitsForRoom waits{worst->index, gpus.promisable(*worst), gpus.free_on(*worst), worst->promised, worst->foreign, {},
                     false};
  for (const Job* other : worst->occupants) {
    waits.jobs.push_back(other->spec.id);
    waits.is_alone |= other->spec.exclusive || job.spec.exclusive;
  }
  return waits;
}

Obstacle JobCore::State::obstacle_of(const Job& job, const JobStanding& standing) const {
  switch (standing.reason) {
    case WaitReason::kNone:
    case WaitReason::kHeld:
    case WaitReason::kPaused: break;
    case WaitReason::kDependency: return first_of(job.spec.after);
    case WaitReason::kGpuMemory: return shortage_of(job);
    case WaitReason::kPriority: {
      if (waiting.behind_limited(job)) return WaitsForOthers{job.user->limited_job, 1};
      const Rivals rivals = waiting.rivals_of(job);
      return WaitsForOthers{rivals.first, rivals.place > 0 ? rivals.place - 1 : 0};
    }
    case WaitReason::kUserLimit: return limit_of_user(job, users.limits_of(*job.user), users.other_to_start(job));
    case WaitReason::kArrayLimit: {
      const Array& array = common.arrays.at(job.spec.array);
      return WaitsForLimit{WaitsForLimit::Of::kElements, array.active, array.limit};
    }
    case WaitReason::kDrained: {
      WaitsForGpus waits{{}, gpus.usable_for(job).size()};
      const GpuSet wanted = job.in<Job::Suspended>() ? job.gpus : job.spec.gpus;
      for (const base::GpuIndex gpu : wanted) {
        if (gpus.find(gpu) == nullptr) waits.closed.insert(gpu);
      }
      for (const Gpu& gpu : gpus.all()) {
        const bool fits = job.spec.memory <= gpu.capacity;
        if (!gpu.usable() && (wanted.empty() ? fits : wanted.contains(gpu.index))) waits.closed.insert(gpu.index);
      }
      return waits;
    }
    case WaitReason::kBegin: return WaitsForMoment{*job.in<Job::Queued>()->begins_at};
    case WaitReason::kRetry: return WaitsForMoment{*job.in<Job::Queued>()->retry_at};
  }
  return {};
}

Obstacle JobCore::obstacle(JobId id, const JobStanding& standing) const {
  const Job* const job = state_->find(id);
  return job != nullptr ? state_->obstacle_of(*job, standing) : Obstacle();
}

}  // namespace gpumux::jobs
