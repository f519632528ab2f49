// SPDX-License-Identifier: Apache-2.0
#include "cli/jobs/job_calls.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "cli/frame/command.h"
#include "cli/jobs/job_view.h"
#include "cli/jobs/waiting_line.h"
#include "os/system_clock.h"

namespace gpumux::cli {
namespace {

using api_client::Client;
using api_client::Job;
using api_client::JobChange;
using api_client::JobPage;
using api_client::JobQuery;
using base::Code;
using base::Result;

// A request's header has at most 8 KiB; half of that leaves room for everything else.
constexpr std::size_t kMaxTargetBytes = 4096;

// Between two looks for a daemon that is away.
constexpr base::Duration kSeekAgain = std::chrono::milliseconds(200);

// How often a person who looks on is told anew.
constexpr base::Duration kLookForPeople = std::chrono::seconds(1);

// Written by the handler of a signal, and so prepared before.
std::string& last_words() {
  static std::string words;
  return words;
}

// From now on Ctrl+C writes `words` over the waiting line before it ends this process.
void leave_with(const std::string& words) {
  last_words() = "\r\x1b[K" + words + "\n";
  struct sigaction action {};
  action.sa_handler = [](int number) {
    const std::string& text = last_words();
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    static_cast<void>(written);
    ::raise(number);
  };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
  ::sigaction(SIGINT, &action, nullptr);
}

std::string parting_words(const std::vector<Job>& jobs) {
  const Job& first = jobs.front();
  const bool is_array = jobs.size() > 1 && first.array;
  const std::string id = is_array ? std::to_string(*first.array) : std::to_string(first.id);
  if (jobs.size() > 1 && !is_array) return "The jobs go on.";
  return (is_array ? "Array " : "Job ") + id + " goes on. `gpumux cancel " + id + "` ends it.";
}

}  // namespace

namespace {

void go_beyond(JobQuery& query, const Job& last) {
  query.beyond = last.id;
  if (query.latest_end_first) query.beyond_ended = last.ended_unix_ns;
}

}  // namespace

Result<JobPage> all_jobs(const Client& client, JobQuery query, std::uint64_t most) {
  JobPage all;
  while (all.jobs.size() < most) {
    query.limit = std::min(api_client::kMaxPageJobs, most - all.jobs.size());
    auto page = client.jobs(query);
    if (!page) return page;
    all.more = page->more;
    if (page->jobs.empty()) return all;
    go_beyond(query, page->jobs.back());
    std::move(page->jobs.begin(), page->jobs.end(), std::back_inserter(all.jobs));
    if (!all.more) return all;
  }
  return all;
}

Result<std::string> all_jobs_text(const Client& client, JobQuery query, std::uint64_t most) {
  nlohmann::json all = nlohmann::json::array();
  bool more = true;
  while (all.size() < most && more) {
    query.limit = std::min<std::uint64_t>(api_client::kMaxPageJobs, most - all.size());
    const auto text = client.jobs_text(query);
    if (!text) return tl::unexpected(text.error());
    const auto page = api_client::parse_job_page(*text);
    if (!page) return tl::unexpected(page.error());
    if (!page->more && all.empty()) return *text;
    const auto parsed = nlohmann::json::parse(*text, nullptr, false);
    for (const auto& job : parsed["jobs"]) all.push_back(job);
    more = page->more && !page->jobs.empty();
    if (!page->jobs.empty()) go_beyond(query, page->jobs.back());
  }
  return nlohmann::json{{"jobs", std::move(all)}, {"more", more}}.dump();
}

Result<std::vector<Job>> named_jobs(const Client& client, std::string_view id) {
  auto job = client.job(id);
  if (!job) return tl::unexpected(std::move(job).error());
  const bool whole_array = job->array && *job->array == job->id && id.find('_') == std::string_view::npos;
  if (!whole_array) return std::vector<Job>{std::move(*job)};
  auto page = all_jobs(client, {.state = api_client::JobsState::kAll, .array = job->array},
                       std::numeric_limits<std::uint64_t>::max());
  if (!page) return tl::unexpected(std::move(page).error());
  // An element that has been forgotten is no reason to forget the one that was asked for; of one alone all is known.
  if (page->jobs.size() <= 1) return std::vector<Job>{std::move(*job)};
  return std::move(page->jobs);
}

Result<std::vector<JobChange>> change_named_jobs(const Client& client, const std::vector<std::string>& ids,
                                                 const std::string& change) {
  GPUMUX_TRY(api_client::check_job_ids(ids));
  std::vector<JobChange> all;
  for (std::size_t begin = 0; begin < ids.size();) {
    std::string which;
    std::size_t end = begin;
    for (; end < ids.size() && which.size() + ids[end].size() < kMaxTargetBytes; ++end)
      which += (which.empty() ? "" : ",") + ids[end];
    auto changes = client.change_jobs(which, change);
    if (changes) {
      std::move(changes->begin(), changes->end(), std::back_inserter(all));
    } else if (ids.size() > 1 && (changes.error().code == Code::kNotFound || changes.error().code == Code::kDenied)) {
      all.push_back(JobChange{0, false, changes.error()});
    } else {
      return changes;
    }
    begin = end;
  }
  return all;
}

int tell_end(const char* command, const Job& job) {
  if (const std::string text = end_text(job); !text.empty()) say_error(command, text);
  if (job.outcome.empty()) return kExitDenied;
  const int status = job.exit_status.value_or(0);
  if (status > 0 && status <= 255) return status;
  return status == 0 && job.outcome == "ok" ? kExitOk : kExitFailed;
}

std::string own_user_name() {
  const passwd* entry = ::getpwuid(::geteuid());
  return entry != nullptr ? entry->pw_name : std::to_string(::geteuid());
}

Result<std::optional<Job>> PatientClient::wait(std::string_view id, api_client::JobMoment moment,
                                               base::Duration timeout) {
  const auto client = connect_();
  base::Error error;
  if (client) {
    auto job = client->wait_for_job(id, moment, timeout);
    if (job) {
      away_since_.reset();
      return std::optional<Job>(std::move(*job));
    }
    error = std::move(job).error();
  } else {
    error = client.error();
  }
  if (error.code != Code::kUnavailable && error.code != Code::kTimeout) return tl::unexpected(std::move(error));
  if (!away_since_) away_since_ = os::now();
  if (os::now() - *away_since_ >= patience_) {
    return base::fail(Code::kUnavailable, error.message() +
                                              ". The job goes on without the daemon; how it ends will be "
                                              "known when that is back");
  }
  std::this_thread::sleep_for(std::min(kSeekAgain, timeout));
  return std::optional<Job>();
}

Result<Job> PatientClient::wait_until_done(Job job, Progress progress) {
  WaitingLine line;
  const bool shown = progress == Progress::kShown && line.moves();
  const std::string id = std::to_string(job.id);
  const base::Duration timeout = shown ? kLookForPeople : api_client::kLongestJobWait;
  bool told = false;
  while (!job.is_done()) {
    if (away() && !std::exchange(told, true)) {
      line.clear();
      say_error("", "the daemon is away; waiting for it to come back");
    }
    if (!away()) told = false;
    if (!away() && shown) line.show(waiting_text(job));
    auto now = wait(id, api_client::JobMoment::kDone, timeout);
    if (!now) return tl::unexpected(std::move(now).error());
    if (*now) job = std::move(**now);
  }
  return job;
}

int wait_for_jobs(const char* command, PatientClient patient, const std::vector<Job>& jobs, Progress progress) {
  const bool shown = progress == Progress::kShown && WaitingLine().moves();
  if (shown && !jobs.empty()) leave_with(parting_words(jobs));
  int status = kExitOk;
  std::size_t well = 0;
  for (const Job& named : jobs) {
    const auto job = patient.wait_until_done(named, progress);
    if (!job) return report_error(command, job.error());
    const int ended = tell_end(command, *job);
    if (ended == kExitOk) ++well;
    const bool is_told = !end_text(*job).empty() || (ended == kExitOk && jobs.size() > 1);
    if (shown && !is_told) say_error("", "job " + job_label(*job) + " has ended" + outcome_text(*job));
    if (status == kExitOk) status = ended;
  }
  if (shown && jobs.size() > 1) {
    say_error("", std::to_string(well) + " of " + std::to_string(jobs.size()) + " jobs have ended well");
  }
  return status;
}

}  // namespace gpumux::cli
