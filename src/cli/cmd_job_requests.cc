// SPDX-License-Identifier: Apache-2.0
// gpumux cancel, hold, release, suspend, resume, requeue: one request about several jobs, with a line for each of them,
// or for each array.
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "api_client/client.h"
#include "cli/frame/command.h"
#include "cli/jobs/job_calls.h"
#include "cli/jobs/job_texts.h"
#include "cli/jobs/job_view.h"

namespace gpumux::cli {
namespace {

// Each is a question of its own, and no user reads more answers line by line.
constexpr std::size_t kMostLookedAt = 1000;

struct Request {
  const char* command;
  const char* change;                                      // the body
  const char* (*what_became)(const api_client::Job& job);  // of a job that was changed, as it is now: "cancelled"
  std::string_view met_in;                                 // states in which there is nothing to change
  const char* met;                                         // of a job in one of them: "held already"
  const char* cannot;                                      // of a job that goes on as it is, in another state
  const char* ended = "";                                  // of a job that had ended before: what to do instead
};

constexpr Request kCancel{"cancel",
                          R"({"cancel":true})",
                          [](const api_client::Job& job) { return job.is_done() ? "cancelled" : "told to end"; },
                          "ending",
                          "ending already",
                          "it goes on"};
constexpr Request kHold{"hold", R"({"held":true})", [](const api_client::Job&) { return "held"; },
                        "held", "held already",     "only a job that waits can be held"};
constexpr Request kRelease{"release",
                           R"({"held":false})",
                           [](const api_client::Job&) { return "released"; },
                           "queued starting running suspending suspended resuming ending",
                           "not held",
                           "it goes on as it was"};

constexpr Request kSignal{"cancel", "", [](const api_client::Job&) { return "sent the signal"; },
                          "",       "", "only a running job gets signals"};
constexpr Request kSuspend{
    "suspend",
    R"({"suspended":true})",
    [](const api_client::Job& job) { return job.state == "suspended" ? "to stay suspended" : "told to suspend"; },
    "starting running suspending suspended resuming",
    "to stay suspended already",
    "only a job that runs can be suspended"};
constexpr Request kResume{
    "resume",
    R"({"suspended":false})",
    [](const api_client::Job& job) { return job.state == "suspended" ? "to go on in its turn" : "resumed"; },
    "starting running suspending suspended resuming",
    "not suspended by hand",
    "only a suspended job can be resumed"};
constexpr Request kRequeue{"requeue",
                           R"({"run_again":true})",
                           [](const api_client::Job&) { return "told to end and run again"; },
                           "queued held",
                           "in the queue already",
                           "it was told to end before",
                           "the queue keeps no command of a job that has ended, so submit it again"};

struct Which {
  std::vector<std::string> ids;
  std::string user;
  bool all = false;
  bool everybody = false;
  bool yes = false;
  bool quiet = false;
  api_client::Options daemon;
};

void add_which(CLI::App& app, Which& which) {
  add_job_ids(app, which.ids);
  auto* user = app.add_option("-u,--user", which.user, "All jobs of this user")->type_name("USER");
  auto* all = app.add_flag("-a,--all", which.all, "All your jobs")->excludes(user);
  app.add_flag("--everybody", which.everybody, "All jobs of all users; only for root and administrators")
      ->excludes(user)
      ->excludes(all);
  app.add_flag("-y,--yes", which.yes, "With --everybody: do not ask on a terminal");
  app.add_flag("-q,--quiet", which.quiet, "Print errors only");
  add_runtime_dir(app, which.daemon.runtime_dir);
}

std::optional<int> check(const Request& request, const Which& which) {
  const bool many = which.all || which.everybody || !which.user.empty();
  if (many != which.ids.empty())
    return usage_error(request.command, many ? "ids cannot be combined with --user, --all or --everybody"
                                             : "no job was named: name ids, --all (yours), --user NAME or --everybody");
  if (const auto checked = api_client::check_job_ids(which.ids); !checked)
    return usage_error(request.command, checked.error().message());
  // Only a person can have slipped.
  if (which.everybody && !which.yes && ::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1) {
    std::cerr << "gpumux " << request.command << " --everybody: this changes the jobs of all users. Go on? [y/N] "
              << std::flush;
    std::string answer;
    std::getline(std::cin, answer);
    if (answer != "y" && answer != "Y" && answer != "yes") {
      say_error(request.command, "nothing was changed");
      return kExitFailed;
    }
  }
  return std::nullopt;
}

// The jobs as they are now, by their ids; an array is asked for as a whole.
std::map<std::uint64_t, api_client::Job> look_at(const api_client::Client& client,
                                                 const std::vector<api_client::JobChange>& changes) {
  std::map<std::uint64_t, api_client::Job> jobs;
  std::size_t looks = 0;
  for (const api_client::JobChange& change : changes) {
    if (change.error || jobs.contains(change.id)) continue;
    if (looks++ == kMostLookedAt) break;
    const auto job = client.job(std::to_string(change.id));
    if (!job) continue;
    if (job->array && changes.size() > 1) {
      const api_client::JobQuery elements{.state = api_client::JobsState::kAll, .array = job->array};
      if (auto page = all_jobs(client, elements, std::numeric_limits<std::uint64_t>::max())) {
        for (api_client::Job& element : page->jobs) jobs[element.id] = std::move(element);
      }
    }
    jobs.emplace(change.id, *job);
  }
  return jobs;
}

// One job after the request. Nothing in `what`: the job had ended before.
struct Became {
  std::string what;  // "cancelled", "running"
  std::string rest;  // why it goes on as it is, or what to do instead
  bool has_failed = false;
};

// "ending" is no part of "suspending".
bool is_met(const Request& request, const std::string& state) {
  return (" " + std::string(request.met_in) + " ").find(" " + state + " ") != std::string::npos;
}

Became became(const Request& request, const api_client::JobChange& change, const api_client::Job& now) {
  if (change.changed || now.state.empty()) return {change.changed ? request.what_became(now) : request.met, "", false};
  if (now.is_done()) return {"", request.ended, true};
  return is_met(request, now.state) ? Became{request.met, "", false} : Became{now.state, request.cannot, true};
}

int tell_error(const Request& request, const api_client::JobChange& change) {
  const std::string said = change.error->message();
  const bool names_it = change.id == 0 || said.find(std::to_string(change.id)) != std::string::npos;
  say_error(request.command, (names_it ? "" : "job " + std::to_string(change.id) + ": ") + said);
  return exit_status_of(change.error->code);
}

// Jobs that go on as they are, are a failure if they were named.
int say_what_became(const Request& request, const Which& which, const std::string& text, bool has_failed) {
  if (has_failed && !which.ids.empty()) {
    say_error(request.command, text);
    return kExitFailed;
  }
  if (!which.quiet) std::cout << text << "\n";
  return kExitOk;
}

int tell_job(const Request& request, const Which& which, const api_client::JobChange& change,
             const api_client::Job& now) {
  const Became one = became(request, change, now);
  const std::string text = "job " + job_label(now) + " " + (one.what.empty() ? finished_text(now) : "is " + one.what) +
                           (one.rest.empty() ? "" : ": " + one.rest);
  return say_what_became(request, which, text, one.has_failed);
}

// Elements of one array, in one line: "array 51_[0-199%2]: 198 cancelled, 2 told to end".
int tell_array(const Request& request, const Which& which, const std::vector<api_client::JobChange>& changes,
               const JobGroup& group) {
  std::vector<std::pair<std::string, std::size_t>> counts;
  std::string rest;
  bool has_failed = true;
  for (std::size_t i = 0; i < group.size(); ++i) {
    Became one = became(request, changes[i], group[i]);
    if (one.what.empty()) one.what = state_text(group[i]) + " already";
    if (!one.rest.empty()) rest = one.rest;
    has_failed = has_failed && one.has_failed;
    const auto known = std::find_if(counts.begin(), counts.end(), [&](const auto& e) { return e.first == one.what; });
    ++(known != counts.end() ? *known : counts.emplace_back(one.what, std::size_t{0})).second;
  }
  std::string text = "array " + group_label(group) + ":";
  for (const auto& [what, count] : counts)
    text += (what == counts.front().first ? " " : ", ") + std::to_string(count) + " " + what;
  if (!rest.empty()) text += " (" + rest + ")";
  return say_what_became(request, which, text, has_failed);
}

int tell(const Request& request, const api_client::Client& client, const std::vector<api_client::JobChange>& changes,
         const Which& which) {
  auto now = look_at(client, changes);
  // In the order of the answer, an array where its first element stands.
  std::vector<std::pair<std::vector<api_client::JobChange>, JobGroup>> groups;
  std::map<std::uint64_t, std::size_t> of_array;
  for (const api_client::JobChange& change : changes) {
    api_client::Job& job = now[change.id];
    job.id = change.id;
    const auto known = job.array && !change.error ? of_array.find(*job.array) : of_array.end();
    if (known == of_array.end()) {
      if (job.array && !change.error) of_array[*job.array] = groups.size();
      groups.emplace_back();
    }
    auto& [of_group, jobs] = known != of_array.end() ? groups[known->second] : groups.back();
    of_group.push_back(change);
    jobs.push_back(job);
  }
  int status = kExitOk;
  for (const auto& [of_group, jobs] : groups) {
    const int one = of_group.front().error ? tell_error(request, of_group.front())
                    : jobs.size() == 1     ? tell_job(request, which, of_group.front(), jobs.front())
                                           : tell_array(request, which, of_group, jobs);
    if (status == kExitOk) status = one;
  }
  if (changes.empty() && !which.quiet) std::cout << "there are no such jobs\n";
  std::cout << std::flush;
  return status;
}

int change(const Request& request, const Which& which, const std::string& body) {
  if (const auto exit_status = check(request, which)) return *exit_status;
  const auto client = find_jobs(which.daemon);
  if (!client) return report_error(request.command, client.error());
  const std::string user = "user:" + api_client::url_encoded(which.all ? own_user_name() : which.user);
  const auto changes = which.ids.empty() ? client->change_jobs(which.everybody ? "all" : user, body)
                                         : change_named_jobs(*client, which.ids, body);
  if (!changes) return report_error(request.command, changes.error());
  return tell(request, *client, *changes, which);
}

constexpr char kStatuses[] =
    R"(Exit status: 0 done, or nothing to do; 1 failed for one of the jobs (for example, it has ended, or is not
there), 2 wrong usage, 3 no daemon is running, 4 not allowed for one of the jobs.)";

