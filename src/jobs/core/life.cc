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
  if (spec.id == kNoJob || common.jobs.contains(spec.id)) return Refusal::kExists;
  if (const auto never = impossible(spec)) return never;
  for (const Dependency& dependency : spec.after) {
    if (dependency.fate != Dependency::Fate::kPending) continue;
    if (!dependencies.is_there(dependency)) return Refusal::kUnknownJob;
  }
  if (users.queued_of(spec.uid) >= users.limits_of(spec.uid).queued) return Refusal::kQueueLimit;
  return std::nullopt;
}

std::optional<Refusal> JobCore::State::refusal(const RequestAsked& e) const {
  const auto found = common.jobs.find(e.job);
  if (found == common.jobs.end() || found->second->in<Job::Ending>()) return std::nullopt;
  const Job& job = *found->second;
  const bool is_started = has_started(job.state());
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
  if (!refusal(e.spec)) runs.submit(e.spec, e.by_admin);
}

void JobCore::State::on(const Restored& e) {
  if (e.spec.id != kNoJob && !common.jobs.contains(e.spec.id) && e.state != JobState::kDone) runs.restore(e);
}

void JobCore::State::on(const Withdrawn& e) {
  Job* const job = find(e.job);
  if (job == nullptr) return;
  // Ending: it was cancelled before it could begin.
  const bool never_ran =
      !has_started(job->state()) || ((job->in<Job::Starting>() || job->in<Job::Ending>()) && job->attempt == 1);
  if (never_ran) runs.finish(*job, Outcome::kCancelled, false);
}

// ---- what people ask for ------------------------------------------------------------------------

void JobCore::State::on(const CancelAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr) return;
  if (!has_started(job->state())) return runs.finish(*job, Outcome::kCancelled);
  auto* const ending = job->in<Job::Ending>();
  if (ending == nullptr) return runs.ask_to_end(*job, CancelReason::kAsked);
  if (ending->as != Outcome::kNone) return;
  ending->as = Outcome::kCancelled;  // instead of running again
  runs.record(*job);
}

void JobCore::State::on(const HoldAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr || job->spec.held) return;
  if (job->state() != JobState::kQueued && !job->in<Job::Suspended>()) return;
  waiting.dequeue(*job);
  runs.set_held(*job, true);
  runs.record(*job);
}

void JobCore::State::on(const ReleaseAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr || !job->spec.held) return;
  runs.set_held(*job, false);
  runs.record(*job);
  waiting.enqueue(*job);
}

void JobCore::State::on(const SuspendAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr || job->spec.held) return;
  if (job->state() == JobState::kQueued || job->in<Job::Ending>()) return;
  waiting.dequeue(*job);
  runs.set_held(*job, true);
  runs.record(*job);
  runs.suspend_if_held(*job);
}

void JobCore::State::on(const RequeueAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr || !has_started(job->state())) return;
  if (job->in<Job::Ending>()) return;
  runs.set_held(*job, false);
  runs.ask_to_end(*job, CancelReason::kRequeue);
}

void JobCore::State::on(const PriorityAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr || job->in<Job::Ending>()) return;
  const std::int32_t counts_as = users.capped(*job->user, e.priority, e.by_admin);
  if (e.priority == job->spec.priority && counts_as == job->spec.capped) return;
  waiting.dequeue(*job);
  job->spec.priority = e.priority;
  job->spec.capped = counts_as;
  runs.record(*job);
  waiting.enqueue(*job);
  common.dirty = true;  // of one that runs: it may have to make way now, or no longer
}

void JobCore::State::on(const RequestAsked& e) {
  Job* const job = find(e.job);
  if (job == nullptr || job->in<Job::Ending>() || e.request == job->spec.request() || refusal(e)) return;
  waiting.dequeue(*job);
  job->spec.ask(e.request);
  common.commands->emplace_back(RecordRequest{job->spec.id, e.request});
  runs.limit_changed(*job);
  waiting.enqueue(*job);
  common.dirty = true;
}

// ---- what the runner says -----------------------------------------------------------------------

void JobCore::State::on(const StartConfirmed& e) {
  Job* const job = find(e.job, e.attempt);
  if (job == nullptr || !job->in<Job::Starting>()) return;
  job->failed_starts = 0;
  runs.begin_to_run(*job);
}

void JobCore::State::on(const StartFailed& e) {
  Job* const job = find(e.job, e.attempt);
  if (job == nullptr) return;
  if (job->in<Job::Ending>()) return runs.end_as_told(*job);
  if (!job->in<Job::Starting>()) return;
  runs.start_failed(*job);
}

void JobCore::State::on(const Ended& e) {
  Job* const job = find(e.job, e.attempt);
  if (job == nullptr || !has_started(job->state())) return;
  if (job->in<Job::Ending>()) return runs.end_as_told(*job);
  if (e.end != End::kLost) return runs.finish(*job, e.end == End::kOk ? Outcome::kOk : Outcome::kFailed);
  if (!job->spec.requeue) return runs.finish(*job, Outcome::kLost);
  runs.run_again(*job);
}

void JobCore::State::on(const Suspended& e) {
  Job* const job = find(e.job, e.attempt);
  if (job != nullptr && job->in<Job::Suspending>()) runs.suspended(*job);
}

void JobCore::State::on(const SuspendRefused& e) {
  Job* const job = find(e.job, e.attempt);
  if (job != nullptr && job->in<Job::Suspending>()) runs.suspend_refused(*job);
}

void JobCore::State::on(const Resumed& e) {
  Job* const job = find(e.job, e.attempt);
  if (job == nullptr || !job->in<Job::Resuming>()) return;
  runs.begin_to_run(*job);
}

}  // namespace gpumux::jobs
