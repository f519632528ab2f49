// SPDX-License-Identifier: Apache-2.0
// Calls about jobs that several commands make.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api_client/client.h"
#include "base/clock.h"
#include "base/result.h"
#include "cli/jobs/find_client.h"

namespace gpumux::cli {

// All jobs that `query` asks for, at most `most` of them, page by page. `more`: there are others.
base::Result<api_client::JobPage> all_jobs(const api_client::Client& client, api_client::JobQuery query,
                                           std::uint64_t most);
// The same as JSON: {"jobs": [...], "more": false}.
base::Result<std::string> all_jobs_text(const api_client::Client& client, api_client::JobQuery query,
                                        std::uint64_t most);

// The jobs that `id` names: one, or all elements of an array where it is an array's.
base::Result<std::vector<api_client::Job>> named_jobs(const api_client::Client& client, std::string_view id);

// PATCH of the named jobs, as many at a time as fit into a request. kNotFound and kDenied of one part are reported for
// each of its jobs.
base::Result<std::vector<api_client::JobChange>> change_named_jobs(const api_client::Client& client,
                                                                   const std::vector<std::string>& ids,
                                                                   const std::string& change);

// The exit status that a caller gets for a job's end: the job's own; never 0 unless the job ended well. The rest of the
// outcome goes to stderr.
int tell_end(const char* command, const api_client::Job& job);

// The name of the user that asks, or its number.
std::string own_user_name();

// While a job is not done, a command says nothing, or on a terminal one line with place, reason and expected start.
enum class Progress { kSilent, kShown };

// Asks one daemon that may restart between the requests.
class PatientClient {
 public:
  // How long a daemon may be away before waiting is given up: an update of the system, or a person who repairs
  // something.
  static constexpr base::Duration kPatience = std::chrono::minutes(10);

  explicit PatientClient(FindClient connect, base::Duration patience = kPatience)
      : connect_(std::move(connect)), patience_(patience) {}

  // As Client::wait_for_job. A daemon that is not there counts as one without news: nothing comes, after a pause of at
  // most `timeout`. kUnavailable: it has been away for too long.
  base::Result<std::optional<api_client::Job>> wait(std::string_view id, api_client::JobMoment moment,
                                                    base::Duration timeout);
  // Until `job` is done.
  base::Result<api_client::Job> wait_until_done(api_client::Job job, Progress progress);

  bool away() const { return away_since_.has_value(); }

 private:
  FindClient connect_;
  base::Duration patience_;
  std::optional<base::TimePoint> away_since_;
};

// Waits until all `jobs` are done. The exit status is the first that is not 0; `command` is the name in messages.
int wait_for_jobs(const char* command, PatientClient patient, const std::vector<api_client::Job>& jobs,
                  Progress progress);

}  // namespace gpumux::cli