// A command that has nothing but the jobs that it is about.
int run(const Request& request, const std::vector<char*>& arguments, const char* help, const std::string& examples) {
  Which which;
  CLI::App app(help, std::string("gpumux ") + request.command);
  add_which(app, which);
  app.footer(examples + kStatuses);
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  return change(request, which, request.change);
}

}  // namespace

int cancel_command(const std::vector<char*>& arguments) {
  Which which;
  std::string signal;
  CLI::App app("Ends jobs: waiting jobs at once, running jobs by SIGTERM and, a while later, SIGKILL.",
               "gpumux cancel");
  add_text(app, "-s,--signal", "SIGNAL", signal,
           "Send only this signal to the processes of running jobs, such as SIGUSR1");
  add_which(app, which);
  app.footer(std::string(R"(Examples:
  gpumux cancel 17
  gpumux cancel 17_3 20 21
  gpumux cancel --all
  gpumux cancel --signal SIGUSR1 17

)") + kStatuses);
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  if (signal.empty()) return change(kCancel, which, kCancel.change);
  if (signal.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-") != std::string::npos)
    return usage_error("cancel", "--signal: '" + signal + "' is no signal: write a name such as SIGUSR1, or a number");
  for (char& c : signal) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return change(kSignal, which, "{\"signal\":\"" + signal + "\"}");
}

int hold_command(const std::vector<char*>& arguments) {
  return run(kHold, arguments, "Keeps waiting jobs from starting until they are released.", R"(Examples:
  gpumux hold 17
  gpumux hold --all

)");
}

int release_command(const std::vector<char*>& arguments) {
  return run(kRelease, arguments, "Lets held jobs wait for their turn again, in their old place.",
             R"(Examples:
  gpumux release 17

)");
}

int suspend_command(const std::vector<char*>& arguments) {
  return run(kSuspend, arguments, "Suspends running jobs until they are resumed: their memory leaves the GPUs.",
             R"(A suspended job is frozen where it is. Other jobs may have its GPUs.

Examples:
  gpumux suspend 17

)");
}

int resume_command(const std::vector<char*>& arguments) {
  return run(kResume, arguments, "Lets jobs that were suspended by hand go on, as soon as there is room for them.",
             R"(Examples:
  gpumux resume 17

)");
}

int requeue_command(const std::vector<char*>& arguments) {
  return run(kRequeue, arguments, "Ends jobs that have started, and lets them run again from the beginning.",
             R"(The job is ended as by gpumux cancel, and keeps its id and its place in the queue.

Examples:
  gpumux requeue 17

)");
}

}  // namespace gpumux::cli
