// SPDX-License-Identifier: Apache-2.0
// gpumux wait, gpumux attach: commands that last as long as a job does, and end as it ended.
#include <iterator>
#include <string>
#include <vector>

#include "api_client/client.h"
#include "cli/frame/command.h"
#include "cli/jobs/interactive.h"
#include "cli/jobs/job_calls.h"
#include "cli/jobs/job_view.h"

namespace gpumux::cli {

int wait_command(const std::vector<char*>& arguments) {
  constexpr char kName[] = "wait";
  api_client::Options options;
  std::vector<std::string> ids;
  bool quiet = false;
  CLI::App app("Waits until jobs are done, and exits with their status.", "gpumux wait");
  add_job_ids(app, ids)->required();
  app.add_flag("-q,--quiet", quiet, "Print nothing while the jobs are not done");
  add_runtime_dir(app, options.runtime_dir);
  app.footer(
      R"(If the daemon restarts, the command waits for it, up to ten minutes. On a terminal a line says the job's place,
why it waits, and when it will start at the latest.

Examples:
  gpumux wait 17
  gpumux wait 17 18 && gpumux submit -- python evaluate.py

Exit status: the job's; of several jobs, the first that is not 0. Jobs without a status count as 1: cancelled before the
start, lost, or a job before it failed. So does a cancelled job that exited with 0. Before that: 1 failed (for example,
there is no such job), 2 wrong usage, 3 no daemon is running, 4 not allowed.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  if (const auto checked = api_client::check_job_ids(ids); !checked)
    return usage_error(kName, checked.error().message());
  const auto client = find_jobs(options);
  if (!client) return report_error(kName, client.error());
  std::vector<api_client::Job> jobs;
  for (const std::string& id : ids) {
    auto named = named_jobs(*client, id);
    if (!named) return report_error(kName, named.error());
    std::move(named->begin(), named->end(), std::back_inserter(jobs));
  }
  return wait_for_jobs(kName, PatientClient(find_jobs_again(*client, options)), jobs,
                       quiet ? Progress::kSilent : Progress::kShown);
}

int attach_command(const std::vector<char*>& arguments) {
  constexpr char kName[] = "attach";
  api_client::Options options;
  std::string id;
  std::string keys;
  CLI::App app("Connects your terminal with the terminal of a job that was submitted with --interactive.",
               "gpumux attach");
  app.add_option("ID", id, "A job's id")->type_name("")->required();
  add_text(app, "--detach-keys", "KEYS", keys,
           "Leave by these keys, such as ctrl-p,ctrl-q; Ctrl+C then goes to the job");
  add_runtime_dir(app, options.runtime_dir);
  app.footer(
      R"(The command first shows the job's earlier output, as far as it is kept. Ctrl+C leaves, and the job goes on.
Ctrl+C twice within a second cancels the job. All other keys go to the job. Several terminals may be attached at once.

Examples:
  gpumux attach 17
  gpumux attach --detach-keys ctrl-p,ctrl-q 17
  echo 'print(1)' | gpumux attach 17     # its end does not end the job

Exit status: the job's; 130 if you have left it. Before that: 1 failed (for example, it has no terminal), 2 wrong usage,
3 no daemon is running, 4 not allowed.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  if (const auto checked = api_client::check_job_id(id); !checked) return usage_error(kName, checked.error().message());
  const auto detach_keys = keys.empty() ? DetachKeys() : DetachKeys::parse(keys);
  if (!detach_keys) return usage_error(kName, "--detach-keys: " + detach_keys.error().message());
  // Here, so that a daemon that is not there at all is told at once.
  const auto client = find_jobs(options);
  if (!client) return report_error(kName, client.error());
  return attach_to_job(kName, id, find_jobs_again(*client, options), *detach_keys);
}

}  // namespace gpumux::cli
