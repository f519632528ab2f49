// SPDX-License-Identifier: Apache-2.0
#include "daemon/jobs/job_view.h"

#include "base/units.h"
#include "daemon/jobs/json_fields.h"
#include "daemon/process_info.h"

namespace gpumux::daemon {
namespace {

namespace core = sched::jobs;
using Json = nlohmann::ordered_json;
using core::JobState;
using core::WaitReason;
using namespace std::chrono_literals;

constexpr auto kNameKept = 60s;
constexpr std::size_t kMostNames = 10'000;

Json texts_json(const std::vector<std::string>& texts) {
  Json json = Json::array();
  for (const std::string& text : texts) json.push_back(Json(text_json(text)));
  return json;
}

Json gpus_json(const core::GpuSet& gpus) {
  Json json = Json::array();
  for (const base::GpuIndex gpu : gpus) json.push_back(gpu.value);
  return json;
}

std::string named_gpus(const store::StoredJob& job) {
  if (!job.spec.gpus.empty()) return (job.spec.gpus.size() == 1 ? "GPU " : "GPUs ") + job.spec.gpus.to_string();
  return job.spec.gpu_count == 1 ? std::string("a GPU") : std::to_string(job.spec.gpu_count) + " GPUs";
}

// Why it waits, in words.
std::string why(const store::StoredJob& job, const core::JobStanding& standing, const JobNow& now) {
  switch (standing.reason) {
    case WaitReason::kNone: return "";
    case WaitReason::kHeld: return "held: `gpumux release` lets it go on";
    case WaitReason::kDependency: return "a job that it comes after is not done";
    case WaitReason::kGpuMemory: {
      const std::uint64_t memory = job.spec.memory != 0 ? job.spec.memory : now.default_memory;
      const std::string room = memory == 0 ? "all memory" : base::format_bytes(memory);
      return "waits for " + room + " on " + named_gpus(job) + (job.spec.exclusive ? ", alone" : "");
    }
    case WaitReason::kPriority: return "others go first";
    case WaitReason::kUserLimit: return "as many of its user's jobs run as may";
    case WaitReason::kArrayLimit: return "as many elements of its array run as may";
    case WaitReason::kDrained:
      return named_gpus(job) + " take" + (job.spec.wanted_gpus() == 1 ? "s" : "") + " no jobs at present";
    case WaitReason::kRetry:
      return "could not be started, and is tried again in a moment" + (now.note.empty() ? "" : ": " + now.note);
    case WaitReason::kPaused: return "nothing is started at present";
  }
  return "";
}

}  // namespace

std::string_view reason_name(WaitReason reason) {
  switch (reason) {
    case WaitReason::kNone: return "";
    case WaitReason::kHeld: return "held";
    case WaitReason::kDependency: return "dependency";
    case WaitReason::kGpuMemory: return "gpu_memory";
    case WaitReason::kPriority: return "priority";
    case WaitReason::kUserLimit: return "user_limit";
    case WaitReason::kArrayLimit: return "array_limit";
    case WaitReason::kDrained: return "drained";
    case WaitReason::kRetry: return "retry";
    case WaitReason::kPaused: return "paused";
  }
  return "";
}

std::string UserNames::name(uid_t uid) {
  const auto now = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    const auto known = names_.find(uid);
    if (known != names_.end() && now - known->second.second < kNameKept) return known->second.first;
  }
  std::string name = user_name(uid);
  const std::lock_guard lock(mutex_);
  if (names_.size() > kMostNames) names_.clear();
  names_[uid] = {name, now};
  return name;
}

Json job_json(const store::StoredJob& job, const JobNow& now, Sight sight, UserNames& names) {
  const bool is_all = sight == Sight::kOpen || sight == Sight::kOwn;
  const core::JobSpec& spec = job.spec;
  Json json{{"id", spec.id.value}};
  if (spec.array != core::kNoJob) {
    json["array"] = spec.array.value;
    json["array_index"] = spec.array_index;
  }
  if (is_all) json["name"] = Json(text_json(job.name));
  json["uid"] = spec.uid;
  json["user"] = text_json(names.name(spec.uid));
  json["state"] = to_string(now.standing ? now.standing->state : job.core.state);
  json["outcome"] =
      job.core.outcome == core::Outcome::kNone || job.core.state != JobState::kDone ? "" : to_string(job.core.outcome);
  if (job.exit_status != store::kNoExitStatus) json["exit_status"] = job.exit_status;
  json["reason"] = now.standing ? reason_name(now.standing->reason) : "";
  if (is_all) json["why"] = now.standing ? why(job, *now.standing, now) : "";
  if (now.standing && now.standing->place != 0) json["place"] = now.standing->place;
  json["priority"] = now.standing ? now.standing->priority : job.core.priority;
  json["gpus"] = gpus_json(now.standing ? now.standing->gpus : job.core.gpus);
  json["gpus_wanted"] = spec.wanted_gpus();
  if (!spec.gpus.empty()) json["gpu_ids"] = gpus_json(spec.gpus);
  json["memory_bytes"] = spec.memory != 0 ? spec.memory : now.default_memory;
  json["exclusive"] = spec.exclusive;
  json["time_limit_ns"] = spec.time_limit.count();
  json["on_time_limit"] = spec.on_limit == core::OnLimit::kCancel ? "cancel" : "suspend";
  if (now.limit_in) json["limit_in_ns"] = now.limit_in->count();
  json["requeue"] = spec.requeue;
  json["attempt"] = now.standing ? now.standing->attempt : job.core.attempt;
  json["submitted_unix_ns"] = job.submitted_at;
  json["started_unix_ns"] = job.started_at;
  json["ended_unix_ns"] = job.ended_at;
  if (is_all) json["note"] = text_json(now.standing && !now.note.empty() ? now.note : job.note);
  return json;
}

void add_details(Json& json, const store::StoredJob& job, const JobDocument& document,
                 const std::optional<JobRuns::View>& view, bool with_environment) {
  // In the order of its own numbers.
  if (!document.gpu_order.empty()) {
    json["gpu_ids"] = document.gpu_order;
    if (!json["gpus"].empty()) json["gpus"] = document.gpu_order;
  }
  json["interactive"] = document.interactive;
  json["arguments"] = texts_json(document.arguments);
  json["directory"] = text_json(document.directory);
  json["setup_command"] = text_json(document.setup_command);
  const LaunchedJob launched{.id = job.spec.id,
                             .attempt = job.core.attempt,
                             .array = job.spec.array,
                             .array_index = job.spec.array_index,
                             .name = job.name,
                             .gpus = {},
                             .memory = 0,
                             .priority = 0};
  json["log"] = text_json(log_path(document, launched).value_or(""));
  if (view && !view->attach_path.empty()) json["attach"] = view->attach_path;
  if (view && view->main_pid != 0) json["pid"] = view->main_pid;
  Json after = Json::array();
  for (const core::Dependency& dependency : job.spec.after) {
    after.push_back(
        {{"job", dependency.on.value}, {"need", dependency.need == core::Dependency::Need::kOk ? "ok" : "any"}});
  }
  json["after"] = std::move(after);
  if (with_environment) json["environment"] = texts_json(document.environment);
}

}  // namespace gpumux::daemon
