// SPDX-License-Identifier: Apache-2.0
#include "api_client/jobs.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api_client/client.h"
#include "api_client/json_reader.h"
#include "base/base64.h"
#include "base/units.h"

namespace gpumux::api_client {
namespace {

using base::Code;
using base::Result;
using base::Status;
using nlohmann::json;

// More digits are no id that was ever given.
constexpr std::size_t kMostIdDigits = 19;

// A submission's answer is durable: it may wait for a disk that is busy.
constexpr base::Duration kDurablePatience = std::chrono::seconds(20);

json bytes_json(std::string_view bytes) {
  if (base::is_utf8(bytes)) return std::string(bytes);
  return {{"base64", base::encode_base64(bytes)}};
}

json bytes_json(const std::vector<std::string>& list) {
  json array = json::array();
  for (const std::string& bytes : list) array.push_back(bytes_json(bytes));
  return array;
}

Result<JobDependency> parse_dependency(const json& object) {
  JobDependency dependency;
  Reader reader(object, "a dependency");
  reader.read("job", dependency.job);
  reader.read("need", dependency.need);
  return reader.finish(std::move(dependency));
}

Result<Job> read_job(const json& object) {
  Job job;
  Reader reader(object, "a job");
  reader.read("id", job.id);
  reader.read("array", job.array);
  reader.read("array_index", job.array_index);
  reader.read("array_limit", job.array_limit);
  reader.read_bytes("name", job.name);
  reader.read("uid", job.uid);
  reader.read_bytes("user", job.user);
  reader.read("state", job.state);
  reader.read("outcome", job.outcome);
  reader.read("exit_status", job.exit_status);
  reader.read("reason", job.reason);
  reader.read_bytes("why", job.why);
  reader.read("place", job.place);
  reader.read_ns("starts_in_ns", job.starts_in);
  reader.read("priority", job.priority);
  reader.read("priority_capped", job.priority_capped);
  reader.read_numbers("gpus", job.gpus);
  reader.read("gpus_wanted", job.gpus_wanted);
  reader.read_numbers("gpu_ids", job.gpu_ids);
  reader.read("memory_bytes", job.memory_bytes);
  reader.read("exclusive", job.exclusive);
  reader.read_ns("time_limit_ns", job.time_limit);
  reader.read("on_time_limit", job.on_time_limit);
  reader.read_ns("limit_in_ns", job.limit_in);
  reader.read("requeue", job.requeue);
  reader.read("attempt", job.attempt);
  reader.read("interactive", job.interactive);
  reader.read("state_since_unix_ns", job.state_since_unix_ns);
  reader.read("submitted_unix_ns", job.submitted_unix_ns);
  reader.read("begin_unix_ns", job.begin_unix_ns);
  reader.read("started_unix_ns", job.started_unix_ns);
  reader.read("ended_unix_ns", job.ended_unix_ns);
  reader.read_bytes("note", job.note);
  reader.read_bytes("command", job.command);
  if (const json* value = reader.find("gpu_seconds"); value != nullptr && value->is_number())
    job.gpu_seconds = value->get<double>();
  reader.read("peak_memory_bytes", job.peak_memory_bytes);
  reader.read_bytes("arguments", job.arguments);
  reader.read_bytes("directory", job.directory);
  reader.read_bytes("setup_command", job.setup_command);
  reader.read_bytes("error_output", job.error_output);
  reader.read_bytes("log", job.log);
  reader.read_bytes("attach", job.attach);
  reader.read("pid", job.pid);
  reader.read_array("after", job.after, parse_dependency);
  reader.read_bytes("environment", job.environment);
  // A limit of 0, or for ever, is none.
  if (job.time_limit && (*job.time_limit <= base::Duration::zero() || *job.time_limit == base::Duration::max()))
    job.time_limit.reset();
  return reader.finish(std::move(job));
}

Result<base::Error> read_error(const json& object) {
  base::Error error;
  std::string code;
  Reader reader(object, "an error");
  reader.read("code", code);
  reader.read("message", error.what);
  std::replace(code.begin(), code.end(), '_', ' ');
  error.code = Code::kInternal;
  for (const Code known : {Code::kInvalid, Code::kNotFound, Code::kExists, Code::kDenied, Code::kExhausted,
                           Code::kUnavailable, Code::kTimeout, Code::kUnsupported}) {
    if (code == base::to_string(known)) error.code = known;
  }
  return reader.finish(std::move(error));
}

Result<JobChange> read_change(const json& object) {
  JobChange change;
  Reader reader(object, "a changed job");
  reader.read("id", change.id);
  reader.read("changed", change.changed);
  if (base::Error error; reader.read_object("error", error, read_error)) change.error = std::move(error);
  return reader.finish(std::move(change));
}

Result<UserLimits> read_limits(const json& object) {
  UserLimits limits;
  Reader reader(object, "limits");
  reader.read("running", limits.running);
  reader.read("queued", limits.queued);
  reader.read("gpus", limits.gpus);
  reader.read("priority_cap", limits.priority_cap);
  return reader.finish(std::move(limits));
}

Result<QueueSettings> read_settings(const json& object) {
  QueueSettings settings;
  Reader reader(object, "the queue's settings");
  reader.read("order", settings.order);
  reader.read_ns("half_life_ns", settings.half_life);
  if (const json* value = reader.find("oversubscribe"); value != nullptr) {
    if (value->is_number()) {
      settings.oversubscribe = value->get<double>();
    } else {
      reader.wrong("oversubscribe", "a number");
    }
  }
  reader.read("default_memory_bytes", settings.default_memory_bytes);
  reader.read_ns("max_job_time_ns", settings.max_job_time);
  reader.read("preempt", settings.preempt);
  reader.read("privacy", settings.privacy);
  reader.read_object("limits", settings.limits, read_limits);
  return reader.finish(std::move(settings));
}

Result<QueueGpuJob> read_queue_gpu_job(const json& object) {
  QueueGpuJob job;
  Reader reader(object, "a job on a GPU");
  reader.read("id", job.id);
  reader.read_bytes("user", job.user);
  reader.read_bytes("name", job.name);
  return reader.finish(std::move(job));
}

Result<QueueGpu> read_queue_gpu(const json& object) {
  QueueGpu gpu;
  Reader reader(object, "a GPU of the queue");
  reader.read("index", gpu.index);
  reader.read("capacity_bytes", gpu.capacity_bytes);
  reader.read("promised_bytes", gpu.promised_bytes);
  reader.read("outside_jobs_bytes", gpu.outside_jobs_bytes);
  reader.read("drained", gpu.drained);
  reader.read("sick", gpu.sick);
  reader.read("present", gpu.present);
  reader.read_array("jobs", gpu.jobs, read_queue_gpu_job);
  return reader.finish(std::move(gpu));
}

Result<Reservation> read_reservation(const json& object) {
  Reservation reservation;
  Reader reader(object, "a reservation");
  reader.read("job", reservation.job);
  reader.read_numbers("gpus", reservation.gpus);
  reader.read_ns("starts_in_ns", reservation.starts_in);
  return reader.finish(std::move(reservation));
}

Result<QueueUser> read_queue_user(const json& object) {
  QueueUser user;
  Reader reader(object, "a user of the queue");
  reader.read("uid", user.uid);
  reader.read_bytes("user", user.user);
  reader.read("running", user.running);
  reader.read("queued", user.queued);
  reader.read("gpus", user.gpus);
  reader.read_ns("used_gpu_ns", user.used_gpu);
  if (UserLimits own; reader.read_object("limits", own, read_limits)) user.limits = own;
  return reader.finish(std::move(user));
}

std::string query_string(const JobQuery& query) {
  std::string text = query.state == JobsState::kDone  ? "?state=done"
                     : query.state == JobsState::kAll ? "?state=all"
                                                      : "?state=unfinished";
  if (!query.user.empty()) text += "&user=" + url_encoded(query.user);
  if (query.array) text += "&array=" + std::to_string(*query.array);
  if (query.latest_end_first) text += "&order=ended";
  if (query.ended_since_unix_ns != 0) text += "&ended_since_unix_ns=" + std::to_string(query.ended_since_unix_ns);
  if (!query.outcome.empty()) text += "&outcome=" + url_encoded(query.outcome);
  if (query.limit) text += "&limit=" + std::to_string(*query.limit);
  if (query.beyond) text += "&beyond=" + std::to_string(*query.beyond);
  if (query.beyond_ended) text += "&beyond_ended=" + std::to_string(*query.beyond_ended);
  return text;
}

}  // namespace

std::string url_encoded(std::string_view text) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string result;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
                       c == '.' || c == '_' || c == '~' || c == '@' || c == '$';
    if (plain) {
      result += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      result += '%';
      result += kDigits[byte >> 4];
      result += kDigits[byte & 15];
    }
  }
  return result;
}

