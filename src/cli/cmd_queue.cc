// SPDX-License-Identifier: Apache-2.0
// gpumux queue, gpumux history, gpumux show: jobs that run and wait, jobs that are done, one job in full.
#include <algorithm>
#include <iostream>
#include <limits>
#include <optional>
#include <utility>

#include "api_client/client.h"
#include "cli/frame/command.h"
#include "cli/frame/terminal.h"
#include "cli/frame/watch.h"
#include "cli/jobs/job_calls.h"
#include "cli/jobs/job_view.h"
#include "cli/views/times.h"

namespace gpumux::cli {
namespace {

// No user reads more lines than this, and a program asks with --json or --format, which have no such limit.
constexpr std::uint64_t kMostShownJobs = 100'000;
constexpr std::uint64_t kDefaultHistory = 30;

struct ListOptions {
  api_client::Options daemon;
  std::string user;
  bool mine = false;
  bool json = false;
  bool elements = false;  // of arrays, each on a line
  std::string fields;
};

// The options of which a command has one at most: tables are not for programs, and programs look by themselves.
struct ForPrograms {
  CLI::Option* json;
  CLI::Option* fields;
};
ForPrograms add_list_options(CLI::App& app, ListOptions& options) {
  auto* user = app.add_option("-u,--user", options.user, "Only this user's jobs")->type_name("USER");
  app.add_flag("--mine", options.mine, "Only your own jobs")->excludes(user);
  app.add_flag("-r,--elements", options.elements, "Show each element of an array on a line of its own");
  auto* json = app.add_flag("--json", options.json, "Print the daemon's answer (docs/api.md, GET /v1/jobs)");
  auto* fields =
      app.add_option("--format", options.fields, "Print these fields, with commas between their names; for programs")
          ->type_name("FIELDS")
          ->excludes(json);
  add_runtime_dir(app, options.daemon.runtime_dir);
  return {json, fields};
}

constexpr char kFieldsHelp[] =
    R"(Fields for --format: id, label, array, index, name, user, uid, state, outcome, exit, reason, why, place,
priority, gpus, gpu-ids, gpus-wanted, memory, exclusive, time-limit, on-time-limit, requeue, attempt, submitted,
started, ended, elapsed, gpu-time, peak-memory, note, command, starts-in. Each job is one line with tabs between its
fields. Sizes are bytes, durations seconds, times seconds since 1970, all as whole numbers. GPUs are in the order of
their numbers. A field may be empty.)";

// Without a table: JSON, or fields. Nothing: a table is wanted.
std::optional<int> print_for_programs(const char* command, const api_client::Client& client, const ListOptions& options,
                                      const api_client::JobQuery& query, std::uint64_t most) {
  if (options.json) {
    const auto text = all_jobs_text(client, query, most);
    if (!text) return report_error(command, text.error());
    print_json(*text);
    return kExitOk;
  }
  if (options.fields.empty()) return std::nullopt;
  const auto fields = parse_fields(options.fields);
  const auto page = all_jobs(client, query, most);
  if (!page) return report_error(command, page.error());
  const std::int64_t now = now_unix_ns();
  for (const api_client::Job& job : page->jobs) std::cout << format_fields(*fields, job, now) << "\n";
  std::cout << std::flush;
  return kExitOk;
}

bool fields_are_wrong(const char* command, const ListOptions& options) {
  if (options.fields.empty()) return false;
  const auto fields = parse_fields(options.fields);
  if (fields) return false;
  say_error(command, "--format: " + fields.error().message());
  return true;
}

std::vector<JobGroup> in_groups(std::vector<api_client::Job> jobs, bool elements) {
  return elements ? one_by_one(std::move(jobs)) : by_array(std::move(jobs));
}

// The first `limit` lines of a history. An array is on one line, however many of its elements have ended when.
base::Result<std::vector<JobGroup>> latest_groups(const api_client::Client& client, const api_client::JobQuery& query,
                                                  std::uint64_t limit, bool elements) {
  std::vector<JobGroup> groups;
  bool more = true;
  for (std::uint64_t most = std::max(limit, api_client::kMaxPageJobs); more && groups.size() < limit; most *= 10) {
    auto page = all_jobs(client, query, most);
    if (!page) return tl::unexpected(page.error());
    more = page->more && most < kMostShownJobs;
    groups = in_groups(std::move(page->jobs), elements);
  }
  groups.resize(std::min<std::size_t>(groups.size(), limit));
  if (!more || elements) return groups;
  // Elements that ended before all that was read, as far as they are asked for.
  for (JobGroup& group : groups) {
    if (!group.front().array) continue;
    api_client::JobQuery whole = query;
    whole.array = group.front().array;
    auto page = all_jobs(client, whole, kMostShownJobs);
    if (!page) return tl::unexpected(page.error());
    if (!page->jobs.empty()) group = std::move(page->jobs);
  }
  return groups;
}

base::Result<std::vector<std::string>> look_at_queue(const api_client::Client& client,
                                                     const api_client::JobQuery& query, bool elements,
                                                     const Output& output) {
  auto page = all_jobs(client, query, kMostShownJobs);
  if (!page) return tl::unexpected(page.error());
  const auto state = client.queue();
  sort_for_queue(page->jobs);
  const std::vector<JobGroup> groups = in_groups(std::move(page->jobs), elements);
  auto lines =
      queue_lines(groups, state ? std::optional<api_client::QueueState>(*state) : std::nullopt, now_unix_ns(), output);
  if (page->more) lines.emplace_back("... and more; gpumux queue --json has all");
  return lines;
}

}  // namespace

