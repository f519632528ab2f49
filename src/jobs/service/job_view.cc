// SPDX-License-Identifier: Apache-2.0
#include "jobs/service/job_view.h"

#include <algorithm>

#include "jobs/service/json_object.h"
#include "server/peers/process_info.h"

namespace gpumux::jobs {
namespace {

using namespace std::chrono_literals;

// A guess: a renamed user has the old name for this long, and a directory service is asked about each user this often.
constexpr auto kNameKept = 60s;
// More users than a machine has. Beyond it all names are looked up again, and memory stays bounded.
constexpr std::size_t kMostNames = 10'000;

}  // namespace

std::string UserNames::name(uid_t uid) {
  const auto now = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    const auto known = names_.find(uid);
    if (known != names_.end() && now - known->second.second < kNameKept) return known->second.first;
  }
  std::string name = server::user_name(uid);
  const std::lock_guard lock(mutex_);
  if (names_.size() > kMostNames) names_.clear();
  names_[uid] = {name, now};
  return name;
}

namespace {

void add_details(JsonObject& json, const store::StoredJob& job, const JobDetails& details) {
  if (const JobDocument* document = details.document) {
    json.flag("interactive", document->interactive);
    json.json("arguments", texts_json(document->arguments));
    json.text("directory", document->directory);
    json.text("setup_command", document->setup_command);
    if (!document->error_output.empty()) json.text("error_output", document->error_output);
    if (details.with_environment) json.json("environment", texts_json(document->environment));
  }
  json.text("log", job.log);
  if (details.view && !details.view->attach_path.empty()) json.text("attach", details.view->attach_path);
  if (details.view && details.view->main_pid != 0) json.number("pid", details.view->main_pid);
  nlohmann::json after = nlohmann::json::array();
  for (const Dependency& dependency : job.spec.after) {
    after.push_back({{"job", dependency.on.value}, {"need", dependency.need == Dependency::Need::kOk ? "ok" : "any"}});
  }
  json.json("after", after);
}

}  // namespace

void append_job(std::string& text, const store::StoredJob& job, const JobNow& now, Sight sight, UserNames& names,
                const JobDetails* details) {
  const bool is_all = sight == Sight::kOpen || sight == Sight::kOwn;
  const JobSpec& spec = job.spec;
  JsonObject json(text);
  json.number("id", spec.id.value);
  if (spec.array != kNoJob) {
    json.number("array", spec.array.value);
    json.number("array_index", spec.array_index);
    if (spec.array_limit != 0) json.number("array_limit", spec.array_limit);
  }
  if (is_all) json.text("name", job.name);
  json.number("uid", spec.uid);
  json.text("user", names.name(spec.uid));
  const JobState state = now.standing ? now.standing->state : job.core.state;
  const bool is_done = job.core.state == JobState::kDone;
  json.word("state", to_string(state));
  if (now.state_since) json.number("state_since_unix_ns", *now.state_since);
  if (is_all) {
    json.word("outcome", job.core.outcome == Outcome::kNone || !is_done ? "" : to_string(job.core.outcome));
    if (job.exit_status != store::kNoExitStatus) json.number("exit_status", job.exit_status);
  }
  json.word("reason", now.standing ? reason_word(now.standing->reason, now.why) : "");
  if (is_all) json.text("why", now.standing ? why_text(job, now.standing->reason, now.why) : "");
  if (now.standing && now.standing->place != 0) json.number("place", now.standing->place);
  if (now.starts_in) json.number("starts_in_ns", now.starts_in->count());
  json.number("priority", now.standing ? now.standing->priority : job.core.priority);
  json.number("priority_capped", now.standing ? now.standing->capped : job.core.capped);
  const GpuSet& gpus = now.standing ? now.standing->gpus : job.core.gpus;
  // Its owner sees them in the order of its own numbers.
  const JobDocument* document = details != nullptr ? details->document : nullptr;
  const bool has_order = document != nullptr && !document->gpu_order.empty();
  if (has_order && !gpus.empty()) {
    json.numbers("gpus", document->gpu_order);
  } else {
    json.numbers("gpus", gpus);
  }
  json.number("gpus_wanted", spec.wanted_gpus());
  if (has_order) {
    json.numbers("gpu_ids", document->gpu_order);
  } else if (!spec.gpus.empty()) {
    json.numbers("gpu_ids", spec.gpus);
  }
  json.number("memory_bytes", spec.memory != 0 ? spec.memory : now.default_memory);
  json.flag("exclusive", spec.exclusive);
  json.number("time_limit_ns", spec.time_limit.count());
  json.word("on_time_limit", spec.on_limit == OnLimit::kCancel ? "cancel" : "suspend");
  if (now.limit_in) json.number("limit_in_ns", now.limit_in->count());
  json.flag("requeue", spec.requeue);
  json.number("attempt", now.standing ? now.standing->attempt : job.core.attempt);
  json.number("submitted_unix_ns", job.submitted_at);
  if (job.begin_at != 0) json.number("begin_unix_ns", job.begin_at);
  json.number("started_unix_ns", job.started_at);
  json.number("ended_unix_ns", job.ended_at);
  json.json("gpu_seconds", std::max(job.gpu_seconds, 0.0));
  json.number("peak_memory_bytes", job.peak_memory);
  if (is_all) json.text("note", now.standing && !now.note.empty() ? now.note : job.note);
  if (sight == Sight::kOwn) json.text("command", job.command);
  if (details != nullptr) add_details(json, job, *details);
}

}  // namespace gpumux::jobs
