// SPDX-License-Identifier: Apache-2.0
// One job's life: the steps that it takes, from its submission through its runs to its end.
#include "jobs/core/runs.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <variant>

namespace gpumux::jobs {
namespace {

constexpr std::array kStates{JobState::kQueued,    JobState::kStarting, JobState::kRunning, JobState::kSuspending,
                             JobState::kSuspended, JobState::kResuming, JobState::kEnding,  JobState::kDone};
static_assert(kStates.size() == std::variant_size_v<Job::Life>);

// A job that could not be started, and not by its own fault, is tried again after this; twice as long each time.
constexpr Duration kStartRetry = std::chrono::seconds(1);
constexpr Duration kMaxStartRetry = std::chrono::minutes(1);

}  // namespace

JobState Job::state() const { return in<Queued>() && spec.held ? JobState::kHeld : kStates[life.index()]; }

Outcome Job::ends_as() const {
  if (const auto* ending = in<Ending>()) return ending->as;
  return in<Done>() ? in<Done>()->as : Outcome::kNone;
}

// ---- what is told of it -------------------------------------------------------------------------

void Runs::record(const Job& job) const {
  Record record;
  record.job = job.spec.id;
  record.state = job.state();
  record.outcome = job.ends_as();
  record.attempt = job.attempt;
  record.gpus = job.gpus;
  record.order = job.spec.order;
  record.priority = job.spec.priority;
  record.capped = job.spec.capped;
  record.held = job.spec.held;
  record.ran = job.ran;
  if (record.outcome == Outcome::kDependencyFailed) record.broken_by = job.broken_by;
  command(record);
}

template <class Change>
void Runs::change_counts(Job& job, Change change) {
  if (job.in<Job::Done>()) return;
  change(counts_[static_cast<std::size_t>(job.state())]);
  if (job.waits()) change(job.user->queued);
  if (job.leaves()) change(leaving_);
  if (job.overdue()) change(overdue_);
  if (job.counts_in_array()) change(arrays().at(job.spec.array).active);
  if (!job.in<Job::Suspended>()) return;
  for (const GpuIndex index : job.gpus) {
    if (Gpu* const gpu = gpus_.find(index)) change(gpu->suspended);
    change(job.user->suspended_gpus);
  }
  waiting_.rank(*job.user);
}

template <class Change>
void Runs::change(Job& job, Change change) {
  change_counts(job, [](auto& count) { --count; });
  change();
  change_counts(job, [](auto& count) { ++count; });
}

void Runs::enter(Job& job, const Job::Life& next) {
  const bool counted_in_array = job.counts_in_array();
  change(job, [&] {
    if (const auto* running = job.in<Job::Running>()) job.ran += now() - running->since;
    job.life = next;
    if (auto* running = job.in<Job::Running>()) running->overdue = limit_at(job) <= now();
  });
  arm(job);
  if (counted_in_array && !job.counts_in_array()) waiting_.unpark(arrays().at(job.spec.array));
}

void Runs::set_held(Job& job, bool is_held) {
  if (!job.in<Job::Queued>()) {  // its state stays the same
    job.spec.held = is_held;
  } else {
    change(job, [&] { job.spec.held = is_held; });
  }
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
  if (spec.begin > now()) job.in<Job::Queued>()->begins_at = spec.begin;
  change_counts(job, [](auto& count) { ++count; });
  arm(job);
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
  if (e.state == JobState::kSuspended || e.state == JobState::kResuming) {
    job.gpus = e.gpus;
    enter(job, Job::Suspended{});
    return waiting_.enqueue(job);
  }
  // A suspended job that is told to end has left its GPUs, and its record still names them. It shows beside a job that
  // cannot be there together with it.
  const std::vector<Job*> not_beside = gpus_.not_beside(job, e.gpus);
  if (e.state == JobState::kEnding && !not_beside.empty()) {
    job.gpus = e.gpus;
    return enter(job, Job::Ending{e.outcome});
  }
  for (Job* other : not_beside) {
    if (other->in<Job::Ending>()) change(*other, [&] { vacate(*other); });
  }
  occupy(job, e.gpus);
  if (e.state == JobState::kStarting) return enter(job, Job::Starting{});
  if (e.state == JobState::kEnding) return enter(job, Job::Ending{e.outcome});
  Job::Running running{now(), false, {}};
  // A job that was being suspended by hand is asked again. Its programs have to be known by then.
  if (job.spec.held) running.retry_at = now() + kSuspendRetry;
  enter(job, running);
}

// ---- a run --------------------------------------------------------------------------------------

void Runs::start(Job& job, const GpuSet& on) {
  const bool resumes = job.in<Job::Suspended>() != nullptr;
  waiting_.dequeue(job);
  if (!resumes) ++job.attempt;
  occupy(job, on);
  enter(job, resumes ? Job::Life(Job::Resuming{}) : Job::Starting{});
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
  enter(job, Job::Queued{{}, now() + pause});
  back_to_queue(job);
}

void Runs::begin_to_run(Job& job) {
  enter(job, Job::Running{now(), false, {}});
  record(job);
  if (settings().preempt) look_again();
  suspend_if_held(job);
}

void Runs::suspend(Job& job, SuspendReason reason) {
  enter(job, Job::Suspending{reason});
  record(job);
  command(Suspend{job.spec.id, job.attempt, reason});
}

void Runs::suspend_if_held(Job& job) {
  if (job.in<Job::Running>() && job.spec.held && !job.suspend_refused()) suspend(job, SuspendReason::kAsked);
}

void Runs::suspended(Job& job) {
  const SuspendReason reason = job.in<Job::Suspending>()->reason;
  enter(job, Job::Suspended{});
  vacate(job);
  if (reason == SuspendReason::kTimeLimit) {
    // Behind all of its priority that wait now.
    job.ran = Duration(0);
    job.spec.order = next_order_++;
    if (settings().order == Order::kFair)
      job.in<Job::Suspended>()->floor = std::max(users_.usage_key(*job.user), waiting_.last_usage(job.spec.capped));
  }
  record(job);
  waiting_.enqueue(job);
}

void Runs::suspend_refused(Job& job) {
  enter(job, Job::Running{now(), false, now() + kSuspendRetry});
  record(job);
  look_again();
}

void Runs::ask_to_end(Job& job, CancelReason reason) {
  waiting_.dequeue(job);
  enter(job, Job::Ending{reason == CancelReason::kTimeLimit ? Outcome::kTimedOut
                         : reason == CancelReason::kAsked   ? Outcome::kCancelled
                                                            : Outcome::kNone});
  record(job);
  command(Cancel{job.spec.id, job.attempt, reason});
}

void Runs::end_as_told(Job& job) {
  if (job.ends_as() == Outcome::kNone) return run_again(job);
  finish(job, job.ends_as());
}

void Runs::run_again(Job& job) {
  waiting_.dequeue(job);
  enter(job, Job::Queued{});
  job.ran = Duration(0);
  back_to_queue(job);
}

void Runs::back_to_queue(Job& job) {
  vacate(job);
  job.gpus = {};
  record(job);
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
  enter(job, Job::Done{outcome});
  vacate(job);
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
  job.wake = TimePoint::max();
  if (const auto* queued = job.in<Job::Queued>()) {
    job.wake = std::min(queued->begins_at.value_or(job.wake), queued->retry_at.value_or(job.wake));
  } else if (const auto* running = job.in<Job::Running>()) {
    job.wake = std::min(running->retry_at.value_or(job.wake), running->overdue ? job.wake : limit_at(job));
  }
  if (job.wake != TimePoint::max()) deadlines_.insert({job.wake, job.spec.id});
}

void Runs::woken(Job& job) {
  const auto is_over = [this](std::optional<TimePoint>& at) {
    const bool over = at && *at <= now();
    if (over) at.reset();
    return over;
  };
  if (auto* queued = job.in<Job::Queued>()) {
    is_over(queued->begins_at);
    if (is_over(queued->retry_at)) look_again();
    waiting_.enqueue(job);
  } else if (auto* running = job.in<Job::Running>()) {
    limit_changed(job);
    if (running->overdue) look_again();
    if (is_over(running->retry_at)) {
      look_again();
      suspend_if_held(job);
    }
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
  const auto* const running = job.in<Job::Running>();
  if (running == nullptr || limit == kNoLimit) return TimePoint::max();
  const Duration left = limit - std::min(limit, job.ran);
  return left > TimePoint::max() - running->since ? TimePoint::max() : running->since + left;
}

void Runs::limits_changed() {
  for (const Gpu& gpu : gpus_.all()) {
    for (Job* job : gpu.occupants) limit_changed(*job);
  }
}

void Runs::limit_changed(Job& job) {
  auto* const running = job.in<Job::Running>();
  if (running == nullptr) return;
  change(job, [&] { running->overdue = limit_at(job) <= now(); });
  arm(job);
}

}  // namespace gpumux::jobs
