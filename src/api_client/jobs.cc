// SPDX-License-Identifier: Apache-2.0
#include "api_client/jobs.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api_client/client.h"
#include "api_client/http.h"
#include "api_client/json_reader.h"
#include "base/base64.h"
#include "base/units.h"
#include "base/utf8.h"

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

void dependency_fields(Reader& reader, JobDependency& dependency) {
  reader.read("job", dependency.job);
  reader.read("need", dependency.need);
}

void job_fields(Reader& reader, Job& job) {
  reader.read("id", job.id);
  reader.read("array", job.array);
  reader.read("array_index", job.array_index);
  reader.read("array_limit", job.array_limit);
  reader.read("name", job.name);
  reader.read("uid", job.uid);
  reader.read("user", job.user);
  reader.read("state", job.state);
  reader.read("outcome", job.outcome);
  reader.read("exit_status", job.exit_status);
  reader.read("reason", job.reason);
  reader.read("why", job.why);
  reader.read("place", job.place);
  reader.read("starts_in_ns", job.starts_in);
  reader.read("priority", job.priority);
  reader.read("priority_capped", job.priority_capped);
  reader.read("gpus", job.gpus);
  reader.read("gpus_wanted", job.gpus_wanted);
  reader.read("gpu_ids", job.gpu_ids);
  reader.read("memory_bytes", job.memory_bytes);
  reader.read("exclusive", job.exclusive);
  reader.read("time_limit_ns", job.time_limit);
  reader.read("on_time_limit", job.on_time_limit);
  reader.read("limit_in_ns", job.limit_in);
  reader.read("requeue", job.requeue);
  reader.read("attempt", job.attempt);
  reader.read("interactive", job.interactive);
  reader.read("state_since_unix_ns", job.state_since_unix_ns);
  reader.read("submitted_unix_ns", job.submitted_unix_ns);
  reader.read("begin_unix_ns", job.begin_unix_ns);
  reader.read("started_unix_ns", job.started_unix_ns);
  reader.read("ended_unix_ns", job.ended_unix_ns);
  reader.read("note", job.note);
  reader.read("command", job.command);
  reader.read("gpu_seconds", job.gpu_seconds);
  reader.read("peak_memory_bytes", job.peak_memory_bytes);
  reader.read("arguments", job.arguments);
  reader.read("directory", job.directory);
  reader.read("setup_command", job.setup_command);
  reader.read("error_output", job.error_output);
  reader.read("log", job.log);
  reader.read("attach", job.attach);
  reader.read("pid", job.pid);
  reader.read("after", job.after, "a dependency", dependency_fields);
  reader.read("environment", job.environment);
  // A limit of 0, or for ever, is none.
  if (job.time_limit && (*job.time_limit <= base::Duration::zero() || *job.time_limit == base::Duration::max()))
    job.time_limit.reset();
}

void submitted_fields(Reader& reader, Submitted& submitted) {
  reader.read("id", submitted.id);
  reader.read("count", submitted.count);
  reader.read("priority_capped", submitted.priority_capped);
  if (submitted.id == 0) reader.wrong("id", "a job's id");
}

void error_fields(Reader& reader, base::Error& error) {
  std::string code;
  reader.read("code", code);
  reader.read("message", error.what);
  error.code = code_named(code).value_or(Code::kInternal);
}

void change_fields(Reader& reader, JobChange& change) {
  reader.read("id", change.id);
  reader.read("changed", change.changed);
  reader.read("error", change.error, "an error", error_fields);
}

void limits_fields(Reader& reader, UserLimits& limits) {
  reader.read("running", limits.running);
  reader.read("queued", limits.queued);
  reader.read("gpus", limits.gpus);
  reader.read("priority_cap", limits.priority_cap);
}

void settings_fields(Reader& reader, QueueSettings& settings) {
  reader.read("order", settings.order);
  reader.read("half_life_ns", settings.half_life);
  reader.read("oversubscribe", settings.oversubscribe);
  reader.read("default_memory_bytes", settings.default_memory_bytes);
  reader.read("max_job_time_ns", settings.max_job_time);
  reader.read("preempt", settings.preempt);
  reader.read("privacy", settings.privacy);
  reader.read("limits", settings.limits, "limits", limits_fields);
}

void queue_gpu_job_fields(Reader& reader, QueueGpuJob& job) {
  reader.read("id", job.id);
  reader.read("user", job.user);
  reader.read("name", job.name);
}

void queue_gpu_fields(Reader& reader, QueueGpu& gpu) {
  reader.read("index", gpu.index);
  reader.read("capacity_bytes", gpu.capacity_bytes);
  reader.read("promised_bytes", gpu.promised_bytes);
  reader.read("outside_jobs_bytes", gpu.outside_jobs_bytes);
  reader.read("drained", gpu.drained);
  reader.read("sick", gpu.sick);
  reader.read("present", gpu.present);
  reader.read("jobs", gpu.jobs, "a job on a GPU", queue_gpu_job_fields);
}

