// SPDX-License-Identifier: Apache-2.0
// gpumux __complete KIND: the words of that kind that a shell offers, one a line. The completions of shells ask for it
// (tools/make_completions.py). It says nothing of errors: a shell can show none while a user types.
#include <algorithm>
#include <array>
#include <iostream>
#include <string>
#include <string_view>

#include "api_client/client.h"
#include "cli/frame/command.h"
#include "cli/frame/terminal.h"
#include "cli/jobs/find_client.h"
#include "cli/jobs/job_calls.h"
#include "cli/jobs/job_view.h"

namespace gpumux::cli {
namespace {

using Words = std::vector<std::string>;

// A user does not read a longer list of what a word may be.
constexpr std::uint64_t kMostJobs = 200;
constexpr std::uint64_t kMostEndedJobs = 30;

void add(Words& words, const std::string& word) {
  if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
}

Words gpus() {
  Words words;
  const auto snapshot = api_client::Client::connect({}).and_then(&api_client::Client::snapshot);
  if (!snapshot) return words;
  for (const api_client::Gpu& gpu : snapshot->gpus) words.push_back(std::to_string(gpu.index));
  return words;
}

// Process ids.
Words tenants() {
  Words words;
  const auto snapshot = api_client::Client::connect({}).and_then(&api_client::Client::snapshot);
  if (!snapshot) return words;
  for (const api_client::Gpu& gpu : snapshot->gpus) {
    for (const api_client::Seat& seat : gpu.seats) add(words, std::to_string(seat.pid));
  }
  return words;
}

// Users whose jobs or programs the daemon shows.
Words users() {
  Words words{own_user_name()};
  const auto client = api_client::Client::connect({});
  if (!client) return words;
  if (const auto queue = client->queue()) {
    for (const api_client::QueueUser& user : queue->users) add(words, user.user);
  }
  if (const auto snapshot = client->snapshot()) {
    for (const api_client::Gpu& gpu : snapshot->gpus) {
      for (const api_client::Seat& seat : gpu.seats) add(words, seat.user);
    }
  }
  return words;
}

void add_jobs(Words& words, const api_client::Client& client, api_client::JobsState state, std::uint64_t most) {
  api_client::JobQuery query;
  query.state = state;
  query.latest_end_first = state == api_client::JobsState::kDone;
  query.user = own_user_name();
  const auto page = all_jobs(client, query, most);
  if (!page) return;
  for (const api_client::Job& job : page->jobs) words.push_back(job_label(job));
}

// The user's own.
Words jobs() {
  Words words;
  if (const auto client = find_jobs({})) add_jobs(words, *client, api_client::JobsState::kUnfinished, kMostJobs);
  return words;
}

Words all_jobs_of_user() {
  Words words;
  if (const auto client = find_jobs({})) {
    add_jobs(words, *client, api_client::JobsState::kUnfinished, kMostJobs);
    add_jobs(words, *client, api_client::JobsState::kDone, kMostEndedJobs);
  }
  return words;
}

// Of --after.
Words conditions() {
  Words words;
  for (const std::string& job : all_jobs_of_user()) {
    words.push_back("ok:" + job);
    words.push_back("any:" + job);
  }
  return words;
}

struct Kind {
  std::string_view name;
  Words (*words)();
};
constexpr std::array kKinds{Kind{"gpus", gpus}, Kind{"tenants", tenants},           Kind{"users", users},
                            Kind{"jobs", jobs}, Kind{"all-jobs", all_jobs_of_user}, Kind{"conditions", conditions}};

}  // namespace

int complete_command(const std::vector<char*>& arguments) {
  const std::string_view name = arguments.empty() || arguments[0] == nullptr ? "" : arguments[0];
  for (const Kind& kind : kKinds) {
    if (kind.name != name) continue;
    for (const std::string& word : kind.words()) std::cout << printable(word) << "\n";
    std::cout << std::flush;
    return kExitOk;
  }
  return kExitUsage;
}

}  // namespace gpumux::cli
