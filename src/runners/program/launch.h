// SPDX-License-Identifier: Apache-2.0
// The last steps to the job's command, with the job's user's rights: its environment, the set-up command's shell, exec.
//
// Without a set-up command there is no shell: run_command() sets the late variables and executes the command. With one,
// run_setup() executes `bash -l`. That runs the set-up command and then executes this same program again, by a
// descriptor. The user may not reach the program's path, and the path may be another version's by now. launch_main()
// then reads the rest of the work from another descriptor and goes on as run_command(). So the command's arguments
// never pass through a shell. The set-up command does not see them as its own: "$@" is empty, as sourced scripts expect
// it. And its variables can be joined with the late variables exactly.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "wire/runner_records.h"

namespace gpumux::runners {

// The argument with which the program is run again after the set-up command.
inline constexpr char kLaunchArgument[] = "--launch";

// Descriptors that are open in the set-up command's shell besides its standard streams. High enough to be out of the
// way of scripts, and of bash, which takes from 10 up and 255. The limit on descriptors must be above them.
inline constexpr int kReportFd = 61;
inline constexpr int kProgramFd = 62;
inline constexpr int kRemainderFd = 63;

// The environment after the late variables, in the order of the given one.
std::vector<std::string> join_environment(std::vector<std::string> environment,
                                          const std::vector<wire::LateVariable>& late);

// Executes the command, or reports why not, says so on standard error, and ends with 125, 126 or 127.
[[noreturn]] void run_command(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                              int report);

// Executes the set-up command's shell, then the command. `program`: this program, open for reading.
[[noreturn]] void run_setup(const wire::RunnerSpec& spec, int report, int program);

// main() when run with kLaunchArgument.
[[noreturn]] void launch_main();

// Tells the supervisor and the readers of the log, then ends the process.
[[noreturn]] void end_unstarted(int report, std::uint32_t code, const std::string& why);

}  // namespace gpumux::runners