int queue_command(const std::vector<char*>& arguments) {
  constexpr char kName[] = "queue";
  ListOptions options;
  bool all = false;
  CLI::App app("Shows running and waiting jobs, their places, and why they wait.", "gpumux queue");
  app.add_flag("-a,--all", all, "Show finished jobs, too");
  const ForPrograms for_programs = add_list_options(app, options);
  Watch watch(app);
  watch.option()->excludes(for_programs.json)->excludes(for_programs.fields);
  app.footer(std::string(kFieldsHelp) + R"(

--format and --json list the jobs in the order of their ids, and each element of an array. The table has one line for
an array: 51_[0-199%2]. GPUS shows the GPUs of a job, in brackets if it waits for them. TIME is the time since the
job's first start, suspensions included, or the time that it has waited. LIMIT is the time that is left to a running
job, by its own limit or the queue's. PRIO is the priority; empty is 0. STARTS says how soon a job starts if the jobs
that go first use their whole time limits. WHY is below the job if the terminal is too narrow for it.

Examples:
  gpumux queue
  gpumux queue --mine --watch
  gpumux queue --format id,name,state,place
  gpumux queue --json | jq '.jobs[] | select(.state == "running") | .id'

Exit status: 0 shown, 1 failed, 2 wrong usage, 3 no daemon is running, 4 the daemon does not let you in.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  if (fields_are_wrong(kName, options)) return kExitUsage;
  const auto client = find_jobs(options.daemon);
  if (!client) return report_error(kName, client.error());
  api_client::JobQuery query;
  query.state = all ? api_client::JobsState::kAll : api_client::JobsState::kUnfinished;
  query.user = options.mine ? own_user_name() : options.user;
  const std::uint64_t no_limit = std::numeric_limits<std::uint64_t>::max();
  if (const auto exit_status = print_for_programs(kName, *client, options, query, no_limit)) return *exit_status;

  if (watch.is_wanted()) {
    const FindClient find = find_jobs_again(*client, options.daemon);
    watch.set_runtime_dir(client->runtime_dir());
    return watch.screens(kName, [&](const Output& output) -> base::Result<std::vector<std::string>> {
      const auto again = find();
      if (!again) return tl::unexpected(again.error());
      return look_at_queue(*again, query, options.elements, output);
    });
  }
  const auto lines = look_at_queue(*client, query, options.elements, look_at_stdout());
  if (!lines) return report_error(kName, lines.error());
  print_lines(*lines);
  return kExitOk;
}

int history_command(const std::vector<char*>& arguments) {
  constexpr char kName[] = "history";
  ListOptions options;
  std::uint64_t limit = kDefaultHistory;
  std::string since;
  std::string states;
  CLI::App app("Shows finished jobs, the latest end first.", "gpumux history");
  app.add_option("-n,--limit", limit, "Number of jobs to show, an array being one (default 30)")
      ->type_name("N")
      ->check(whole_number(1));
  add_text(app, "-S,--since", "TIME", since,
           "Only jobs that have ended since then: 7d (7 days ago), a date, today, 12:30");
  add_text(app, "-s,--state", "STATES", states,
           "Only jobs that have ended so, with commas between them: ok, failed, cancelled, timed-out, lost or "
           "dependency-failed");
  add_list_options(app, options);
  app.footer(std::string(kFieldsHelp) + R"(

--format and --json begin with the latest end, too. OUTCOME: ok, failed, cancelled, timed out (ended at its time limit),
lost (gpumux does not know how it ended), dependency failed. TIME is as for gpumux report. GPU TIME is how long the
job's programs held leases of GPUs while they had work, PEAK the most memory that they had allocated on one GPU at once.

Examples:
  gpumux history
  gpumux history --since yesterday --state failed,timed-out
  gpumux history --mine --limit 5
  gpumux history --limit 1000 --format id,outcome,exit,elapsed

Exit status: 0 shown, 1 failed, 2 wrong usage, 3 no daemon is running, 4 the daemon does not let you in.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  if (fields_are_wrong(kName, options)) return kExitUsage;
  api_client::JobQuery query;
  query.state = api_client::JobsState::kDone;
  query.latest_end_first = true;
  if (!since.empty()) {
    const auto begin = parse_time(since, now_unix_ns());
    if (!begin) return usage_error(kName, "--since: " + begin.error().message());
    query.ended_since_unix_ns = std::max<std::int64_t>(*begin, 1);
  }
  if (!states.empty()) {
    auto outcomes = parse_outcomes(states);
    if (!outcomes) return usage_error(kName, "--state: " + outcomes.error().message());
    query.outcome = std::move(*outcomes);
  }
  const auto client = find_jobs(options.daemon);
  if (!client) return report_error(kName, client.error());
  query.user = options.mine ? own_user_name() : options.user;
  if (const auto exit_status = print_for_programs(kName, *client, options, query, limit)) return *exit_status;
  const auto groups = latest_groups(*client, query, limit, options.elements);
  if (!groups) return report_error(kName, groups.error());
  const bool is_part = query.ended_since_unix_ns != 0 || !query.outcome.empty() || !query.user.empty();
  if (groups->empty() && is_part) {
    print_lines({"No such job has ended."});
    return kExitOk;
  }
  print_lines(history_lines(*groups, now_unix_ns(), look_at_stdout()));
  return kExitOk;
}

int show_command(const std::vector<char*>& arguments) {
  constexpr char kName[] = "show";
  api_client::Options options;
  std::vector<std::string> ids;
  bool json = false;
  bool environment = false;
  CLI::App app("Shows everything about a job.", "gpumux show");
  add_job_ids(app, ids)->required();
  app.add_flag("-e,--environment", environment, "Show the environment that the job was submitted with, too");
  app.add_flag("--json", json, "Print the daemon's answers (docs/api.md, GET /v1/jobs/{id})");
  add_runtime_dir(app, options.runtime_dir);
  app.footer(
      R"(Only users who may change the job see its command, directory, log and environment: its owner, root and
administrators.

Examples:
  gpumux show 17
  gpumux show --json 17 | jq -r .log

Exit status: 0 shown, 1 failed, 2 wrong usage, 3 no daemon is running, 4 not allowed.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  if (const auto checked = api_client::check_job_ids(ids); !checked)
    return usage_error(kName, checked.error().message());
  const auto client = find_jobs(options);
  if (!client) return report_error(kName, client.error());
  bool first = true;
  for (const std::string& id : ids) {
    const auto jobs = named_jobs(*client, id);
    if (!jobs) return report_error(kName, jobs.error());
    for (const api_client::Job& named : *jobs) {
      const auto text = client->job_text(std::to_string(named.id), environment);
      if (!text) return report_error(kName, text.error());
      if (json) {
        print_json(*text);
        continue;
      }
      const auto job = api_client::parse_job(*text);
      if (!job) return report_error(kName, job.error());
      if (!std::exchange(first, false)) std::cout << "\n";
      print_lines(show_lines(*job, now_unix_ns(), look_at_stdout()));
    }
  }
  return kExitOk;
}

}  // namespace gpumux::cli
