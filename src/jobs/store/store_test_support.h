// SPDX-License-Identifier: Apache-2.0
// For the store's tests: jobs to store.
#pragma once

#include <string>

#include "jobs/store/job_store.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::jobs::store {

inline Insert insert(std::uint64_t id, std::uint32_t uid = 1000, const std::string& token = "") {
  Insert change;
  change.job.spec.id = JobId{id};
  change.job.spec.uid = uid;
  change.job.core.job = JobId{id};
  change.job.core.order = change.job.spec.order = id;
  change.job.token = token;
  change.job.name = "job " + std::to_string(id);
  change.job.submitted_at = static_cast<WallTime>(id) * 1000;
  change.document = std::make_shared<const std::string>("{\"argv\":[\"train\",\"" + std::to_string(id) + "\"]}");
  return change;
}

inline Update done(std::uint64_t id, WallTime at, jobs::Outcome outcome = jobs::Outcome::kOk) {
  Update change;
  change.core.job = JobId{id};
  change.core.state = jobs::JobState::kDone;
  change.core.outcome = outcome;
  change.core.order = id;
  change.ended_at = at;
  change.exit_status = 0;
  return change;
}

}  // namespace gpumux::jobs::store
