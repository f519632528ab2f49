// SPDX-License-Identifier: Apache-2.0
// gpumux admin: the queue as a whole. Its changes last beyond restarts.
#include <string>

#include "api_client/client.h"
#include "cli/frame/command.h"
#include "cli/frame/terminal.h"
#include "cli/jobs/admin_change.h"
#include "cli/jobs/find_client.h"
#include "cli/jobs/queue_state_view.h"

namespace gpumux::cli {
namespace {

constexpr char kAdminName[] = "admin";
constexpr char kAdminUsage[] = "gpumux admin [OPTIONS] ACTION [WHAT...]";

}  // namespace

int admin_command(const std::vector<char*>& arguments) {
  api_client::Options options;
  std::vector<std::string> words;
  bool json = false;
  CLI::App app("Shows the job queue as a whole; administrators change it.", "gpumux admin");
  app.add_option("ACTION", words, "An action, and its words")->type_name("");
  app.add_flag("--json", json, "Print the daemon's answer (docs/api.md, GET /v1/queue)");
  add_runtime_dir(app, options.runtime_dir);
  app.footer(R"(Actions:
  show                      Settings, GPUs, users and their limits
  pause                     Start no job until unpause; running jobs go on
  unpause                   Start jobs again
  drain GPU...              Start no job on these GPUs (numbers, UUIDs, or all)
  resume GPU...             Start jobs on these GPUs again
  limits USER KEY=VALUE...  Limits of a user: running, queued, gpus, priority_cap; a number or unlimited
  limits USER default       Give the user the limits of all users

Examples:
  gpumux admin show
  gpumux admin drain 3
  gpumux admin limits eva running=2 gpus=4 queued=unlimited
  gpumux admin limits eva default

A change prints what is different now. CAPACITY is the memory that jobs can have of a GPU, PROMISED what its jobs have
asked for, OUTSIDE JOBS the memory of programs that no job has started. OCCUPIED is how long a user's jobs had GPUs,
times their number, as the queue's order counts it.

Every user may show the queue. Only the daemon's owner, root and members of the group gpumux may change it. Changes
outlive restarts. Other settings are in the configuration file, under [queue].

Exit status: 0 done, 1 failed, 2 wrong usage, 3 no daemon is running, 4 not allowed.)");
  if (const auto exit_status = parse_command_line(app, arguments, kAdminUsage)) return *exit_status;
  const auto changes = parse_admin_words(words);
  const char* const more = words.empty() ? "\nSee `gpumux admin --help`." : "; see `gpumux admin --help`";
  if (!changes) return usage_error(kAdminName, changes.error().message() + more);
  const auto client = find_jobs(options);
  if (!client) return report_error(kAdminName, client.error());
  for (const AdminChange& change : *changes) {
    const auto before = client->queue();
    if (!before) return report_error(kAdminName, before.error());
    const auto now = client->change_queue(change.what, change.body);
    if (!now) return report_error(kAdminName, now.error());
    if (json) continue;
    print_lines(queue_change_lines(*before, *now));
  }
  if (!changes->empty() && !json) return kExitOk;
  const auto text = client->queue_text();
  if (!text) return report_error(kAdminName, text.error());
  if (json) {
    print_json(*text);
    return kExitOk;
  }
  const auto queue = api_client::parse_queue(*text);
  if (!queue) return report_error(kAdminName, queue.error());
  print_lines(queue_state_lines(*queue, look_at_stdout()));
  return kExitOk;
}

}  // namespace gpumux::cli
