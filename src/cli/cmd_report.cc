// SPDX-License-Identifier: Apache-2.0
// gpumux report: the use of GPUs by users, jobs, pods and programs.
#include <iostream>

#include "api_client/client.h"
#include "cli/frame/command.h"
#include "cli/frame/terminal.h"
#include "cli/jobs/find_client.h"
#include "cli/jobs/job_calls.h"
#include "cli/jobs/job_view.h"
#include "cli/views/report_view.h"
#include "cli/views/times.h"

namespace gpumux::cli {
namespace {

CLI::Validator sums() {
  return {[](const std::string& text) -> std::string {
            const bool is_known = text == "user" || text == "job" || text == "pod" || text == "program";
            return is_known ? "" : "'" + text + "' is none of user, job, pod, program";
          },
          ""};
}

}  // namespace

int report_command(const std::vector<char*>& arguments) {
  constexpr char kName[] = "report";
  api_client::Options options;
  api_client::ReportQuery query;
  std::string since;
  std::string until;
  bool mine = false;
  bool json = false;
  bool csv = false;
  CLI::App app("Shows how long users, jobs, pods or programs have held GPUs, and what else they have had of them.",
               "gpumux report");
  auto* const by = app.add_option("-b,--by", query.by, "Sum by (default user): user, job, pod or program")
                       ->type_name("WHAT")
                       ->check(sums());
  app.add_option("-S,--since", since, "Begin at that time (default today): 7d, a date, today or yesterday")
      ->type_name("TIME");
  app.add_option("-E,--until", until, "End at that time (default now): a date, yesterday or now")->type_name("TIME");
  auto* const user = add_text(app, "-u,--user", "USER", query.user, "Show only this user's use");
  app.add_flag("--mine", mine, "Show only your own use")->excludes(user);
  add_text(app, "-j,--job", "ID", query.job,
           "Show only this job's use, from its beginning on if --since does not say when");
  auto* const as_json = app.add_flag("--json", json, "Print it as the daemon does (docs/api.md, GET /v1/report)");
  app.add_flag("--csv", csv, "Print lines with commas, for spreadsheets")->excludes(as_json);
  add_runtime_dir(app, options.runtime_dir);
  app.footer(
      R"(RUN TIME is how long jobs ran, from their first start to their end, suspensions included. HELD is how long
programs held leases of GPUs. GPU TIME is HELD without the time that a program was idle before it gave a lease up.
WAITED is how long programs waited for leases. These three are hours, minutes and seconds, summed over GPUs and
processes. GIB HOURS is memory on GPUs times how long it was there. IN HOST MEMORY is the same of evicted memory.
SWITCHES is how often the programs got a GPU from another one. The longest held comes first. --json and --csv have
seconds, and bytes times seconds.

TIME is how long ago (90m, 12h, 7d, 4w), a date (2026-11-18, 2026-11-18T12:30), today, yesterday or now. The daemon
keeps sums of whole hours, and of whole days for what is older than ledger_hours. Days are UTC's. The report has every
hour or day of which you ask for a part. Its first line says which time
that is, and before when there was no use.

Examples:
  gpumux report
  gpumux report --since 7d --by job --user eva
  gpumux report --job 17
  gpumux report --since 2026-11-01 --until 2026-12-01 --csv
  gpumux report --since 4w --by pod --json | jq '.rows[].held_seconds'

Exit status: 0 shown, 1 failed, 2 wrong usage, 3 no daemon is running, 4 the daemon does not let you in.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  if (!query.job.empty() && by->count() == 0) query.by = "job";
  const std::int64_t now = now_unix_ns();
  const bool from_the_beginning = since.empty() && !query.job.empty();
  const auto begin =
      from_the_beginning ? base::Result<std::int64_t>(0) : parse_time(since.empty() ? "today" : since, now);
  if (!begin) return usage_error(kName, "--since: " + begin.error().message());
  query.since_unix_ns = *begin;
  if (!until.empty()) {
    const auto end = parse_time(until, now);
    if (!end) return usage_error(kName, "--until: " + end.error().message());
    if (*end < *begin)
      return usage_error(kName, "--until " + until + " is before --since " + (since.empty() ? "today" : since));
    query.until_unix_ns = *end;
  }
  if (mine) query.user = own_user_name();

  const auto client = find_jobs(options);
  if (!client) return report_error(kName, client.error());
  const auto text = client->report_text(query);
  if (!text) return report_error(kName, text.error());
  if (json) {
    print_json(*text);
    return kExitOk;
  }
  const auto report = api_client::parse_report(*text);
  if (!report) return report_error(kName, report.error());
  if (csv) {
    std::cout << report_csv(*report) << std::flush;
    return kExitOk;
  }
  print_lines(report_lines(*report, query, now, look_at_stdout()));
  return kExitOk;
}

}  // namespace gpumux::cli
