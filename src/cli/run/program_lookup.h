// SPDX-License-Identifier: Apache-2.0
// Whether a program can be executed, found as execvp and shells find it.
#pragma once

#include <string>

namespace gpumux::cli {

struct FoundProgram {
  std::string path;     // of what was found
  int exit_status = 0;  // 0: it can, as far as can be seen; else the exit status of a shell
  std::string why;      // why not
  bool is_setuid = false;
};

// `directory`: from where paths count that are not absolute; empty: the current one.
FoundProgram look_for_program(const std::string& program, const std::string& directory = "");

// The command by which a user runs this gpumux, after `mgpu_srun` too: `gpumux` if that name finds it, else its path.
std::string own_command();

}  // namespace gpumux::cli
