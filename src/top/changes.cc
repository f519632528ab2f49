// SPDX-License-Identifier: Apache-2.0
#include "top/changes.h"

#include "base/standing.h"
#include "cli/jobs/job_groups.h"
#include "cli/views/seat_texts.h"

namespace gpumux::top {
namespace {

constexpr std::string_view kJobs = "/v1/jobs/";
constexpr std::string_view kTenants = "/v1/tenants/";

std::string short_name(const api_client::Job& job) {
  return "job " + cli::job_label(job) + (job.name.empty() ? "" : " (" + job.name + ")");
}

api_client::Request patch(std::string address, std::string body) {
  return {.method = "PATCH", .target = std::move(address), .body = std::move(body)};
}

std::string address_of(std::uint64_t job) { return std::string(kJobs) + std::to_string(job); }

}  // namespace

std::string name_of(const api_client::Job& job) {
  return short_name(job) + (job.user.empty() ? "" : " of " + job.user);
}

Change cancel(const api_client::Job& job) {
  return {patch(address_of(job.id), R"({"cancel":true})"), "Cancel " + name_of(job) + "?",
          short_name(job) + " is told to end"};
}

Change cancel(std::uint64_t job) {
  api_client::Job known;
  known.id = job;
  return cancel(known);
}

std::optional<Change> hold_or_release(const api_client::Job& job) {
  if (job.state == "held") {
    return Change{patch(address_of(job.id), R"({"held":false})"), "Release " + name_of(job) + "?",
                  short_name(job) + " is released"};
  }
  if (job.state != "queued") return std::nullopt;
  return Change{patch(address_of(job.id), R"({"held":true})"), "Hold " + name_of(job) + "?",
                short_name(job) + " is held"};
}

PriorityOf priority_of(const api_client::Job& job) { return {address_of(job.id), name_of(job), job.priority}; }

PriorityOf priority_of(const api_client::Seat& seat) {
  return {std::string(kTenants) + std::to_string(seat.tenant),
          cli::program_text(seat) + " (" + std::to_string(seat.pid) + ") of " + cli::user_text(seat), seat.priority};
}

base::Result<Change> change_priority(const PriorityOf& target, std::string_view text) {
  const auto priority = base::parse_priority(text);
  if (!priority) return tl::unexpected(priority.error());
  const std::string number = std::to_string(*priority);
  return Change{patch(target.address, "{\"priority\":" + number + "}"),
                "Change the priority of " + target.name + " from " + std::to_string(target.now) + " to " + number + "?",
                "the priority of " + target.name + " is " + number};
}

Message outcome_of(const Change& change, const base::Result<std::string>& answer) {
  if (!answer) {
    // The request may have arrived.
    const base::Code code = answer.error().code;
    const bool is_known = code != base::Code::kUnavailable && code != base::Code::kTimeout;
    return {(is_known ? "Not done: " : "Done or not, there was no answer: ") + answer.error().message(), true};
  }
  if (!change.request.target.starts_with(kJobs)) return {change.done, false};
  const auto jobs = api_client::parse_job_changes(*answer);
  if (!jobs) return {"Not done: " + jobs.error().message(), true};
  for (const api_client::JobChange& job : *jobs) {
    if (job.error) return {"Not done: " + job.error->message(), true};
    if (!job.changed) return {"Nothing to do: " + change.done + " already", false};
  }
  return {change.done, false};
}

}  // namespace gpumux::top
