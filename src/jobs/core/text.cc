// SPDX-License-Identifier: Apache-2.0
// Events, commands and states as text.
#include "jobs/core/job_core.h"

namespace gpumux::jobs {
namespace {

std::string text(std::uint64_t value) { return std::to_string(value); }
std::string text(JobId id) { return "job " + std::to_string(id.value); }
std::string text(JobId id, std::uint32_t attempt) { return text(id) + "." + std::to_string(attempt); }
std::string text(GpuIndex gpu) { return "gpu " + std::to_string(gpu.value); }
std::string on(const GpuSet& gpus) { return gpus.empty() ? "" : " on " + gpus.to_string(); }
std::string text(const Request& request) {
  std::string line = request.gpus.empty() ? " any " + text(request.gpu_count) : on(request.gpus);
  line += " memory " + text(request.memory);
  if (request.time_limit != kNoLimit) line += " limit " + std::to_string(request.time_limit.count());
  return line;
}
std::string text(const UserLimits& limits) {
  // Unlimited is written as the greatest number.
  const auto count = [](const settings::Limit<std::uint32_t>& limit) { return text(limit.at_most(UINT32_MAX)); };
  return "running " + count(limits.running) + " queued " + count(limits.queued) + " gpus " + count(limits.gpus) +
         " priority " + std::to_string(limits.priority_cap.at_most(INT32_MAX));
}

std::string text(const JobSpec& spec) {
  std::string line = text(spec.id) + " uid " + text(spec.uid);
  line += spec.gpus.empty() ? " any " + text(spec.gpu_count) : on(spec.gpus);
  line += " memory " + text(spec.memory) + " priority " + std::to_string(spec.priority);
  if (spec.capped != spec.priority) line += " capped " + std::to_string(spec.capped);
  if (spec.time_limit != kNoLimit) line += " limit " + std::to_string(spec.time_limit.count());
  if (spec.on_limit == OnLimit::kCancel) line += " cancel";
  if (spec.exclusive) line += " exclusive";
  if (spec.requeue) line += " requeue";
  if (spec.held) line += " held";
  if (spec.order != 0) line += " order " + text(spec.order);
  if (spec.begin != TimePoint{}) line += " begin " + std::to_string(spec.begin.time_since_epoch().count());
  if (spec.array != kNoJob)
    line += " array " + text(spec.array.value) + "[" + text(spec.array_index) + "]%" + text(spec.array_limit);
  for (const Dependency& dependency : spec.after) {
    line += dependency.need == Dependency::Need::kOk ? " after ok:" : " after any:";
    line += text(dependency.on.value) + (dependency.whole_array ? "[]" : "");
    if (dependency.fate == Dependency::Fate::kMet) line += "(met)";
    if (dependency.fate == Dependency::Fate::kBroken) line += "(broken)";
  }
  return line;
}

struct Text {
  std::string operator()(const GpuAdded& e) const { return "GpuAdded " + text(e.gpu) + " " + text(e.capacity); }
  std::string operator()(const GpuRemoved& e) const { return "GpuRemoved " + text(e.gpu); }
  std::string operator()(const GpuDrained& e) const {
    return "GpuDrained " + text(e.gpu) + (e.is_drained ? "" : " no longer");
  }
  std::string operator()(const GpuHealth& e) const {
    return "GpuHealth " + text(e.gpu) + (e.is_sick ? " sick" : " healthy");
  }
  std::string operator()(const ForeignUse& e) const { return "ForeignUse " + text(e.gpu) + " " + text(e.bytes); }
  std::string operator()(const SettingsChanged& e) const {
    const QueueSettings& s = e.settings;
    return std::string("SettingsChanged ") + (s.order == Order::kFair ? "fair" : "fifo") + " half life " +
           std::to_string(s.half_life.count()) + " oversubscribe " + text(s.oversubscribe) + " memory " +
           text(s.default_memory) + " time " + std::to_string(s.max_time.count()) + (s.preempt ? " preempt " : " ") +
           text(s.limits);
  }
  std::string operator()(const UserLimitsChanged& e) const {
    return "UserLimitsChanged uid " + text(e.uid) + " " + (e.limits ? text(*e.limits) : "as all");
  }
  std::string operator()(const SchedulingHeld& e) const { return e.is_held ? "SchedulingHeld" : "SchedulingAllowed"; }
  std::string operator()(const Submitted& e) const {
    return "Submitted " + text(e.spec) + (e.by_admin ? " by admin" : "");
  }
  std::string operator()(const Restored& e) const {
    return "Restored " + text(e.spec) + " " + std::string(to_string(e.state)) + " attempt " + text(e.attempt) +
           on(e.gpus) + " ran " + std::to_string(e.ran.count());
  }
  std::string operator()(const UsageRestored& e) const {
    return "UsageRestored uid " + text(e.uid) + " " + text(e.gpu_microseconds);
  }
  std::string operator()(const Withdrawn& e) const { return "Withdrawn " + text(e.job); }
  std::string operator()(const CancelAsked& e) const { return "CancelAsked " + text(e.job); }
  std::string operator()(const HoldAsked& e) const { return "HoldAsked " + text(e.job); }
  std::string operator()(const ReleaseAsked& e) const { return "ReleaseAsked " + text(e.job); }
  std::string operator()(const SuspendAsked& e) const { return "SuspendAsked " + text(e.job); }
  std::string operator()(const RequeueAsked& e) const { return "RequeueAsked " + text(e.job); }
  std::string operator()(const PriorityAsked& e) const {
    return "PriorityAsked " + text(e.job) + " " + std::to_string(e.priority) + (e.by_admin ? " by admin" : "");
  }
  std::string operator()(const RequestAsked& e) const {
    return "RequestAsked " + text(e.job) + text(e.request) + (e.by_admin ? " by admin" : "");
  }
  std::string operator()(const StartConfirmed& e) const { return "StartConfirmed " + text(e.job, e.attempt); }
  std::string operator()(const StartFailed& e) const { return "StartFailed " + text(e.job, e.attempt); }
  std::string operator()(const Ended& e) const {
    const char* const how = e.end == End::kOk ? " ok" : e.end == End::kFailed ? " failed" : " lost";
    return "Ended " + text(e.job, e.attempt) + how;
  }
  std::string operator()(const Suspended& e) const { return "Suspended " + text(e.job, e.attempt); }
  std::string operator()(const SuspendRefused& e) const { return "SuspendRefused " + text(e.job, e.attempt); }
  std::string operator()(const Resumed& e) const { return "Resumed " + text(e.job, e.attempt); }
  std::string operator()(const TimePassed&) const { return "TimePassed"; }

