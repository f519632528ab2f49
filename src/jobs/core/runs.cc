// SPDX-License-Identifier: Apache-2.0
// One job's life: the steps that it takes, from its submission through its runs to its end.
#include "jobs/core/runs.h"

#include <algorithm>
#include <chrono>
#include <memory>

namespace gpumux::jobs {
namespace {

// A job that could not be started, and not by its own fault, is tried again after this; twice as long each time.
constexpr Duration kStartRetry = std::chrono::seconds(1);
constexpr Duration kMaxStartRetry = std::chrono::minutes(1);

}  // namespace

// ---- what is told of it -------------------------------------------------------------------------

void Runs::record(const Job& job) const {
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
  command(record);
}

template <class Change>
void Runs::change_counts(Job& job, Change change) {
  change(counts_[static_cast<std::size_t>(job.state)]);
  if (job.waits()) change(job.user->queued);
  if (job.leaves()) change(leaving_);
  if (job.counts_in_array()) change(arrays().at(job.spec.array).active);
  if (job.state != JobState::kSuspended) return;
  for (const GpuIndex index : job.gpus) {
    if (Gpu* const gpu = gpus_.find(index)) change(gpu->suspended);
    change(job.user->suspended_gpus);
  }
  waiting_.rank(*job.user);
}

void Runs::set_state(Job& job, JobState state) {
  const bool counted_in_array = job.counts_in_array();
  change_counts(job, [](auto& count) { --count; });
  job.state = state;
  if (state != JobState::kDone) change_counts(job, [](auto& count) { ++count; });
  if (!counted_in_array || job.counts_in_array()) return;
  waiting_.unpark(arrays().at(job.spec.array));
}

void Runs::set_held(Job& job, bool is_held) {
  job.spec.held = is_held;
  if (job.state == JobState::kQueued && is_held) set_state(job, JobState::kHeld);
  if (job.state == JobState::kHeld && !is_held) set_state(job, JobState::kQueued);
}

Job& Runs::add(const JobSpec& spec) {
  Job& job = *(jobs()[spec.id] = std::make_unique<Job>());
  job.spec = spec;
  job.user = &users_.of(spec.uid);
  if (job.spec.order == 0) job.spec.order = next_order_;
  next_order_ = std::max(next_order_, job.spec.order + 1);
  if (spec.array != kNoJob) {
    Array& array = arrays()[spec.array];
    array.limit = spec.array_limit;
    ++array.unfinished;
  }
  change_counts(job, [](auto& count) { ++count; });
  if (job.spec.held) set_state(job, JobState::kHeld);
  if (job.spec.begin > now()) {
    job.begins_at = job.spec.begin;
    arm(job);
  }
  return job;
}

// ---- GPUs ---------------------------------------------------------------------------------------

void Runs::occupy(Job& job, const GpuSet& on) {
  gpus_.put(job, on);
  users_.begin_use(*job.user, on.size());
  waiting_.rank(*job.user);
}

void Runs::vacate(Job& job) {
  if (!job.occupies()) return;
  gpus_.remove(job);
  users_.end_use(*job.user, job.gpus.size());
  waiting_.rank(*job.user);
  look_again();
}

// ---- submission ---------------------------------------------------------------------------------

void Runs::submit(const JobSpec& spec, bool by_admin) {
  Job& job = add(spec);
  job.spec.capped = users_.capped(*job.user, job.spec.priority, by_admin);
  const bool possible = dependencies_.await(job);
  record(job);
  if (!possible) return finish(job, Outcome::kDependencyFailed);
  waiting_.enqueue(job);
}

void Runs::restore(const Restored& e) {
  Job& job = add(e.spec);
  job.attempt = e.attempt;
  job.ran = e.ran;
  if (!has_started(e.state)) {
    if (!dependencies_.await(job)) return finish(job, Outcome::kDependencyFailed);
    return waiting_.enqueue(job);
  }
  // It has begun. The clock may have been set back since.
  job.begins_at.reset();
  arm(job);
  if (e.state == JobState::kSuspended || e.state == JobState::kResuming) {
    job.gpus = e.gpus;
    set_state(job, JobState::kSuspended);
    return waiting_.enqueue(job);
  }
  occupy(job, e.gpus);
  if (e.state == JobState::kEnding) job.ends_as = e.outcome;
  set_state(job, e.state == JobState::kSuspending ? JobState::kRunning : e.state);
  if (job.state != JobState::kRunning) return;
  // A job that was being suspended by hand is asked again. Its programs have to be known by then.
  if (job.spec.held) job.retry_at = now() + kSuspendRetry;
  run_clock(job);
}

// ---- a run --------------------------------------------------------------------------------------

void Runs::start(Job& job, const GpuSet& on) {
  const bool resumes = job.state == JobState::kSuspended;
  waiting_.dequeue(job);
  if (!resumes) ++job.attempt;
  occupy(job, on);
  set_state(job, resumes ? JobState::kResuming : JobState::kStarting);
  record(job);
  if (resumes) {
    command(Resume{job.spec.id, job.attempt, on});
  } else {
    command(Start{job.spec.id, job.attempt, on});
  }
}

void Runs::start_failed(Job& job) {
  const Duration pause = std::min(kMaxStartRetry, kStartRetry * (1 << std::min(job.failed_starts, 6u)));
  ++job.failed_starts;
  job.retry_at = now() + pause;
  back_to_queue(job);
}

void Runs::begin_to_run(Job& job) {
  set_state(job, JobState::kRunning);
  record(job);
  run_clock(job);
  if (settings().preempt) look_again();
  suspend_if_held(job);
}

void Runs::suspend(Job& job, SuspendReason reason) {
  stop_clock(job);
  job.suspended_for = reason;
  set_state(job, JobState::kSuspending);
  record(job);
  command(Suspend{job.spec.id, job.attempt, reason});
}

void Runs::suspend_if_held(Job& job) {
  if (job.state == JobState::kRunning && job.spec.held && !job.retry_at) suspend(job, SuspendReason::kAsked);
}

void Runs::suspended(Job& job) {
  set_state(job, JobState::kSuspended);
  vacate(job);
  if (job.suspended_for == SuspendReason::kTimeLimit) {
    // Behind all of its priority that wait now.
    job.ran = Duration(0);
    job.spec.order = next_order_++;
    if (settings().order == Order::kFair)
      job.floor = std::max(users_.usage_key(*job.user), waiting_.last_usage(job.spec.capped));
  }
  record(job);
  waiting_.enqueue(job);
}

void Runs::suspend_refused(Job& job) {
  set_state(job, JobState::kRunning);
  job.retry_at = now() + kSuspendRetry;
  record(job);
  run_clock(job);
  look_again();
}

void Runs::ask_to_end(Job& job, CancelReason reason) {
  waiting_.dequeue(job);
  stop_clock(job);
  set_state(job, JobState::kEnding);
  job.ends_as = reason == CancelReason::kTimeLimit ? Outcome::kTimedOut
                : reason == CancelReason::kAsked   ? Outcome::kCancelled
                                                   : Outcome::kNone;
  record(job);
  command(Cancel{job.spec.id, job.attempt, reason});
}

void Runs::end_as_told(Job& job) {
  if (job.ends_as == Outcome::kNone) return run_again(job);
  finish(job, job.ends_as);
}

void Runs::run_again(Job& job) {
  waiting_.dequeue(job);
  stop_clock(job);
  job.ran = Duration(0);
  job.floor.reset();
  back_to_queue(job);
}

void Runs::back_to_queue(Job& job) {
  set_state(job, job.spec.held ? JobState::kHeld : JobState::kQueued);
  vacate(job);
  job.gpus = {};
  record(job);
  arm(job);
  waiting_.enqueue(job);
}

// ---- the end ------------------------------------------------------------------------------------

// A list, not a recursion: chains may be long.
void Runs::finish(Job& job, Outcome outcome, bool recorded) {
  std::vector<JobId> broken;
  end_one(job, outcome, recorded, broken);
  for (std::size_t i = 0; i < broken.size(); ++i) {
    if (Job* const next = find(broken[i])) end_one(*next, Outcome::kDependencyFailed, true, broken);
  }
}

void Runs::end_one(Job& job, Outcome outcome, bool recorded, std::vector<JobId>& broken) {
  const JobId id = job.spec.id;
  const bool ok = outcome == Outcome::kOk;
  waiting_.dequeue(job);
  dependencies_.unawait(job);
  stop_clock(job);
  set_state(job, JobState::kDone);
  vacate(job);
  job.ends_as = outcome;
  if (recorded) record(job);
  if (job.spec.array != kNoJob) {
    Array& array = arrays().at(job.spec.array);
    if (!ok) array.failed = id;
    if (--array.unfinished == 0) {
      const JobId failed = array.failed;
      arrays().erase(job.spec.array);
      dependencies_.settle({job.spec.array, true, Dependency::Need::kOk}, failed == kNoJob, failed, broken);
      dependencies_.settle({job.spec.array, true, Dependency::Need::kAny}, true, id, broken);
    } else if (!ok) {
      dependencies_.settle({job.spec.array, true, Dependency::Need::kOk}, false, id, broken);
    }
  }
  dependencies_.settle({id, false, Dependency::Need::kOk}, ok, id, broken);
  dependencies_.settle({id, false, Dependency::Need::kAny}, true, id, broken);
  if (gpus_.reservation().job == id) gpus_.reserve({});
  jobs().erase(id);
}

// ---- time ---------------------------------------------------------------------------------------

std::optional<TimePoint> Runs::next_deadline() const {
  return deadlines_.empty() ? std::nullopt : std::optional(deadlines_.begin()->first);
}

void Runs::pass_time() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now()) woken(*find(deadlines_.begin()->second));
}

