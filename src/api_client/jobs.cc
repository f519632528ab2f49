// SPDX-License-Identifier: Apache-2.0
#include "api_client/jobs.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api_client/client.h"
#include "api_client/fields.gen.h"
#include "api_client/http.h"
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

void error_fields(Reader& reader, base::Error& error) {
  std::string code;
  reader.read("code", code);
  reader.read("message", error.what);
  error.code = code_named(code).value_or(Code::kInternal);
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

void complete(Reader& reader, Submitted& submitted) {
  if (submitted.id == 0) reader.wrong("id", "a job's id");
}

// A limit of 0, or for ever, is none.
void complete(Reader& /*reader*/, Job& job) {
  if (job.time_limit && (*job.time_limit <= base::Duration::zero() || *job.time_limit == base::Duration::max()))
    job.time_limit.reset();
}

void complete(Reader& reader, JobChange& change) { reader.read("error", change.error, "an error", error_fields); }

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
  put(body, "gpus", submission.gpus);
  put(body, "gpu_ids", submission.gpu_ids);
  put(body, "memory_bytes", submission.memory_bytes);
  put(body, "time_limit_ns", submission.time_limit);
  put(body, "priority", submission.priority);
  return body.dump();
}

Result<std::string> submission_body(const Submission& submission) {
  std::string text = as_json(submission).dump();
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

Result<JobPage> parse_job_page(std::string_view text) { return parse(text, job_page_fields); }

Result<std::vector<JobChange>> parse_job_changes(std::string_view text) {
  return parse<std::vector<JobChange>>(text, [](Reader& reader, std::vector<JobChange>& changes) {
    reader.read("jobs", changes, "a changed job", job_change_fields);
  });
}

Result<QueueState> parse_queue(std::string_view text) { return parse(text, queue_state_fields); }

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
