// SPDX-License-Identifier: Apache-2.0
// gpumux logs: a job's output, now or as it comes.
#include <unistd.h>

#include <optional>
#include <string>

#include "api_client/client.h"
#include "cli/frame/command.h"
#include "cli/jobs/job_calls.h"
#include "cli/jobs/job_view.h"
#include "cli/jobs/log_reader.h"

namespace gpumux::cli {
namespace {

constexpr char kLogsName[] = "logs";

// Between two looks at a log that is followed: as fast as a reader notices.
constexpr base::Duration kLookAgain = std::chrono::milliseconds(100);

// A job that has not begun has no log yet. A file in the log's place is another job's: of an older queue's job with
// this id, say.
bool has_begun(const api_client::Job& job) { return job.started_unix_ns > 0; }

// Shows the log, and with `follow` goes on until the job is done.
int show_log(LogReader& reader, PatientClient& patient, const std::string& id, api_client::Job job, bool follow) {
  bool told = false;
  for (;;) {
    // Looked at before the log: output that was written before the end is then shown for certain.
    const bool last = job.is_done() || !follow;
    const auto shown = has_begun(job) ? reader.show_new() : LogReader::Shown{};
    if (!shown) return report_error(kLogsName, shown.error());
    if (shown->began_anew) say_error(kLogsName, "the log of job " + id + " has begun anew");
    if (last && !shown->there) {
      say_error(kLogsName, job.is_done() ? "job " + id + " has no log: " + job_reason(job) + " (" + job.log + ")"
                                         : waiting_text(job) + "; there is no log yet: -f waits for it");
      return kExitFailed;
    }
    if (last) return kExitOk;
    if (!shown->there && !told) {
      say_error(kLogsName, waiting_text(job));
      told = true;
    }
    auto now = patient.wait(id, api_client::JobMoment::kDone, kLookAgain);
    if (!now) return report_error(kLogsName, now.error());
    if (*now) job = std::move(**now);
  }
}

}  // namespace

int logs_command(const std::vector<char*>& arguments) {
  api_client::Options options;
  std::string id;
  bool follow = false;
  std::optional<std::uint64_t> lines;
  CLI::App app("Shows what a job has printed, from its log.", "gpumux logs");
  app.add_option("ID", id, "A job's id; 17_3 is element 3 of array 17")->type_name("")->required();
  app.add_flag("-f,--follow", follow, "Print what the job writes, until the job is done");
  app.add_option("-n,--lines", lines, "Begin with the last N lines")->type_name("N")->check(whole_number(0));
  add_runtime_dir(app, options.runtime_dir);
  app.footer(R"(The log is a file of the job's owner; `gpumux show ID` names it. A job that runs again appends to it.

Examples:
  gpumux logs 17
  gpumux logs -f 17
  gpumux logs -n 20 17_3

Exit status: 0 shown, 1 failed (for example, there is no log), 2 wrong usage, 3 no daemon is running, 4 not allowed.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  if (const auto checked = api_client::check_job_id(id); !checked)
    return usage_error(kLogsName, checked.error().message());
  const auto client = find_jobs(options);
  if (!client) return report_error(kLogsName, client.error());
  auto named = named_jobs(*client, id);
  if (!named) return report_error(kLogsName, named.error());
  if (named->size() > 1) {
    say_error(kLogsName,
              "job " + id + " is an array, and each of its jobs has a log: name one of " + job_labels(*named));
    return kExitFailed;
  }
  api_client::Job job = std::move(named->front());
  if (job.log.empty() && !job.arguments.empty()) {
    say_error(kLogsName, "job " + id + " has no log: " + job_reason(job));
    return kExitFailed;
  }
  if (job.log.empty()) {
    const std::string whose = job.user.empty() ? "another user" : job.user;
    say_error(kLogsName, "job " + id + " is " + whose + "'s: only that user and administrators may see its log");
    return kExitDenied;
  }
  LogReader reader(job.log, STDOUT_FILENO);
  if (lines && has_begun(job)) {
    if (const auto skipped = reader.skip_to_last_lines(*lines); !skipped)
      return report_error(kLogsName, skipped.error());
  }
  PatientClient patient(find_jobs_again(*client, options));
  return show_log(reader, patient, id, std::move(job), follow);
}

}  // namespace gpumux::cli