// Its next deadline: the end of its time, or when something is tried again.
void Runs::arm(Job& job) {
  if (job.wake != TimePoint::max()) deadlines_.erase({job.wake, job.spec.id});
  job.wake = std::min(job.retry_at.value_or(TimePoint::max()), job.begins_at.value_or(TimePoint::max()));
  if (!job.overdue()) job.wake = std::min(job.wake, limit_at(job));
  if (job.wake != TimePoint::max()) deadlines_.insert({job.wake, job.spec.id});
}

void Runs::woken(Job& job) {
  if (job.begins_at && *job.begins_at <= now()) {
    job.begins_at.reset();
    waiting_.enqueue(job);
  }
  if (job.retry_at && *job.retry_at <= now()) {
    job.retry_at.reset();
    waiting_.enqueue(job);
    look_again();
    suspend_if_held(job);
  }
  if (!job.overdue() && limit_at(job) <= now()) {
    job.clock->overdue = true;
    ++overdue_;
    look_again();
  }
  arm(job);
}

Duration Runs::limit_of(const Job& job) const {
  const Duration own = job.spec.time_limit, all = settings().max_time;
  if (own == kNoLimit || all == kNoLimit) return std::max(own, all);
  return std::min(own, all);
}

TimePoint Runs::limit_at(const Job& job) const {
  const Duration limit = limit_of(job);
  if (!job.clock || limit == kNoLimit) return TimePoint::max();
  const Duration left = limit - std::min(limit, job.ran);
  return left > TimePoint::max() - job.clock->since ? TimePoint::max() : job.clock->since + left;
}

void Runs::run_clock(Job& job) {
  job.clock = Clock{now()};
  job.clock->overdue = limit_at(job) <= now();
  if (job.overdue()) ++overdue_;
  arm(job);
}

void Runs::stop_clock(Job& job) {
  if (job.overdue()) --overdue_;
  if (job.clock) job.ran += now() - job.clock->since;
  job.clock.reset();
  job.begins_at.reset();
  job.retry_at.reset();
  arm(job);
}

void Runs::limits_changed() {
  for (const Gpu& gpu : gpus_.all()) {
    for (Job* job : gpu.occupants) limit_changed(*job);
  }
}

void Runs::limit_changed(Job& job) {
  if (!job.clock) return;
  const bool over = limit_at(job) <= now();
  if (over != job.overdue()) overdue_ += over ? 1u : ~0u;
  job.clock->overdue = over;
  arm(job);
}

}  // namespace gpumux::jobs
