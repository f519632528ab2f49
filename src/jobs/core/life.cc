// SPDX-License-Identifier: Apache-2.0
// The events of one job, from its submission through its runs to its end.
#include "jobs/core/state.h"

namespace gpumux::jobs {

std::optional<Refusal> JobCore::State::impossible(const JobSpec& spec) const {
  const std::uint32_t wanted = spec.wanted_gpus();
  if (wanted == 0) return Refusal::kNoGpus;
  std::uint32_t present = 0, large_enough = 0;
  for (const Gpu& gpu : gpus.all()) {
    if (!gpu.present) continue;
    ++present;
    const bool named = spec.gpus.empty() || spec.gpus.contains(gpu.index);
    if (named && spec.memory <= gpu.capacity) ++large_enough;
  }
  for (const GpuIndex index : spec.gpus) {
    const Gpu* const gpu = gpus.find(index);
    if (gpu == nullptr || !gpu->present) return Refusal::kUnknownGpu;
  }
  if (wanted > present) return Refusal::kTooManyGpus;
  if (wanted > large_enough) return Refusal::kTooMuchMemory;
  if (wanted > users.limits_of(spec.uid).gpus) return Refusal::kGpuLimit;
  return std::nullopt;
}

std::optional<Refusal> JobCore::State::refusal(const JobSpec& spec) const {
  if (spec.id == kNoJob || jobs.contains(spec.id)) return Refusal::kExists;
  if (const auto never = impossible(spec)) return never;
  for (const Dependency& dependency : spec.after) {
    if (dependency.fate != Dependency::Fate::kPending) continue;
    if (!dependencies.is_there(dependency)) return Refusal::kUnknownJob;
  }
  if (users.queued_of(spec.uid) >= users.limits_of(spec.uid).queued) return Refusal::kQueueLimit;
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

// ---- submission ---------------------------------------------------------------------------------

void JobCore::State::on(const Submitted& e) {
  if (refusal(e.spec)) return;
  Job& job = take(e.spec);
  job.spec.capped = users.capped(*job.user, job.spec.priority, e.by_admin);
  const bool possible = dependencies.await(job);
  record(job);
  if (!possible) return finish(job, Outcome::kDependencyFailed);
  waiting.enqueue(job);
}

void JobCore::State::on(const Restored& e) {
  if (e.spec.id == kNoJob || jobs.contains(e.spec.id) || e.state == JobState::kDone) return;
  Job& job = take(e.spec);
  job.attempt = e.attempt;
  job.ran = e.ran;
  if (!has_started(e.state)) {
    if (!dependencies.await(job)) return finish(job, Outcome::kDependencyFailed);
    return waiting.enqueue(job);
  }
  // It has begun. The clock may have been set back since.
  job.begins_at.reset();
  arm(job);
  if (e.state == JobState::kSuspended || e.state == JobState::kResuming) {
    job.gpus = e.gpus;
    set_state(job, JobState::kSuspended);
    return waiting.enqueue(job);
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

void JobCore::State::on(const HoldAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr || job->spec.held) return;
  if (job->state != JobState::kQueued && job->state != JobState::kSuspended) return;
  waiting.dequeue(*job);
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
  waiting.enqueue(*job);
}

void JobCore::State::on(const SuspendAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr || job->spec.held) return;
  if (job->state == JobState::kQueued || job->state == JobState::kEnding) return;
  waiting.dequeue(*job);
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
  const std::int32_t counts_as = users.capped(*job->user, e.priority, e.by_admin);
  if (e.priority == job->spec.priority && counts_as == job->spec.capped) return;
  waiting.dequeue(*job);
  job->spec.priority = e.priority;
  job->spec.capped = counts_as;
  record(*job);
  waiting.enqueue(*job);
  dirty = true;  // of one that runs: it may have to make way now, or no longer
}

void JobCore::State::on(const RequestAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr || job->state == JobState::kEnding || e.request == job->spec.request() || refusal(e)) return;
  waiting.dequeue(*job);
  job->spec.ask(e.request);
  commands->push_back(RecordRequest{job->spec.id, e.request});
  limit_changed(*job);
  waiting.enqueue(*job);
  dirty = true;
}

// ---- what the runner says -----------------------------------------------------------------------

void JobCore::State::on(const StartConfirmed& e) {
  Job* const job = find(e.job, e.attempt);
  if (job == nullptr || job->state != JobState::kStarting) return;
  job->failed_starts = 0;
  begin_to_run(*job);
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

void JobCore::State::on(const Suspended& e) {
  Job* const job = find(e.job, e.attempt);
  if (job == nullptr || job->state != JobState::kSuspending) return;
  set_state(*job, JobState::kSuspended);
  vacate(*job);
  if (job->suspended_for == SuspendReason::kTimeLimit) {
    // Behind all of its priority that wait now.
    job->ran = Duration(0);
    job->spec.order = next_order++;
    if (settings.order == Order::kFair)
      job->floor = std::max(users.usage_key(*job->user), waiting.last_usage(job->spec.capped));
  }
  record(*job);
  waiting.enqueue(*job);
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

}  // namespace gpumux::jobs
