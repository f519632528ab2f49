// SPDX-License-Identifier: Apache-2.0
// Requests about jobs and their queue, read and checked, and the errors that answer them.
//
// No state: for any thread. find_uid reads the system's list of users, which can take a while: not for the loop.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "jobs/core/events.h"
#include "jobs/service/job_queue.h"
#include "jobs/store/job_store.h"
#include "server/api/api_types.h"

namespace gpumux::jobs {

using RequestJson = nlohmann::ordered_json;

// Objects within objects, in a body.
inline constexpr int kMaxRequestDepth = 4;

base::Error invalid(std::string what);
base::Error no_job(std::string_view which);
base::Error denied(const server::Peer& peer, const std::string& what);
base::Error not_admin(const server::Peer& peer, const std::string& what = "the queue");

// A job as an address has it: "17", "17_3".
struct JobName {
  JobId job;
  std::optional<std::uint32_t> element;

  static base::Result<JobName> parse(std::string_view text);
  std::string text() const {
    return std::to_string(job.value) + (element ? "_" + std::to_string(*element) : std::string());
  }
};

// kNotFound: it is not there. Reads the store: not for the loop.
base::Result<store::StoredJob> find_job(const store::JobStore& store, const JobName& name);

// A user's number, given that or the name.
base::Result<std::uint32_t> find_uid(const std::string& name);

// {"NAME": true}. `hint`: a further word about its form.
base::Result<bool> parse_flag(const std::string& body, const std::string& name, const std::string& hint = "");
base::Result<JobQueue::Change> parse_change(const std::string& body);
// Changes the limits that the body names: {"running": 2, "queued": null}.
base::Status read_limits(const RequestJson& json, UserLimits& limits);
// The parameters of GET /v1/jobs, except for `user`.
base::Result<store::Query> parse_list(std::string_view query);

}  // namespace gpumux::jobs
