// SPDX-License-Identifier: Apache-2.0
// One job's life: from its submission through its runs to its end.
#include "jobs/core/state.h"

namespace gpumux::jobs {
Job* JobCore::State::find(JobId id) {
  const auto found = jobs.find(id);
  return found == jobs.end() ? nullptr : found->second.get();
}

Job* JobCore::State::find(JobId id, std::uint32_t attempt) {
  Job* const job = find(id);
  return job != nullptr && job->attempt == attempt ? job : nullptr;
}

User& JobCore::State::user_of(std::uint32_t uid) {
  const auto [slot, is_new] = users.try_emplace(uid);
  if (is_new) {
    slot->second.uid = uid;
    slot->second.charged_to = now;
  }
  return slot->second;
}

std::optional<Refusal> JobCore::State::impossible(const JobSpec& spec) const {
  const std::uint32_t wanted = spec.wanted_gpus();
  if (wanted == 0) return Refusal::kNoGpus;
  std::uint32_t present = 0, large_enough = 0;
  for (const Gpu& gpu : gpus) {
    if (!gpu.present) continue;
    ++present;
    const bool named = spec.gpus.empty() || spec.gpus.contains(gpu.index);
    if (named && spec.memory <= gpu.capacity) ++large_enough;
  }
  for (const GpuIndex index : spec.gpus) {
    if (index.value >= gpus.size() || !gpus[index.value].present) return Refusal::kUnknownGpu;
  }
  if (wanted > present) return Refusal::kTooManyGpus;
  if (wanted > large_enough) return Refusal::kTooMuchMemory;
  const auto user = users.find(spec.uid);
  if (wanted > (user == users.end() ? settings.limits : limits_of(user->second)).gpus) return Refusal::kGpuLimit;
  return std::nullopt;
}

std::optional<Refusal> JobCore::State::refusal(const JobSpec& spec) const {
  if (spec.id == kNoJob || jobs.contains(spec.id)) return Refusal::kExists;
  if (const auto never = impossible(spec)) return never;
  for (const Dependency& dependency : spec.after) {
    if (dependency.fate != Dependency::Fate::kPending) continue;
    const bool there = dependency.whole_array ? arrays.contains(dependency.on) : jobs.contains(dependency.on);
    if (!there) return Refusal::kUnknownJob;
  }
  const auto user = users.find(spec.uid);
  const UserLimits& limits = user == users.end() ? settings.limits : limits_of(user->second);
  if ((user == users.end() ? 0 : user->second.queued) >= limits.queued) return Refusal::kQueueLimit;
  return std::nullopt;
}

std::optional<Refusal> JobCore::State::refusal(const RequestAsked& e) const {
  const auto found = jobs.find(e.job);
  if (found == jobs.end() || found->second->state == JobState::kEnding) return std::nullopt;
  const Job& job = *found->second;
  const bool is_started = has_started(job.state);
  Request same = job.spec.request();
  same.time_limit = e.request.time_limit;
  if (same == e.request) {
    const bool is_bound = is_started && !e.by_admin;
    return is_bound && is_longer(same.time_limit, job.spec.time_limit) ? std::optional(Refusal::kLonger) : std::nullopt;
  }
  if (is_started) return Refusal::kStarted;
  JobSpec wanted = job.spec;
  wanted.ask(e.request);
  return impossible(wanted);
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
    if (Gpu* const gpu = gpu_of(index)) change(gpu->suspended);
    change(job.user->suspended_gpus);
  }
  rank(*job.user);
}

void JobCore::State::set_state(Job& job, JobState state) {
  const bool counted_in_array = job.counts_in_array();
  change_counts(job, [](auto& count) { --count; });
  job.state = state;
  if (state != JobState::kDone) change_counts(job, [](auto& count) { ++count; });
  if (!counted_in_array || job.counts_in_array()) return;
  for (Class* c : std::exchange(arrays.at(job.spec.array).parked, {})) unpark(*c);
}

// ---- submission ---------------------------------------------------------------------------------

std::int32_t JobCore::State::capped(const User& user, std::int32_t priority, bool by_admin) const {
  return by_admin ? priority : limits_of(user).priority_cap.at_most(priority);
}

