// SPDX-License-Identifier: Apache-2.0
// gpumux: finds the command that was named and runs it. Under another name (a link to it) it is that name's command.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <exception>
#include <iomanip>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/doctor/probe.h"
#include "cli/frame/command.h"
#include "cli/frame/terminal.h"
#include "cli/run/simulated_machine.h"
#include "os/standard_descriptors.h"

namespace gpumux::cli {
namespace {

constexpr std::array kCommands{
    Command{"run", "Run a program under gpumux", run_command},
    Command{"status", "Show GPUs, the programs that hold and wait for them, and why", status_command},
    Command{"top", "Show GPUs, programs and jobs on the whole terminal", top_command},
    Command{"set", "Change mode, policy, quantum and limits of GPUs", set_command},
    Command{"trace", "Show which program held which GPU when", trace_command},
    Command{"doctor", "Check this installation and say what to do", doctor_command},
    Command{"submit", "Submit a job", submit_command},
    Command{"queue", "Show running and waiting jobs, and why they wait", queue_command},
    Command{"show", "Show everything about a job", show_command},
    Command{"cancel", "End jobs", cancel_command},
    Command{"logs", "Show what a job prints", logs_command},
    Command{"attach", "Connect your terminal with an interactive job", attach_command},
    Command{"wait", "Wait until jobs are done, and exit with their status", wait_command},
    Command{"hold", "Keep waiting jobs from starting", hold_command},
    Command{"release", "Let held jobs wait for their turn again", release_command},
    Command{"suspend", "Suspend running jobs until they are resumed", suspend_command},
    Command{"resume", "Let suspended jobs go on", resume_command},
    Command{"requeue", "End jobs and let them run again", requeue_command},
    Command{"history", "Show finished jobs", history_command},
    Command{"report", "Show what users, jobs, pods and programs have had of GPUs", report_command},
    Command{"admin", "Pause the queue, drain GPUs, set limits of users", admin_command},
#ifdef GPUMUX_HAS_WEB
    Command{"web", "Show GPUs, programs and jobs in a browser", web_command},
#endif
    Command{"version", "Print the version", version_command},
};

void print_help(std::ostream& out) {
  out << "gpumux lets many unmodified CUDA programs share GPUs.\n\nUsage: gpumux COMMAND [OPTIONS]\n\nCommands:\n";
  for (const Command& command : kCommands) {
    out << "  " << std::left << std::setw(10) << command.name << command.summary << "\n";
  }
  out << "\n`gpumux COMMAND --help` explains a command, with examples and its exit statuses.\n"
         "`gpumux --simulated COMMAND` works on simulated GPUs, which need no hardware.\n\n"
         "Try it:\n  gpumux run -- python train.py\n  gpumux status --watch\n"
         "  gpumux submit -- python train.py\n  gpumux queue\n\n"
         "Exit status: 0 done, 1 failed, 2 wrong usage, 3 no daemon is running, 4 not\nallowed.\n";
}

const Command* find_command(std::string_view name) {
  for (const Command& command : kCommands) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

// Words that other tools have for it.
constexpr std::pair<std::string_view, std::string_view> kOtherWords[] = {
    {"jobs", "queue"},  {"list", "queue"},    {"ls", "queue"},       {"squeue", "queue"},  {"ps", "status"},
    {"stop", "cancel"}, {"kill", "cancel"},   {"scancel", "cancel"}, {"sbatch", "submit"}, {"tail", "logs"},
    {"srun", "run"},    {"sacct", "history"}, {"scontrol", "show"}};

int unknown_command(std::string_view name) {
#ifndef GPUMUX_HAS_WEB
  if (name == "web") return usage_error("", "this gpumux was built without `gpumux web` (GPUMUX_WEB=OFF)");
#endif
  std::vector<std::string_view> names;
  for (const Command& command : kCommands) names.push_back(command.name);
  const auto* const known = std::find_if(std::begin(kOtherWords), std::end(kOtherWords),
                                         [&](const auto& word) { return word.first == name; });
  const std::string_view guess = known != std::end(kOtherWords) ? known->second : nearest(name, names);
  std::string text = "there is no command '" + std::string(name) + "'";
  text += guess.empty() ? ". `gpumux help` lists the commands." : ". Did you mean `gpumux " + std::string(guess) + "`?";
  return usage_error("", text);
}

int help_command(const std::vector<char*>& arguments) {
  const std::string_view topic = arguments.empty() || arguments[0] == nullptr ? "" : arguments[0];
  if (topic.empty() || topic == "help" || topic == "--help" || topic == "-h") {
    print_help(std::cout);
    return kExitOk;
  }
  const Command* command = find_command(topic);
  if (command == nullptr) return unknown_command(topic);
  char help[] = "--help";
  return command->run({help, nullptr});
}

// gpumux --simulated COMMAND: the command starts anew on the simulated machine, for the loader reads LD_LIBRARY_PATH
// only when a program starts.
int simulated_command(const std::vector<char*>& words) {
  if (words[0] == nullptr) return usage_error("", "--simulated needs a command, such as `gpumux --simulated status`");
  const std::string_view first = words[0];
  if (first == "help" || first == "--help" || first == "-h") return help_command({words.begin() + 1, words.end()});
  if (find_command(first) == nullptr) return unknown_command(first);
  if (const base::Status ready = use_simulated_machine(); !ready) return report_error("--simulated", ready.error());
  std::string name = "gpumux";
  std::vector<char*> arguments{name.data()};
  arguments.insert(arguments.end(), words.begin(), words.end());
  ::execv("/proc/self/exe", arguments.data());
  return report_error("--simulated", base::fail_errno(errno, "cannot execute /proc/self/exe").value());
}

int dispatch(const std::vector<char*>& words) {
  if (words.empty() || words[0] == nullptr) {
    print_help(std::cerr);
    return kExitUsage;
  }
  const std::string_view name = words[0];
  const std::vector<char*> arguments(words.begin() + 1, words.end());
  if (name == "help" || name == "--help" || name == "-h") return help_command(arguments);
  if (name == "--version" || name == "-V") return version_command({nullptr});
  if (name == "--simulated") return simulated_command(arguments);
  if (name == kPreloadProbe) return preload_probe_command(arguments);
  if (name == kComplete) return complete_command(arguments);
  const Command* command = find_command(name);
  return command == nullptr ? unknown_command(name) : command->run(arguments);
}

// The buffer may still have output, and a full disk is seen when that is written. A command whose output is lost has
// failed.
int written(int status) {
  errno = 0;
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  const int failed = report_error("", base::fail_errno(errno, "cannot write to the standard output").value());
  return status == kExitOk ? failed : status;
}

int run(int argc, char** argv) {
  std::string_view program = argc > 0 ? argv[0] : "";
  program.remove_prefix(program.rfind('/') == std::string_view::npos ? 0 : program.rfind('/') + 1);
  // argv ends with a null pointer, which is kept: `gpumux run` hands it on.
  const std::vector<char*> words(argv + (argc > 0 ? 1 : 0), argv + argc + 1);
  auto* const seed_command = find_seed_command(program);
  return written(seed_command != nullptr ? seed_command(words) : dispatch(words));
}

}  // namespace
}  // namespace gpumux::cli

int main(int argc, char** argv) {
  gpumux::os::fill_standard_descriptors();
  // Only for the widths of characters on the terminal; a missing locale leaves them at one column each.
  std::setlocale(LC_CTYPE, "C.UTF-8");
  try {
    return gpumux::cli::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "gpumux: internal error: " << gpumux::cli::printable(error.what()) << "\n";
    return gpumux::cli::kExitFailed;
  }
}
