// SPDX-License-Identifier: Apache-2.0
// One job's life: the steps that it takes, from its submission through its runs to its end.
#include "jobs/core/state.h"

namespace gpumux::jobs {

Job* JobCore::State::find(JobId id, std::uint32_t attempt) {
  Job* const job = find(id);
  return job != nullptr && job->attempt == attempt ? job : nullptr;
}

// ---- what is told of it -------------------------------------------------------------------------

void JobCore::State::record(const Job& job) {
  Record record;
  record.job = job.spec.id;
  record.state = job.state;
  record.outcome = job.ends_as;
  record.attempt = job.attempt;
  record.gpus = job.gpus;
  record.order = job.spec.order;
  record.priority = job.spec.priority;
  record.capped = job.spec.capped;
  record.held = job.spec.held;
  record.ran = job.ran;
  if (job.ends_as == Outcome::kDependencyFailed) record.broken_by = job.broken_by;
  commands->push_back(record);
}

template <class Change>
void JobCore::State::change_counts(Job& job, Change change) {
  change(counts[static_cast<std::size_t>(job.state)]);
  if (job.waits()) change(job.user->queued);
  if (job.leaves()) change(leaving);
  if (job.counts_in_array()) change(arrays.at(job.spec.array).active);
  if (job.state != JobState::kSuspended) return;
  for (const GpuIndex index : job.gpus) {
    if (Gpu* const gpu = gpus.find(index)) change(gpu->suspended);
    change(job.user->suspended_gpus);
  }
  waiting.rank(*job.user);
}

void JobCore::State::set_state(Job& job, JobState state) {
  const bool counted_in_array = job.counts_in_array();
  change_counts(job, [](auto& count) { --count; });
  job.state = state;
  if (state != JobState::kDone) change_counts(job, [](auto& count) { ++count; });
  if (!counted_in_array || job.counts_in_array()) return;
  waiting.unpark(arrays.at(job.spec.array));
}

Job& JobCore::State::take(const JobSpec& spec) {
  Job& job = *(jobs[spec.id] = std::make_unique<Job>());
  job.spec = spec;
  job.user = &users.of(spec.uid);
  if (job.spec.order == 0) job.spec.order = next_order;
  next_order = std::max(next_order, job.spec.order + 1);
  if (spec.array != kNoJob) {
    Array& array = arrays[spec.array];
    array.limit = spec.array_limit;
    ++array.unfinished;
  }
  change_counts(job, [](auto& count) { ++count; });
  if (job.spec.held) set_state(job, JobState::kHeld);
  if (job.spec.begin > now) {
    job.begins_at = job.spec.begin;
    arm(job);
  }
  return job;
}

// ---- GPUs ---------------------------------------------------------------------------------------

void JobCore::State::occupy(Job& job, const GpuSet& on) {
  gpus.put(job, on);
  users.begin_use(*job.user, on.size());
  waiting.rank(*job.user);
}

void JobCore::State::vacate(Job& job) {
  if (!job.occupies()) return;
  gpus.remove(job);
  users.end_use(*job.user, job.gpus.size());
  waiting.rank(*job.user);
  dirty = true;
}

// ---- a run --------------------------------------------------------------------------------------

void JobCore::State::start(Job& job, const GpuSet& on) {
  const bool resumes = job.state == JobState::kSuspended;
  waiting.dequeue(job);
  if (!resumes) ++job.attempt;
  occupy(job, on);
  set_state(job, resumes ? JobState::kResuming : JobState::kStarting);
  record(job);
  if (resumes) {
    commands->push_back(Resume{job.spec.id, job.attempt, on});
  } else {
    commands->push_back(Start{job.spec.id, job.attempt, on});
  }
}

void JobCore::State::begin_to_run(Job& job) {
  set_state(job, JobState::kRunning);
  record(job);
  run_clock(job);
  dirty |= settings.preempt;
  suspend_if_held(job);
}

void JobCore::State::suspend(Job& job, SuspendReason reason) {
  stop_clock(job);
  job.suspended_for = reason;
  set_state(job, JobState::kSuspending);
  record(job);
  commands->push_back(Suspend{job.spec.id, job.attempt, reason});
}

// A job that is held does not run, but while it cannot be suspended.
void JobCore::State::suspend_if_held(Job& job) {
  if (job.state == JobState::kRunning && job.spec.held && !job.retry_at) suspend(job, SuspendReason::kAsked);
}

void JobCore::State::ask_to_end(Job& job, CancelReason reason) {
  waiting.dequeue(job);
  stop_clock(job);
  set_state(job, JobState::kEnding);
  job.ends_as = reason == CancelReason::kTimeLimit ? Outcome::kTimedOut
                : reason == CancelReason::kAsked   ? Outcome::kCancelled
                                                   : Outcome::kNone;
  record(job);
  commands->push_back(Cancel{job.spec.id, job.attempt, reason});
}

void JobCore::State::end_as_told(Job& job) {
  if (job.ends_as == Outcome::kNone) return run_again(job);
  finish(job, job.ends_as);
}

void JobCore::State::run_again(Job& job) {
  waiting.dequeue(job);
  stop_clock(job);
  job.ran = Duration(0);
  job.floor.reset();
  back_to_queue(job);
}

void JobCore::State::back_to_queue(Job& job) {
  set_state(job, job.spec.held ? JobState::kHeld : JobState::kQueued);
  vacate(job);
  job.gpus = {};
  record(job);
  arm(job);
  waiting.enqueue(job);
}

// ---- the end ------------------------------------------------------------------------------------

// And the end of all that could only have come after it. A list, not a recursion: chains may be long.
void JobCore::State::finish(Job& job, Outcome outcome, bool recorded) {
  std::vector<JobId> broken;
  end_one(job, outcome, recorded, broken);
  for (std::size_t i = 0; i < broken.size(); ++i) {
    if (Job* const next = find(broken[i])) end_one(*next, Outcome::kDependencyFailed, true, broken);
  }
}

void JobCore::State::end_one(Job& job, Outcome outcome, bool recorded, std::vector<JobId>& broken) {
  const JobId id = job.spec.id;
  const bool ok = outcome == Outcome::kOk;
  waiting.dequeue(job);
  dependencies.unawait(job);
  stop_clock(job);
  set_state(job, JobState::kDone);
  vacate(job);
  job.ends_as = outcome;
  if (recorded) record(job);
  if (job.spec.array != kNoJob) {
    Array& array = arrays.at(job.spec.array);
    if (!ok) array.failed = id;
    if (--array.unfinished == 0) {
      const JobId failed = array.failed;
      arrays.erase(job.spec.array);
      dependencies.settle({job.spec.array, true, Dependency::Need::kOk}, failed == kNoJob, failed, broken);
      dependencies.settle({job.spec.array, true, Dependency::Need::kAny}, true, id, broken);
    } else if (!ok) {
      dependencies.settle({job.spec.array, true, Dependency::Need::kOk}, false, id, broken);
    }
  }
  dependencies.settle({id, false, Dependency::Need::kOk}, ok, id, broken);
  dependencies.settle({id, false, Dependency::Need::kAny}, true, id, broken);
  if (gpus.reservation().job == id) gpus.reserve({});
  jobs.erase(id);
}

// ---- time ---------------------------------------------------------------------------------------

// Its next deadline: the end of its time, or when something is tried again.
void JobCore::State::arm(Job& job) {
  if (job.wake != TimePoint::max()) deadlines.erase({job.wake, job.spec.id});
  job.wake = std::min(job.retry_at.value_or(TimePoint::max()), job.begins_at.value_or(TimePoint::max()));
  if (!job.overdue()) job.wake = std::min(job.wake, limit_at(job));
  if (job.wake != TimePoint::max()) deadlines.insert({job.wake, job.spec.id});
}

void JobCore::State::woken(Job& job) {
  if (job.begins_at && *job.begins_at <= now) {
    job.begins_at.reset();
    waiting.enqueue(job);
  }
  if (job.retry_at && *job.retry_at <= now) {
    job.retry_at.reset();
    waiting.enqueue(job);
    dirty = true;
    suspend_if_held(job);
  }
  if (!job.overdue() && limit_at(job) <= now) {
    job.clock->overdue = true;
    ++overdue;
    dirty = true;
  }
  arm(job);
}

Duration JobCore::State::limit_of(const Job& job) const {
  const Duration own = job.spec.time_limit, all = settings.max_time;
  if (own == kNoLimit || all == kNoLimit) return std::max(own, all);
  return std::min(own, all);
}

TimePoint JobCore::State::limit_at(const Job& job) const {
  const Duration limit = limit_of(job);
  if (!job.clock || limit == kNoLimit) return TimePoint::max();
  const Duration left = limit - std::min(limit, job.ran);
  return left > TimePoint::max() - job.clock->since ? TimePoint::max() : job.clock->since + left;
}

void JobCore::State::run_clock(Job& job) {
  job.clock = Clock{now};
  job.clock->overdue = limit_at(job) <= now;
  if (job.overdue()) ++overdue;
  arm(job);
}

void JobCore::State::stop_clock(Job& job) {
  if (job.overdue()) --overdue;
  if (job.clock) job.ran += now - job.clock->since;
  job.clock.reset();
  job.begins_at.reset();
  job.retry_at.reset();
  arm(job);
}

void JobCore::State::rearm_all() {
  for (const Gpu& gpu : gpus.all()) {
    for (Job* job : gpu.occupants) limit_changed(*job);
  }
}

void JobCore::State::limit_changed(Job& job) {
  if (!job.clock) return;
  const bool over = limit_at(job) <= now;
  if (over != job.overdue()) overdue += over ? 1u : ~0u;
  job.clock->overdue = over;
  arm(job);
}

}  // namespace gpumux::jobs
