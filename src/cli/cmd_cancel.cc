// SPDX-License-Identifier: Apache-2.0
// gpumux cancel, hold, release: what is asked of several jobs at once, and told of each.
#include <unistd.h>

#include <iostream>
#include <string>

#include "api_client/client.h"
#include "cli/frame/command.h"
#include "cli/frame/terminal.h"
#include "jobs/commands/job_calls.h"
#include "jobs/commands/job_view.h"

namespace gpumux::cli {
namespace {

// Each is a question of its own: what became of more nobody reads line by line.
constexpr std::size_t kMostLookedAt = 1000;

struct Request {
  const char* command;
  const char* change;                                      // the body
  const char* (*what_became)(const api_client::Job& job);  // of a job that was changed, as it is now
  const char* not_done;                                    // of one that needed no change
};

constexpr Request kCancel{"cancel", R"({"cancel":true})",
                          [](const api_client::Job& job) { return job.is_done() ? "is cancelled" : "is told to end"; },
                          "has ended already, or is ending"};
constexpr Request kHold{"hold", R"({"held":true})", [](const api_client::Job&) { return "is held"; },
                        "is held already, runs, or has ended"};
constexpr Request kRelease{
    "release", R"({"held":false})",
    [](const api_client::Job& job) { return job.waits() ? "waits for its turn" : "is released"; }, "was not held"};

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
  app.add_option("ID", which.ids, "Ids of jobs; an array's id is all its elements, 17_3 is one of them")->type_name("");
  auto* user = app.add_option("-u,--user", which.user, "All jobs of this user")->type_name("USER");
  auto* all = app.add_flag("-a,--all", which.all, "All your jobs")->excludes(user);
  app.add_flag("--everybody", which.everybody, "All jobs of all users; only for root and administrators")
      ->excludes(user)
      ->excludes(all);
  app.add_flag("-y,--yes", which.yes, "With --everybody: do not ask on a terminal");
  app.add_flag("-q,--quiet", which.quiet, "Print errors only");
  app.add_option("--runtime-dir", which.daemon.runtime_dir, "Ask the daemon whose sockets are in DIR")
      ->type_name("DIR");
}

std::optional<int> check(const Request& request, const Which& which) {
  const bool many = which.all || which.everybody || !which.user.empty();
  if (many != which.ids.empty()) {
    say_error(request.command, many ? "ids cannot be combined with --user, --all or --everybody"
                                    : "no job was named: name ids, --all (yours), --user NAME or --everybody");
    return kExitUsage;
  }
  for (const std::string& id : which.ids) {
    if (const auto checked = api_client::check_job_id(id); !checked) {
      say_error(request.command, checked.error().message());
      return kExitUsage;
    }
  }
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

int tell(const Request& request, const api_client::Client& client, const std::vector<api_client::JobChange>& changes,
         bool quiet) {
  int status = kExitOk;
  std::size_t looked_at = 0;
  for (const api_client::JobChange& change : changes) {
    const std::string job = "job " + std::to_string(change.id);
    if (change.error) {
      const std::string said = change.error->message();
      const bool names_it = change.id == 0 || said.find(std::to_string(change.id)) != std::string::npos;
      say_error(request.command, (names_it ? "" : job + ": ") + said);
      if (status == kExitOk) status = exit_status_of(change.error->code);
    } else if (!quiet) {
      api_client::Job now;
      now.id = change.id;
      if (looked_at++ < kMostLookedAt) now = client.job(std::to_string(change.id)).value_or(std::move(now));
      std::cout << "job " << job_label(now) << " " << (change.changed ? request.what_became(now) : request.not_done)
                << "\n";
    }
  }
  if (changes.empty() && !quiet) std::cout << "there are no such jobs\n";
  std::cout << std::flush;
  return status;
}

int change(const Request& request, const Which& which) {
  if (const auto exit_status = check(request, which)) return *exit_status;
  const auto client = find_jobs(which.daemon);
  if (!client) return report_error(request.command, client.error());
  const std::string user = "user:" + api_client::url_encoded(which.all ? own_user_name() : which.user);
  const auto changes = which.ids.empty() ? client->change_jobs(which.everybody ? "all" : user, request.change)
                                         : change_named_jobs(*client, which.ids, request.change);
  if (!changes) return report_error(request.command, changes.error());
  return tell(request, *client, *changes, which.quiet);
}

constexpr char kStatuses[] =
    R"(Exit status: 0 done, or nothing to do; 1 failed for one of the jobs (for example, it does not exist), 2 wrong
usage, 3 no daemon is running, 4 not allowed for one of the jobs.)";

}  // namespace

int cancel_command(const std::vector<char*>& arguments) {
  Which which;
  CLI::App app("Ends jobs: waiting jobs at once, running jobs by SIGTERM and, a while later, SIGKILL.",
               "gpumux cancel");
  add_which(app, which);
  app.footer(std::string(R"(Examples:
  gpumux cancel 17
  gpumux cancel 17_3 20 21
  gpumux cancel --all

)") + kStatuses);
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  return change(kCancel, which);
}

int hold_command(const std::vector<char*>& arguments) {
  Which which;
  CLI::App app("Keeps waiting jobs from starting until they are released.", "gpumux hold");
  add_which(app, which);
  app.footer(std::string(R"(Examples:
  gpumux hold 17
  gpumux hold --all

)") + kStatuses);
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  return change(kHold, which);
}

int release_command(const std::vector<char*>& arguments) {
  Which which;
  CLI::App app("Lets held jobs wait for their turn again, in their old place.", "gpumux release");
  add_which(app, which);
  app.footer(std::string(R"(Examples:
  gpumux release 17

)") + kStatuses);
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  return change(kRelease, which);
}

}  // namespace gpumux::cli
