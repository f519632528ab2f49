// SPDX-License-Identifier: Apache-2.0
// gpumux submit: hands in a job, once, and says which it has become.
#include <iostream>

#include "cli/frame/command.h"
#include "cli/frame/terminal.h"
#include "cli/jobs/interactive.h"
#include "cli/jobs/job_calls.h"
#include "cli/jobs/job_view.h"
#include "cli/jobs/submission.h"
#include "cli/run/run_arguments.h"

namespace gpumux::cli {
namespace {

constexpr char kSubmitName[] = "submit";
constexpr char kSubmitUsage[] = "gpumux submit [OPTIONS] [--] COMMAND [ARGUMENTS...]";

constexpr char kFooter[] =
    R"(The command runs as you, in this directory, with this environment and exactly these arguments. No shell is around
it, except with --env-setup-cmd. Its output goes to its log: see `gpumux logs`. The job sees its GPUs as cuda:0 and so
on, in the order in which you name them.

A time limit is a context switch: if the limit is over and other jobs wait, the job is suspended, and goes on later.

Examples:
  gpumux submit -- python train.py --epochs 3
  gpumux submit --gpus 2 --mem 20G --time-limit 1h30m -- torchrun train.py
  gpumux submit --env-setup-cmd "source venv/bin/activate" -- python train.py
  gpumux submit --array 0-9%2 --output 'run-%a.log' -- ./sweep.sh
  gpumux submit --after 17 -- python evaluate.py
  gpumux submit --begin 20:00 --export ALL,BATCH=64 -- ./night.sh
  gpumux submit --interactive -- python      # Ctrl+C detaches; the job goes on
  id=$(gpumux submit --quiet -- ./job.sh) && gpumux wait "$id"

With --interactive and --wait the exit status is the job's (of an array: the first that is not 0), 1 if it has none and
did not end well, 130 if you have detached. Otherwise, and before that: 0 submitted, 1 failed, 2 wrong usage, 3 no
daemon and none could be started, 4 not allowed.)";

struct Printing {
  bool quiet = false;
  bool json = false;
};

void add_options(CLI::App& app, SubmitWishes& wishes) {
  auto* gpus = add_text(app, "-G,--gpus", "N", wishes.gpus, "Number of GPUs, any of them (default 1)");
  add_text(app, "--gpu-ids", "IDS", wishes.gpu_ids, "These GPUs, in this order, such as 0,2")->excludes(gpus);
  add_text(app, "--mem", "BYTES", wishes.memory,
           "Memory on each GPU, such as 20G or 800M; the job may have no more than that");
  auto* limit =
      add_text(app, "--time-limit", "TIME", wishes.time_limit,
               "Run this long before other jobs have their turn, such as 600 (seconds), 1:30:00 or 2-12:00:00");
  add_text(app, "-t", "MINUTES", wishes.minutes_limit, "The same as Slurm has it: a bare number is in minutes")
      ->excludes(limit);
  add_text(app, "--on-time-limit", "WHAT", wishes.on_time_limit,
           "At the time limit (default suspend): suspend or cancel");
  add_text(app, "--priority", "N", wishes.priority,
           "Higher runs first among your own jobs, and among all jobs up to the queue's priority_cap (default 0)");
  app.add_option("-J,--name,--job-name", wishes.name, "Show the job under this name (default: the program's)")
      ->type_name("NAME");
  app.add_option("--env-setup-cmd", wishes.setup_command,
                 "A shell command that runs before the job's command, in bash -l")
      ->type_name("COMMAND");
  add_text(app, "-o,--output", "PATTERN", wishes.output,
           "The log, with %j for the job's id, %u the user, %n the name, %a the array's element");
  add_text(app, "-e,--error", "PATTERN", wishes.error,
           "A file for standard error, which otherwise goes to the log; as --output");
  app.add_flag("--append", wishes.append, "Append to the log instead of replacing it");
  app.add_flag("--exclusive", wishes.exclusive, "Run no other job on the same GPUs");
  app.add_flag_callback(
      "--mps", [&wishes] { wishes.variables.emplace_back("GPUMUX_USE_MPS", "on"); },
      "Share the GPU through NVIDIA's MPS: kernels of your programs run side by side, and a fault of one hits all");
  app.add_option("-d,--after,--dependency", wishes.after,
                 "Start when job ID has ended with status 0 (ok:ID, or ID), or at all (any:ID); may be given several "
                 "times")
      ->type_name("CONDITION")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_text(app, "-a,--array", "LIST", wishes.array,
           "Submit one job for each of these numbers, such as 0-9, 1,3,7 or 0-99%4 (4 at once)");
  app.add_flag("--interactive", wishes.interactive, "Give the job a terminal, and attach yours to it");
  auto* home = app.add_flag("--home", wishes.home, "Run the job in your home directory instead of this one");
  add_text(app, "-D,--chdir", "DIR", wishes.directory, "Run the job in DIR instead of this directory")->excludes(home);
  add_text(app, "--export", "LIST", wishes.exported,
           "What of the environment goes along: ALL (the default), NONE, or NAME[=VALUE] with commas between them");
  add_text(app, "-b,--begin", "TIME", wishes.begin, "Do not start the job before: now+1hour, 16:00, 2026-12-01T08:00");
  app.add_flag("--requeue", wishes.requeue, "Run the job again if it is lost, for example when the machine restarts");
  app.add_flag("-H,--hold", wishes.held, "Do not start the job before `gpumux release`");
}

void print_submitted(const api_client::Client& client, const api_client::Submitted& submitted, const Printing& how,
                     bool interactive) {
  if (how.json) {
    std::cout << json_for(look_at_stdout(), submitted.text);
  } else if (how.quiet) {
    std::cout << submitted.id << "\n";
  } else {
    std::cout << "Submitted " << describe_submitted(submitted) << "\n";
    // For a person who looks at it; the first line is for scripts too.
    if (look_at_stdout().terminal && !interactive) {
      if (const auto job = client.job(std::to_string(submitted.id)); job && !job->log.empty()) {
        std::cout << (submitted.count > 1 ? "Output of " + job_label(*job) : "Its output") << ": "
                  << printable(job->log) << "  (gpumux logs -f " << job_label(*job) << ")\n";
      }
    }
  }
  std::cout << std::flush;
}

int wait_for_all(const api_client::Client& client, std::uint64_t id, Progress progress) {
  const auto jobs = named_jobs(client, std::to_string(id));
  if (!jobs) return report_error(kSubmitName, jobs.error());
  return wait_for_jobs(kSubmitName, PatientClient(find_jobs_again(client)), *jobs, progress);
}

}  // namespace