Job& JobCore::State::take(const JobSpec& spec) {
  Job& job = *(jobs[spec.id] = std::make_unique<Job>());
  job.spec = spec;
  job.user = &user_of(spec.uid);
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

void JobCore::State::on(const Submitted& e) {
  if (refusal(e.spec)) return;
  Job& job = take(e.spec);
  job.spec.capped = capped(*job.user, job.spec.priority, e.by_admin);
  const bool possible = await(job);
  record(job);
  if (!possible) return finish(job, Outcome::kDependencyFailed);
  enqueue(job);
}

void JobCore::State::on(const Restored& e) {
  if (e.spec.id == kNoJob || jobs.contains(e.spec.id) || e.state == JobState::kDone) return;
  Job& job = take(e.spec);
  job.attempt = e.attempt;
  job.ran = e.ran;
  if (!has_started(e.state)) {
    if (!await(job)) return finish(job, Outcome::kDependencyFailed);
    return enqueue(job);
  }
  if (e.state == JobState::kSuspended || e.state == JobState::kResuming) {
    job.gpus = e.gpus;
    set_state(job, JobState::kSuspended);
    return enqueue(job);
  }
  occupy(job, e.gpus);
  if (e.state == JobState::kEnding) job.ends_as = e.outcome;
  set_state(job, e.state == JobState::kSuspending ? JobState::kRunning : e.state);
  if (job.state != JobState::kRunning) return;
  // A job that was being suspended by hand is asked again. Its programs have to be known by then.
  if (job.spec.held) job.retry_at = now + kSuspendRetry;
  run_clock(job);
}

void JobCore::State::on(const Withdrawn& e) {
  Job* const job = find(e.job);
  if (job == nullptr) return;
  // Ending: it was cancelled before it could begin.
  const bool never_ran = !has_started(job->state) ||
                         ((job->state == JobState::kStarting || job->state == JobState::kEnding) && job->attempt == 1);
  if (never_ran) finish(*job, Outcome::kCancelled, false);
}

// ---- what people ask for ------------------------------------------------------------------------

void JobCore::State::on(const CancelAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr) return;
  if (!has_started(job->state)) return finish(*job, Outcome::kCancelled);
  if (job->state != JobState::kEnding) return ask_to_end(*job, CancelReason::kAsked);
  if (job->ends_as != Outcome::kNone) return;
  job->ends_as = Outcome::kCancelled;  // instead of running again
  record(*job);
}

void JobCore::State::ask_to_end(Job& job, CancelReason reason) {
  dequeue(job);
  stop_clock(job);
  set_state(job, JobState::kEnding);
  job.ends_as = reason == CancelReason::kTimeLimit ? Outcome::kTimedOut
                : reason == CancelReason::kAsked   ? Outcome::kCancelled
                                                   : Outcome::kNone;
  record(job);
  commands->push_back(Cancel{job.spec.id, job.attempt, reason});
}

void JobCore::State::on(const HoldAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr || job->spec.held) return;
  if (job->state != JobState::kQueued && job->state != JobState::kSuspended) return;
  dequeue(*job);
  job->spec.held = true;
  if (job->state == JobState::kQueued) set_state(*job, JobState::kHeld);
  record(*job);
}

void JobCore::State::on(const ReleaseAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr || !job->spec.held) return;
  job->spec.held = false;
  if (job->state == JobState::kHeld) set_state(*job, JobState::kQueued);
  record(*job);
  enqueue(*job);
}

void JobCore::State::on(const SuspendAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr || job->spec.held) return;
  if (job->state == JobState::kQueued || job->state == JobState::kEnding) return;
  dequeue(*job);
  job->spec.held = true;
  record(*job);
  suspend_if_held(*job);
}

void JobCore::State::on(const RequeueAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr || !has_started(job->state)) return;
  if (job->state == JobState::kEnding) return;
  job->spec.held = false;
  ask_to_end(*job, CancelReason::kRequeue);
}