void reservation_fields(Reader& reader, Reservation& reservation) {
  reader.read("job", reservation.job);
  reader.read("gpus", reservation.gpus);
  reader.read("starts_in_ns", reservation.starts_in);
}

void queue_user_fields(Reader& reader, QueueUser& user) {
  reader.read("uid", user.uid);
  reader.read("user", user.user);
  reader.read("running", user.running);
  reader.read("queued", user.queued);
  reader.read("gpus", user.gpus);
  reader.read("used_gpu_ns", user.used_gpu);
  reader.read("limits", user.limits, "limits", limits_fields);
}

// Fields that a submission and a change have in common.
void put_request(json& body, const Submission& submission) {
  if (submission.gpus) body["gpus"] = *submission.gpus;
  if (!submission.gpu_ids.empty()) body["gpu_ids"] = submission.gpu_ids;
  if (submission.memory_bytes) body["memory_bytes"] = *submission.memory_bytes;
  if (submission.time_limit) body["time_limit_ns"] = submission.time_limit->count();
  if (submission.priority) body["priority"] = *submission.priority;
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

Status check_job_ids(const std::vector<std::string>& ids) {
  for (const std::string& id : ids) GPUMUX_TRY(check_job_id(id));
  return {};
}

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
  auto submitted = parse(text, submitted_fields);
  if (submitted) submitted->text = text;
  return submitted;
}

Result<Job> parse_job(std::string_view text) { return parse(text, job_fields, "a job"); }

Result<JobPage> parse_job_page(std::string_view text) {
  return parse<JobPage>(text, [](Reader& reader, JobPage& page) {
    reader.read("jobs", page.jobs, "a job", job_fields);
    reader.read("more", page.more);
  });
}

Result<std::vector<JobChange>> parse_job_changes(std::string_view text) {
  return parse<std::vector<JobChange>>(text, [](Reader& reader, std::vector<JobChange>& changes) {
    reader.read("jobs", changes, "a changed job", change_fields);
  });
}

Result<QueueState> parse_queue(std::string_view text) {
  return parse<QueueState>(text, [](Reader& reader, QueueState& queue) {
    reader.read("settings", queue.settings, "the queue's settings", settings_fields);
    reader.read("paused", queue.paused);
    reader.read("state", queue.state);
    reader.read("unavailable", queue.unavailable);
    reader.read("jobs", queue.jobs);
    reader.read("gpus", queue.gpus, "a GPU of the queue", queue_gpu_fields);
    reader.read("reserved", queue.reserved, "a reservation", reservation_fields);
    reader.read("users", queue.users, "a user of the queue", queue_user_fields);
  });
}

Result<Submitted> Client::submit(const Submission& submission) const {
  auto body = submission_body(submission);
  if (!body) return tl::unexpected(std::move(body).error());
  auto answer = exchange({"POST", "/v1/jobs", *body}, kDurablePatience);
  if (!answer) return tl::unexpected(std::move(answer).error());
  if (answer->http_status < 300) return parse_submitted(answer->body);
  base::Error error = read_error(answer->http_status, answer->body);
  // It has answered: there is nothing to be sent again.
  if (error.code == Code::kUnavailable || error.code == Code::kTimeout) error.code = Code::kExhausted;
  return tl::unexpected(std::move(error));
}

Result<std::string> Client::jobs_text(const JobQuery& query) const {
  return call({"GET", "/v1/jobs" + query_string(query)});
}

Result<JobPage> Client::jobs(const JobQuery& query) const { return jobs_text(query).and_then(parse_job_page); }

Result<std::string> Client::job_text(std::string_view id, bool with_environment) const {
  GPUMUX_TRY(check_job_id(id));
  return call({"GET", "/v1/jobs/" + std::string(id) + (with_environment ? "?environment=1" : "")});
}

Result<Job> Client::job(std::string_view id) const { return job_text(id).and_then(parse_job); }

Result<Job> Client::wait_for_job(std::string_view id, JobMoment moment, base::Duration timeout) const {
  GPUMUX_TRY(check_job_id(id));
  const base::Duration limit = std::clamp(timeout, base::Duration::zero(), kLongestJobWait);
  const std::string target = "/v1/jobs/" + std::string(id) +
                             "/wait?until=" + (moment == JobMoment::kDone ? "done" : "started") +
                             "&timeout_ns=" + std::to_string(limit.count());
  return call({"GET", target}, limit).and_then(parse_job);
}

Result<std::vector<JobChange>> Client::change_jobs(const std::string& which, const std::string& change) const {
  return call({"PATCH", "/v1/jobs/" + which, change}, kDurablePatience).and_then(parse_job_changes);
}

Result<std::string> Client::queue_text() const { return call({"GET", "/v1/queue"}); }

Result<QueueState> Client::queue() const { return queue_text().and_then(parse_queue); }

Result<QueueState> Client::change_queue(const std::string& what, const std::string& change) const {
  return call({"PATCH", "/v1/queue" + (what.empty() ? "" : "/" + what), change}, kDurablePatience)
      .and_then(parse_queue);
}

}  // namespace gpumux::api_client
