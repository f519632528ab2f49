// SPDX-License-Identifier: Apache-2.0
// GET /v1/report: the use of GPUs by users, jobs, pods and programs (docs/accounting.md).
#include <algorithm>
#include <array>
#include <utility>

#include "base/units.h"
#include "jobs/service/job_api.h"
#include "jobs/service/json_object.h"

namespace gpumux::jobs {
namespace {

using Json = RequestJson;
using By = store::LedgerQuery::By;
using base::Code;
using base::Result;

constexpr std::array<std::pair<std::string_view, By>, 4> kBy{
    {{"user", By::kUser}, {"job", By::kJob}, {"pod", By::kPod}, {"program", By::kProgram}}};

std::string_view word_of(By by) {
  for (const auto& [text, value] : kBy) {
    if (value == by) return text;
  }
  return {};
}

void add_sums(Json& json, const store::LedgerSums& sums) {
  json["held_seconds"] = sums.held;
  // A program says late that it was idle: of a short time it may be more than the lease.
  json["gpu_seconds"] = std::max(sums.gpu_time, 0.0);
  json["waited_seconds"] = sums.waited;
  json["resident_byte_seconds"] = sums.resident_byte_seconds;
  json["evicted_byte_seconds"] = sums.evicted_byte_seconds;
  json["switches"] = sums.switches;
}

Json row_json(const store::LedgerTotal& row, const store::LedgerQuery& asked, UserNames& names) {
  Json json = Json::object();
  const bool is_hidden = asked.names_of && row.owner.uid != asked.names_of;
  if (row.owner.uid) {
    json["uid"] = *row.owner.uid;
    json["user"] = names.name(*row.owner.uid);
  }
  if (row.job != kNoJob) {
    json["job"] = row.job.value;
    if (row.array != kNoJob) {
      json["array"] = row.array.value;
      json["array_index"] = row.array_index;
    }
    if (!row.job_name.empty() && !is_hidden) json["name"] = text_json(row.job_name);
  }
  if (!row.owner.pod.empty()) {
    json["namespace"] = text_json(row.owner.pod_namespace);
    json["pod"] = text_json(row.owner.pod);
  }
  if (asked.by == By::kProgram && is_hidden) {
    json["program"] = server::kHiddenName;
  } else if (asked.by == By::kProgram && !row.others) {
    json["program"] = text_json(row.program);
  }
  if (row.others) json["others"] = true;
  if (asked.by == By::kUser || asked.by == By::kJob) json["run_seconds"] = row.run;
  add_sums(json, row.sums);
  return json;
}

std::string render(const store::LedgerReport& report, const store::LedgerQuery& asked, UserNames& names) {
  std::string text = "{\"since_unix_ns\": " + std::to_string(report.since) +
                     ", \"until_unix_ns\": " + std::to_string(report.until) + ", \"by\": \"" +
                     std::string(word_of(asked.by)) + "\", \"rows\": [";
  const char* separator = "";
  for (const store::LedgerTotal& row : report.rows)
    text += std::exchange(separator, ",\n") + row_json(row, asked, names).dump();
  text += "]";
  if (report.rest) {
    Json rest = Json::object();
    add_sums(rest, *report.rest);
    text += ", \"rest\": " + rest.dump();
  }
  return text + "}\n";
}

// Whether the queue remembers the job that is asked for, and the viewer may know of it.
bool has_job(const store::JobStore& store, const store::LedgerQuery& asked, std::optional<std::uint32_t> sees_only) {
  const auto job = find_job(store, {*asked.job, asked.element});
  return job && (!sees_only || job->spec.uid == *sees_only);
}

// Reads the store and looks up `user` (empty: all users): not for the loop.
server::ApiResponse make_report(const store::JobStore& store, store::LedgerQuery asked, const std::string& user,
                                UserNames& names) {
  const std::optional<std::uint32_t> sees_only = asked.uid;
  if (!user.empty()) {
    const auto uid = find_uid(user);
    if (!uid) return server::error_response(uid.error());
    // Another user's is hidden from this peer: as if there were nothing.
    if (asked.uid && *asked.uid != *uid)
      return {200, render({.since = asked.since, .until = asked.until, .rows = {}, .rest = {}}, asked, names)};
    asked.uid = *uid;
  }
  const auto report = store.report(asked);
  if (!report) return server::error_response(report.error());
  // The ledger may know a job for longer than the queue does.
  if (asked.job && report->rows.empty() && !has_job(store, asked, sees_only))
    return server::error_response(no_job(JobName{*asked.job, asked.element}.text()));
  return {200, render(*report, asked, names)};
}

Result<store::LedgerQuery> parse_report(std::string_view query) {
  store::LedgerQuery asked;
  std::uint64_t since = 0, until = INT64_MAX, at_most = asked.at_most;
  GPUMUX_TRY(server::read_number(query, "since_unix_ns", 0, INT64_MAX, since));
  GPUMUX_TRY(server::read_number(query, "until_unix_ns", 0, INT64_MAX, until));
  GPUMUX_TRY(server::read_number(query, "limit", 1, store::kMaxReportRows, at_most));
  asked.since = static_cast<store::WallTime>(since);
  asked.until = static_cast<store::WallTime>(until);
  asked.at_most = static_cast<std::uint32_t>(at_most);
  if (const auto job = server::query_value(query, "job")) {
    const auto name = JobName::parse(server::decode_percent(*job));
    if (!name) return tl::unexpected(name.error());
    asked.job = name->job;
    asked.element = name->element;
  }
  if (asked.until < asked.since) return tl::unexpected(invalid("until_unix_ns is before since_unix_ns"));
  const std::string_view by = server::query_value(query, "by").value_or("user");
  asked.by = std::find_if(kBy.begin(), kBy.end(), [&](const auto& one) { return one.first == by; })->second;
  return asked;
}

}  // namespace

server::ApiAnswer JobApi::report(const server::Peer& peer, std::string_view query) {
  auto asked = parse_report(query);
  if (!asked) return server::error_response(asked.error());
  asked->now = wall_now();
  const settings::Privacy privacy = queue_.config().privacy;
  const bool sees_all = access_.may_change(peer) || privacy == settings::Privacy::kOpen;
  if (!sees_all) asked->names_of = peer.uid;
  if (!sees_all && privacy == settings::Privacy::kOwn) asked->uid = peer.uid;
  return server::ApiLater(
      [this, account = peer.account, asked = *asked,
       user = server::decode_percent(server::query_value(query, "user").value_or(""))](server::ApiReply reply) {
        if (!reporting_.insert(account).second) {
          return reply(
              server::error_response(429, {Code::kExhausted, 0,
                                           account.text() + " asks for a report, and has not had its last one yet: ask "
                                                            "for one after the other"}));
        }
        ledger_.flush([this, account, asked, user, reply = std::move(reply)] {
          server::work_then(
              reports_, io_, [this, asked, user] { return make_report(*queue_.store(), asked, user, *names_); },
              [this, account, reply](server::ApiResponse response) {
                reporting_.erase(account);
                reply(std::move(response));
              });
        });
      });
}

}  // namespace gpumux::jobs