Status check_job_id(std::string_view id) {
  const auto number = [](std::string_view digits) {
    return !digits.empty() && digits.size() <= kMostIdDigits &&
           std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  const std::size_t bar = id.find('_');
  const bool good = number(id.substr(0, bar)) && (bar == std::string_view::npos || number(id.substr(bar + 1)));
  if (good) return {};
  return base::fail(Code::kInvalid, "'" + std::string(id.substr(0, 64)) +
                                        "' is no job's id: it is a number such as 17, or 17_3 for element 3 of array "
                                        "17; `gpumux queue` lists them");
}

namespace {

// Fields that a submission and a change have in common.
void put_request(json& body, const Submission& submission) {
  if (submission.gpus) body["gpus"] = *submission.gpus;
  if (!submission.gpu_ids.empty()) body["gpu_ids"] = submission.gpu_ids;
  if (submission.memory_bytes) body["memory_bytes"] = *submission.memory_bytes;
  if (submission.time_limit) body["time_limit_ns"] = submission.time_limit->count();
  if (submission.priority) body["priority"] = *submission.priority;
}

}  // namespace

std::string request_body(const Submission& submission) {
  json body = json::object();
  put_request(body, submission);
  return body.dump();
}

Result<std::string> submission_body(const Submission& submission) {
  json body{{"arguments", bytes_json(submission.arguments)},
            {"directory", bytes_json(submission.directory)},
            {"environment", bytes_json(submission.environment)},
            {"umask", submission.umask},
            {"nice", submission.nice}};
  put_request(body, submission);
  if (!submission.on_time_limit.empty()) body["on_time_limit"] = submission.on_time_limit;
  if (!submission.name.empty()) body["name"] = bytes_json(submission.name);
  if (!submission.setup_command.empty()) body["setup_command"] = bytes_json(submission.setup_command);
  if (!submission.output.empty()) body["output"] = bytes_json(submission.output);
  if (!submission.error_output.empty()) body["error_output"] = bytes_json(submission.error_output);
  if (submission.begin_unix_ns != 0) body["begin_unix_ns"] = submission.begin_unix_ns;
  if (submission.append) body["append"] = true;
  if (submission.exclusive) body["exclusive"] = true;
  for (const JobDependency& dependency : submission.after)
    body["after"].push_back({{"job", dependency.job}, {"need", dependency.need}});
  if (!submission.array.empty()) body["array"] = submission.array;
  if (submission.interactive) body["interactive"] = true;
  if (submission.window) body["window"] = {{"rows", submission.window->rows}, {"columns", submission.window->columns}};
  if (submission.requeue) body["requeue"] = true;
  if (submission.held) body["held"] = true;
  if (!submission.token.empty()) body["token"] = submission.token;
  std::string text = body.dump();
  if (text.size() <= kMaxSubmissionBytes) return text;
  std::size_t arguments = 0;
  std::size_t environment = 0;
  for (const std::string& argument : submission.arguments) arguments += argument.size() + 1;
  for (const std::string& variable : submission.environment) environment += variable.size() + 1;
  return base::fail(Code::kInvalid, "the job is too long to submit: " + base::format_bytes(arguments) +
                                        " of arguments and " + base::format_bytes(environment) +
                                        " of environment; at most " + base::format_bytes(kMaxSubmissionBytes) +
                                        " in all. Put what is long into a file");
}

Result<Submitted> parse_submitted(std::string_view text) {
  const auto object = parse_json(text);
  if (!object) return tl::unexpected(object.error());
  Submitted submitted;
  submitted.text = text;
  Reader reader(*object, "the daemon's answer");
  reader.read("id", submitted.id);
  reader.read("count", submitted.count);
  reader.read("priority_capped", submitted.priority_capped);
  if (submitted.id == 0) reader.wrong("id", "a job's id");
  return reader.finish(std::move(submitted));
}

Result<Job> parse_job(std::string_view text) {
  return parse_json(text).and_then([](const json& object) { return read_job(object); });
}

Result<JobPage> parse_job_page(std::string_view text) {
  const auto object = parse_json(text);
  if (!object) return tl::unexpected(object.error());
  JobPage page;
  Reader reader(*object, "the daemon's answer");
  reader.read_array("jobs", page.jobs, read_job);
  reader.read("more", page.more);
  return reader.finish(std::move(page));
}

Result<std::vector<JobChange>> parse_job_changes(std::string_view text) {
  const auto object = parse_json(text);
  if (!object) return tl::unexpected(object.error());
  std::vector<JobChange> changes;
  Reader reader(*object, "the daemon's answer");
  reader.read_array("jobs", changes, read_change);
  return reader.finish(std::move(changes));
}

Result<QueueState> parse_queue(std::string_view text) {
  const auto object = parse_json(text);
  if (!object) return tl::unexpected(object.error());
  QueueState queue;
  Reader reader(*object, "the daemon's answer");
  reader.read_object("settings", queue.settings, read_settings);
  reader.read("paused", queue.paused);
  reader.read("unavailable", queue.unavailable);
  if (const json* counts = reader.find("jobs"); counts != nullptr) {
    if (!counts->is_object()) {
      reader.wrong("jobs", "an object");
    } else {
      for (const auto& [state, count] : counts->items()) {
        if (!count.is_number_unsigned()) {
          reader.wrong("jobs", "numbers of jobs");
          break;
        }
        queue.jobs[state] = count.get<std::uint64_t>();
      }
    }
  }
  reader.read_array("gpus", queue.gpus, read_queue_gpu);
  if (Reservation reserved; reader.read_object("reserved", reserved, read_reservation))
    queue.reserved = std::move(reserved);
  reader.read_array("users", queue.users, read_queue_user);
  return reader.finish(std::move(queue));
}

Result<Submitted> Client::submit(const Submission& submission) const {
  auto body = submission_body(submission);
  if (!body) return tl::unexpected(std::move(body).error());
  auto answer = exchange("POST", "/v1/jobs", *body, kDurablePatience);
  if (!answer) return tl::unexpected(std::move(answer).error());
  if (answer->http_status < 300) return parse_submitted(answer->body);
  base::Error error = error_of(*answer);
  // It has answered: there is nothing to be sent again.
  if (error.code == Code::kUnavailable || error.code == Code::kTimeout) error.code = Code::kExhausted;
  return tl::unexpected(std::move(error));
}

Result<std::string> Client::jobs_text(const JobQuery& query) const {
  return call("GET", "/v1/jobs" + query_string(query), "");
}

Result<JobPage> Client::jobs(const JobQuery& query) const {
  return jobs_text(query).and_then([](const std::string& text) { return parse_job_page(text); });
}

Result<std::string> Client::job_text(std::string_view id, bool with_environment) const {
  GPUMUX_TRY(check_job_id(id));
  return call("GET", "/v1/jobs/" + std::string(id) + (with_environment ? "?environment=1" : ""), "");
}

Result<Job> Client::job(std::string_view id, bool with_environment) const {
  return job_text(id, with_environment).and_then([](const std::string& text) { return parse_job(text); });
}

Result<Job> Client::wait_for_job(std::string_view id, JobMoment moment, base::Duration timeout) const {
  GPUMUX_TRY(check_job_id(id));
  const base::Duration limit = std::clamp(timeout, base::Duration::zero(), kLongestJobWait);
  const std::string target = "/v1/jobs/" + std::string(id) +
                             "/wait?until=" + (moment == JobMoment::kDone ? "done" : "started") +
                             "&timeout_ns=" + std::to_string(limit.count());
  return call("GET", target, "", limit).and_then([](const std::string& text) { return parse_job(text); });
}

Result<std::vector<JobChange>> Client::change_jobs(const std::string& which, const std::string& change) const {
  return call("PATCH", "/v1/jobs/" + which, change, kDurablePatience).and_then([](const std::string& text) {
    return parse_job_changes(text);
  });
}

Result<std::string> Client::queue_text() const { return call("GET", "/v1/queue", ""); }

Result<QueueState> Client::queue() const {
  return queue_text().and_then([](const std::string& text) { return parse_queue(text); });
}

Result<QueueState> Client::change_queue(const std::string& what, const std::string& change) const {
  return call("PATCH", "/v1/queue" + (what.empty() ? "" : "/" + what), change, kDurablePatience)
      .and_then([](const std::string& text) { return parse_queue(text); });
}

}  // namespace gpumux::api_client