  std::string operator()(const Record& c) const {
    std::string line = "Record " + text(c.job, c.attempt) + " " + std::string(to_string(c.state));
    if (c.outcome != Outcome::kNone) line += " " + std::string(to_string(c.outcome));
    line += on(c.gpus) + " order " + text(c.order) + " priority " + std::to_string(c.priority);
    if (c.capped != c.priority) line += " capped " + std::to_string(c.capped);
    if (c.held) line += " held";
    if (c.ran != Duration{}) line += " ran " + std::to_string(c.ran.count());
    return line;
  }
  std::string operator()(const RecordRequest& c) const { return "RecordRequest " + text(c.job) + text(c.request); }
  std::string operator()(const Start& c) const { return "Start " + text(c.job, c.attempt) + on(c.gpus); }
  std::string operator()(const Suspend& c) const {
    const char* const why = c.reason == SuspendReason::kTimeLimit  ? " time"
                            : c.reason == SuspendReason::kPriority ? " priority"
                                                                   : " asked";
    return "Suspend " + text(c.job, c.attempt) + why;
  }
  std::string operator()(const Resume& c) const { return "Resume " + text(c.job, c.attempt) + on(c.gpus); }
  std::string operator()(const Cancel& c) const {
    const char* const why = c.reason == CancelReason::kTimeLimit ? " time"
                            : c.reason == CancelReason::kAsked   ? " asked"
                                                                 : " requeue";
    return "Cancel " + text(c.job, c.attempt) + why;
  }
};

}  // namespace

std::string to_string(const Event& event) { return std::visit(Text(), event); }
std::string to_string(const Command& command) { return std::visit(Text(), command); }

std::string_view to_string(JobState state) {
  switch (state) {
    case JobState::kQueued: return "queued";
    case JobState::kHeld: return "held";
    case JobState::kStarting: return "starting";
    case JobState::kRunning: return "running";
    case JobState::kSuspending: return "suspending";
    case JobState::kSuspended: return "suspended";
    case JobState::kResuming: return "resuming";
    case JobState::kEnding: return "ending";
    case JobState::kDone: return "done";
  }
  return "unknown";
}

std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kNone: return "none";
    case Outcome::kOk: return "ok";
    case Outcome::kFailed: return "failed";
    case Outcome::kCancelled: return "cancelled";
    case Outcome::kTimedOut: return "timed out";
    case Outcome::kLost: return "lost";
    case Outcome::kDependencyFailed: return "dependency failed";
  }
  return "unknown";
}

std::string_view to_string(WaitReason reason) {
  switch (reason) {
    case WaitReason::kNone: return "";
    case WaitReason::kHeld: return "held";
    case WaitReason::kDependency: return "dependency";
    case WaitReason::kBegin: return "begin";
    case WaitReason::kGpuMemory: return "gpu_memory";
    case WaitReason::kPriority: return "priority";
    case WaitReason::kUserLimit: return "user_limit";
    case WaitReason::kArrayLimit: return "array_limit";
    case WaitReason::kDrained: return "drained";
    case WaitReason::kRetry: return "retry";
    case WaitReason::kPaused: return "paused";
  }
  return "unknown";
}

}  // namespace gpumux::jobs
