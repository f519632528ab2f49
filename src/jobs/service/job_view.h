// SPDX-License-Identifier: Apache-2.0
// Jobs as the API shows them: docs/api.md is the contract. Looks up users' names, so it is not for the loop's thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "jobs/core/job_core.h"
#include "jobs/service/job_document.h"
#include "jobs/service/job_runs.h"
#include "jobs/service/job_why.h"
#include "jobs/service/queue_config.h"
#include "jobs/store/job_store.h"

namespace gpumux::jobs {

// The facts of a job that only the loop knows, besides those in the store.
struct JobNow {
  std::optional<JobStanding> standing;  // none: it is done
  std::string note;
  std::optional<std::chrono::nanoseconds> limit_in;
  std::uint64_t default_memory = 0;
  std::optional<store::WallTime> state_since;
  WhyFacts why;                                       // of one that waits
  std::optional<std::chrono::nanoseconds> starts_in;  // as far as time limits tell
};

// For any thread. A name is remembered for a minute: directory services are slow, and lists long.
class UserNames {
 public:
  std::string name(uid_t uid);

 private:
  std::mutex mutex_;
  std::map<uid_t, std::pair<std::string, std::chrono::steady_clock::time_point>> names_;
};

// Further facts, for Sight::kOwn.
struct JobDetails {
  const JobDocument* document = nullptr;  // null: it is done, and its document is gone
  std::optional<JobRuns::View> view;
  bool with_environment = false;
};

// Appends it as JSON. Not for kNothing.
void append_job(std::string& text, const store::StoredJob& job, const JobNow& now, Sight sight, UserNames& names,
                const JobDetails* details = nullptr);

}  // namespace gpumux::jobs
