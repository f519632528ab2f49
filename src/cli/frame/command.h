// SPDX-License-Identifier: Apache-2.0
// The parts of every command of `gpumux`: its entry in the table that main.cc dispatches on, its exit status, its
// command line and its errors.
//
// A new command is a cmd_NAME.cc with a run function and one line in kCommands (main.cc).
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "settings/setting.h"

namespace gpumux::cli {

// Exit statuses, the same for every command; documented in docs/cli.md.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNoDaemon = 3;
inline constexpr int kExitDenied = 4;
inline constexpr int kExitNotExecutable = 126;  // as shells have it
inline constexpr int kExitNotFound = 127;

struct Command {
  std::string_view name;
  std::string_view summary;
  // `arguments` are the words after the command's name. It ends, as argv does, with a null pointer (not counted in its
  // size).
  int (*run)(const std::vector<char*>& arguments);
};

int run_command(const std::vector<char*>& arguments);      // gpumux run
int status_command(const std::vector<char*>& arguments);   // gpumux status
int top_command(const std::vector<char*>& arguments);      // gpumux top
int set_command(const std::vector<char*>& arguments);      // gpumux set
int trace_command(const std::vector<char*>& arguments);    // gpumux trace
int doctor_command(const std::vector<char*>& arguments);   // gpumux doctor
int submit_command(const std::vector<char*>& arguments);   // gpumux submit
int queue_command(const std::vector<char*>& arguments);    // gpumux queue
int show_command(const std::vector<char*>& arguments);     // gpumux show
int cancel_command(const std::vector<char*>& arguments);   // gpumux cancel
int logs_command(const std::vector<char*>& arguments);     // gpumux logs
int attach_command(const std::vector<char*>& arguments);   // gpumux attach
int wait_command(const std::vector<char*>& arguments);     // gpumux wait
int hold_command(const std::vector<char*>& arguments);     // gpumux hold
int release_command(const std::vector<char*>& arguments);  // gpumux release
int suspend_command(const std::vector<char*>& arguments);  // gpumux suspend
int resume_command(const std::vector<char*>& arguments);   // gpumux resume
int requeue_command(const std::vector<char*>& arguments);  // gpumux requeue
int history_command(const std::vector<char*>& arguments);  // gpumux history
int report_command(const std::vector<char*>& arguments);   // gpumux report
int admin_command(const std::vector<char*>& arguments);    // gpumux admin
int web_command(const std::vector<char*>& arguments);      // gpumux web: web/command.cc
// The program's command under another name (mgpu_srun, mgpu_queue, mgpu_cancel, mgpu_scheduler_server); null: none.
int (*find_seed_command(std::string_view program))(const std::vector<char*>& arguments);

int version_command(const std::vector<char*>& arguments);  // gpumux version

// A hidden command: the completions of shells ask it for the values of a word.
inline constexpr char kComplete[] = "__complete";
int complete_command(const std::vector<char*>& arguments);

// Reads a command line into what `app` has bound. A value: the command is over, with this exit status (help was shown,
// or the usage was wrong and that was said).
// `usage` replaces the line that CLI11 makes of the options.
std::optional<int> parse_command_line(CLI::App& app, const std::vector<char*>& arguments, std::string_view usage = "");

// For options whose absence has a meaning of its own. So --gpu-ids "$GPUS" with an empty GPUS is a mistake, and does
// not ask for any GPU.
CLI::Validator not_empty();
// CLI11 by itself takes -1 for the largest number that there is.
CLI::Validator whole_number(std::uint64_t least);

// An option with one value, which is not_empty(). `names` as CLI11 has them: "-o,--output".
CLI::Option* add_text(CLI::App& app, const char* names, const char* placeholder, std::string& value,
                      const char* sentence);

// The jobs that a command is about.
CLI::Option* add_job_ids(CLI::App& app, std::vector<std::string>& ids);

// --runtime-dir DIR, of every command that asks a daemon.
void add_runtime_dir(CLI::App& app, std::string& runtime_dir);

// "gpumux COMMAND: the error" on stderr (the command alone if it is a program's name, as mgpu_srun is). Gives the exit
// status for the error's code.
int report_error(std::string_view command, const base::Error& error);
int exit_status_of(base::Code code);

// The text on stderr, made printable and in lines that a terminal shows whole.
void say_error(std::string_view command, std::string_view text);

// The same, of a command line that is wrong: gives kExitUsage.
int usage_error(std::string_view command, std::string_view text);

using settings::nearest;

}  // namespace gpumux::cli