void JobCore::State::on(const PriorityAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr || job->state == JobState::kEnding) return;
  const std::int32_t counts_as = capped(*job->user, e.priority, e.by_admin);
  if (e.priority == job->spec.priority && counts_as == job->spec.capped) return;
  dequeue(*job);
  job->spec.priority = e.priority;
  job->spec.capped = counts_as;
  record(*job);
  enqueue(*job);
  dirty = true;  // of one that runs: it may have to make way now, or no longer
}

void JobCore::State::on(const RequestAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr || job->state == JobState::kEnding || e.request == job->spec.request() || refusal(e)) return;
  dequeue(*job);
  job->spec.ask(e.request);
  commands->push_back(RecordRequest{job->spec.id, e.request});
  limit_changed(*job);
  enqueue(*job);
  dirty = true;
}

// ---- what the runner says -----------------------------------------------------------------------

void JobCore::State::on(const StartConfirmed& e) {
  Job* const job = find(e.job, e.attempt);
  if (job == nullptr || job->state != JobState::kStarting) return;
  job->failed_starts = 0;
  begin_to_run(*job);
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

void JobCore::State::on(const StartFailed& e) {
  Job* const job = find(e.job, e.attempt);
  if (job == nullptr) return;
  if (job->state == JobState::kEnding) return end_as_told(*job);
  if (job->state != JobState::kStarting) return;
  const Duration pause = std::min(kMaxStartRetry, kStartRetry * (1 << std::min(job->failed_starts, 6u)));
  ++job->failed_starts;
  job->retry_at = now + pause;
  back_to_queue(*job);
}

void JobCore::State::on(const Ended& e) {
  Job* const job = find(e.job, e.attempt);
  if (job == nullptr || !has_started(job->state)) return;
  if (job->state == JobState::kEnding) return end_as_told(*job);
  if (e.end != End::kLost) return finish(*job, e.end == End::kOk ? Outcome::kOk : Outcome::kFailed);
  if (!job->spec.requeue) return finish(*job, Outcome::kLost);
  run_again(*job);
}

void JobCore::State::end_as_told(Job& job) {
  if (job.ends_as == Outcome::kNone) return run_again(job);
  finish(job, job.ends_as);
}

void JobCore::State::run_again(Job& job) {
  dequeue(job);
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
  enqueue(job);
}

void JobCore::State::on(const Suspended& e) {
  Job* const job = find(e.job, e.attempt);
  if (job == nullptr || job->state != JobState::kSuspending) return;
  set_state(*job, JobState::kSuspended);
  vacate(*job);
  if (job->suspended_for == SuspendReason::kTimeLimit) {
    // Behind all of its priority that wait now.
    job->ran = Duration(0);
    job->spec.order = next_order++;
    const auto level = levels.find(job->spec.capped);
    std::uint64_t last = usage_key(*job->user);
    if (level != levels.end() && !level->second.lanes.empty())
      last = std::max(last, level->second.lanes.rbegin()->first.usage);
    if (settings.order == Order::kFair) job->floor = last;
  }
  record(*job);
  enqueue(*job);
}

void JobCore::State::on(const SuspendRefused& e) {
  Job* const job = find(e.job, e.attempt);
  if (job == nullptr || job->state != JobState::kSuspending) return;
  set_state(*job, JobState::kRunning);
  job->retry_at = now + kSuspendRetry;
  record(*job);
  run_clock(*job);
  dirty = true;
}

void JobCore::State::on(const Resumed& e) {
  Job* const job = find(e.job, e.attempt);
  if (job == nullptr || job->state != JobState::kResuming) return;
  job->floor.reset();
  begin_to_run(*job);
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
  dequeue(job);
  unawait(job);
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
      settle_dependents({job.spec.array, true, Dependency::Need::kOk}, failed == kNoJob, failed, broken);
      settle_dependents({job.spec.array, true, Dependency::Need::kAny}, true, id, broken);
    } else if (!ok) {
      settle_dependents({job.spec.array, true, Dependency::Need::kOk}, false, id, broken);
    }
  }
  settle_dependents({id, false, Dependency::Need::kOk}, ok, id, broken);
  settle_dependents({id, false, Dependency::Need::kAny}, true, id, broken);
  if (reservation.job == id) reservation = {};
  jobs.erase(id);
}

}  // namespace gpumux::jobs
