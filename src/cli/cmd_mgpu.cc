// SPDX-License-Identifier: Apache-2.0
// mgpu_srun, mgpu_queue, mgpu_cancel, mgpu_scheduler_server: the commands of an older scheduler, for the scripts that
// have them. The same program under other names; they do the work of gpumux submit, queue and cancel and of gpumuxd.
//
// Their defaults are kept: a job begins in the home directory, in the background, and --mem is in MB. So are the lines
// that they print, which scripts read. docs/cli.md has what is different.
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <string>

#include "base/units.h"
#include "cli/frame/command.h"
#include "cli/frame/terminal.h"
#include "cli/jobs/interactive.h"
#include "cli/jobs/job_calls.h"
#include "cli/jobs/job_texts.h"
#include "cli/jobs/job_view.h"
#include "cli/jobs/submission.h"
#include "cli/run/private_daemon.h"
#include "cli/run/run_arguments.h"

namespace gpumux::cli {
namespace {

constexpr char kMgpuSrun[] = "mgpu_srun";
constexpr char kMgpuQueue[] = "mgpu_queue";
constexpr char kMgpuCancel[] = "mgpu_cancel";
constexpr char kServer[] = "mgpu_scheduler_server";

// The list has neither commands nor the order of GPUs: each job is a question of its own, a fraction of a millisecond.
// Beyond this many, names and numbers will do.
constexpr std::size_t kMostCommandsShown = 200;

int submit_failed(const std::string& why, int exit_status) {
  std::cerr << "Submit failed: " << printable_lines(why) << "\n";
  return exit_status;
}

int srun(const std::vector<char*>& arguments) {
  SubmitWishes wishes;
  CLI::App app("Submits a job for the named GPUs. The same as gpumux submit --home.", kMgpuSrun);
  add_text(app, "--gpu-ids", "IDS", wishes.gpu_ids, "The GPUs, in this order, such as 0,2: the job's cuda:0, cuda:1")
      ->required();
  add_text(app, "--mem", "MB", wishes.memory, "Memory on each GPU, in MB (default: all of it)");
  add_text(app, "--time-limit", "SECONDS", wishes.time_limit,
           "Run this many seconds before other jobs have their turn");
  add_text(app, "--priority", "N", wishes.priority, "Priority of the job; higher runs first (default 0)");
  app.add_option("--env-setup-cmd", wishes.setup_command, "A shell command that runs before the job's command")
      ->type_name("COMMAND");
  auto* interactive = app.add_flag("--interactive", wishes.interactive,
                                   "Show the job's output here; Ctrl+C leaves, and the job goes on");
  app.add_flag("--background")->description("Return when the job is submitted (the default)")->excludes(interactive);
  app.footer(R"(Examples:
  mgpu_srun --gpu-ids 0 --interactive -- python train.py
  mgpu_srun --gpu-ids 0,1 --mem 8000 --time-limit 600 -- torchrun train.py
  mgpu_srun --gpu-ids 2 --env-setup-cmd "source venv/bin/activate" -- ./train.py

Exit status: with --interactive the job's, or 130 if you left it. Otherwise 0 submitted, 1 failed, 2 wrong usage, 3 no
daemon, 4 not allowed.)");
  const SplitArguments split = split_run_arguments(arguments, options_with_value(app));
  if (const auto exit_status =
          parse_command_line(app, split.options, "mgpu_srun --gpu-ids IDS [OPTIONS] -- COMMAND [ARGUMENTS...]"))
    return *exit_status;
  wishes.home = true;
  // That scheduler's unit.
  if (base::parse_integer(wishes.memory, 0, UINT64_MAX)) wishes.memory += "M";
  auto submission = make_submission(wishes, split.program);
  if (!submission) {
    return submit_failed(submission.error().message(),
                         submission.error().code == base::Code::kInvalid ? kExitUsage : kExitFailed);
  }
  const auto client = find_or_start_client();
  if (!client) return submit_failed(client.error().message(), exit_status_of(client.error().code));
  const auto submitted = submit_persistently(*submission, find_or_start_client);
  if (!submitted) return submit_failed(submitted.error().message(), exit_status_of(submitted.error().code));
  for (const std::string& doubt : doubts_about(*submission)) say_error(kMgpuSrun, "warning: " + doubt);
  std::cout << "Job submitted. ID: " << submitted->id << " (priority=" << submission->priority.value_or(0) << ")\n"
            << std::flush;
  if (const std::string cap = describe_cap(submission->priority.value_or(0), submitted->priority_capped); !cap.empty())
    say_error(kMgpuSrun, "note: " + cap);
  if (!wishes.interactive) return kExitOk;
  return attach_to_job(kMgpuSrun, std::to_string(submitted->id), find_jobs_again(*client));
}

// `job` in full, where it may be seen: its GPUs in its own order, and its command.
std::string queue_line(const api_client::Job& job) {
  std::string command;
  for (const std::string& word : job.arguments) command += (command.empty() ? "" : " ") + word;
  const std::vector<std::uint32_t>& gpus = job.gpus.empty() ? job.gpu_ids : job.gpus;
  std::string line = "ID: " + job_label(job) + " | User: " + job.user + " | GPUs: ";
  line += gpus.empty() ? "any " + std::to_string(job.gpus_wanted) : joined(gpus);
  line += " | Mem: " + (job.memory_bytes == 0 ? "all" : std::to_string(job.memory_bytes >> 20) + " MB");
  line += " | CMD: " + (command.empty() ? job.name : command) + " | Status: " + job.state;
  if (const std::string reason = job_reason(job); job.waits() && !reason.empty()) line += " (" + reason + ")";
  return printable(line);
}

int queue(const std::vector<char*>& arguments) {
  CLI::App app("Shows running and waiting jobs. gpumux queue shows more.", kMgpuQueue);
  app.footer("Exit status: 0 shown, 1 failed, 2 wrong usage, 3 no daemon is running, 4 not allowed.");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  const auto client = find_jobs({});
  if (!client) return report_error(kMgpuQueue, client.error());
  auto page = all_jobs(*client, {}, std::numeric_limits<std::uint64_t>::max());
  if (!page) return report_error(kMgpuQueue, page.error());
  sort_for_queue(page->jobs);
  std::string running;
  std::string waiting;
  std::size_t asked = 0;
  for (const api_client::Job& job : page->jobs) {
    const auto whole = asked++ < kMostCommandsShown ? client->job(std::to_string(job.id)) : job;
    (job.waits() || job.state == "suspended" ? waiting : running) += queue_line(whole ? *whole : job) + "\n";
  }
  std::cout << "--- Running Jobs ---\n" << running << "--- Queue ---\n" << waiting << std::flush;
  return kExitOk;
}

int cancel(const std::vector<char*>& arguments) {
  std::string id;
  CLI::App app("Ends a job. The same as gpumux cancel.", kMgpuCancel);
  app.add_option("ID", id, "The job's id")->type_name("")->required();
  app.footer("Exit status: 0 cancelled, 1 failed, 2 wrong usage, 3 no daemon is running, 4 not allowed.");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  const auto failed = [](const std::string& why, int exit_status) {
    std::cout << "Cancel failed.\n" << std::flush;
    say_error(kMgpuCancel, why);
    return exit_status;
  };
  if (const auto checked = api_client::check_job_id(id); !checked) return failed(checked.error().message(), kExitUsage);
  const auto client = find_jobs({});
  if (!client) return failed(client.error().message(), exit_status_of(client.error().code));
  const auto changes = change_named_jobs(*client, {id}, R"({"cancel":true})");
  if (!changes) return failed(changes.error().message(), exit_status_of(changes.error().code));
  bool changed = false;
  for (const api_client::JobChange& change : *changes) {
    if (change.error) return failed(change.error->message(), exit_status_of(change.error->code));
    changed = changed || change.changed;
  }
  if (!changed) {
    const auto job = client->job(id);
    return failed(
        "job " + id +
            (job && !job->is_done() ? " is ending already" : " " + finished_text(job.value_or(api_client::Job{}))),
        kExitFailed);
  }
  std::cout << "Job cancelled.\n" << std::flush;
  return kExitOk;
}

int scheduler_server(const std::vector<char*>& arguments) {
  std::string limit;
  CLI::App app("Runs the daemon: the same as gpumuxd, as root for the whole machine.", kServer);
  add_text(app, "--max-job-time", "SECONDS", limit,
           "A job runs at most this long before other jobs have their turn, in seconds");
  app.footer("Exit status: the daemon's; 127 if it was not found.");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  std::string seconds;
  if (!limit.empty()) {
    const auto parsed = base::parse_time_limit(limit);
    if (!parsed) return usage_error(kServer, "--max-job-time: " + parsed.error().message());
    seconds = std::to_string(std::chrono::ceil<std::chrono::seconds>(*parsed).count());
  }
  auto binary = find_daemon_binary();
  if (!binary) {
    say_error(kServer, binary.error().message());
    return kExitNotFound;
  }
  // A priority has always counted against all users' jobs here.
  ::setenv("GPUMUX_QUEUE_PRIORITY_CAP", "unlimited", 0);
  std::string option = "--max-job-time";
  std::vector<char*> words{binary->data()};
  if (!seconds.empty()) words.insert(words.end(), {option.data(), seconds.data()});
  words.push_back(nullptr);
  ::execv(binary->c_str(), words.data());
  const int failure = errno;
  say_error(kServer, *binary + ": " + ::strerror(failure));
  return failure == ENOENT ? kExitNotFound : kExitNotExecutable;
}

struct SeedCommand {
  std::string_view name;
  int (*run)(const std::vector<char*>& arguments);
};
constexpr std::array kSeedCommands{SeedCommand{kMgpuSrun, srun}, SeedCommand{kMgpuQueue, queue},
                                   SeedCommand{kMgpuCancel, cancel}, SeedCommand{kServer, scheduler_server}};

}  // namespace

int (*find_seed_command(std::string_view program))(const std::vector<char*>& arguments) {
  for (const SeedCommand& command : kSeedCommands) {
    if (command.name == program) return command.run;
  }
  return nullptr;
}

}  // namespace gpumux::cli