int submit_command(const std::vector<char*>& arguments) {
  SubmitWishes wishes;
  Printing printing;
  bool wait = false;
  std::string keys;
  CLI::App app("Submits a job: a command that runs when the GPUs that it needs have room for it.", "gpumux submit");
  add_options(app, wishes);
  add_text(app, "--detach-keys", "KEYS", keys,
           "With --interactive: leave by these keys, such as ctrl-p,ctrl-q; Ctrl+C then goes to the job");
  app.add_flag("-W,--wait", wait,
               "Return when the job is done, with its exit status. On a terminal a line says how it stands");
  auto* quiet =
      app.add_flag("-q,--quiet", printing.quiet, "Print only the job's id; with --wait, no line while it waits");
  app.add_flag("--json", printing.json, "Print the daemon's answer (docs/api.md, POST /v1/jobs)")->excludes(quiet);
  app.footer(kFooter);
  const SplitArguments split = split_run_arguments(arguments, options_with_value(app));
  if (const auto exit_status = parse_command_line(app, split.options, kSubmitUsage)) return *exit_status;

  const auto detach_keys = keys.empty() ? DetachKeys() : DetachKeys::parse(keys);
  if (!detach_keys || (!keys.empty() && !wishes.interactive))
    return usage_error(kSubmitName, "--detach-keys: " + (detach_keys ? "only a job with --interactive can be left"
                                                                     : detach_keys.error().message()));
  auto submission = make_submission(wishes, split.program);
  if (!submission) {
    say_error(kSubmitName, submission.error().message());
    return submission.error().code == base::Code::kInvalid ? kExitUsage : kExitFailed;
  }
  auto client = find_or_start_client();
  if (!client) return report_error(kSubmitName, client.error());
  if (const auto resolved = resolve_dependencies(*client, wishes.after, *submission); !resolved)
    return report_error(kSubmitName, resolved.error());
  const auto submitted = submit_persistently(*submission, find_or_start_client);
  if (!submitted) return report_error(kSubmitName, submitted.error());
  // Not before: the daemon may refuse the job for another reason, and that is what counts then.
  for (const std::string& doubt : doubts_about(*submission))
    say_error(kSubmitName,
              "warning: " + doubt + ". The job is submitted all the same, and fails if this does not change");
  if (const std::string cap = describe_cap(submission->priority.value_or(0), submitted->priority_capped); !cap.empty())
    say_error(kSubmitName, "note: " + cap);
  print_submitted(*client, *submitted, printing, wishes.interactive);
  if (wishes.interactive)
    return attach_to_job(kSubmitName, std::to_string(submitted->id), find_jobs_again(*client), *detach_keys);
  if (!wait) return kExitOk;
  return wait_for_all(*client, submitted->id, printing.quiet ? Progress::kSilent : Progress::kShown);
}

}  // namespace gpumux::cli
