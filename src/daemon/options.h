// SPDX-License-Identifier: Apache-2.0
// gpumuxd's command line.
#pragma once

#include <string>
#include <variant>

#include "daemon/daemon.h"

namespace gpumux::daemon {

struct ParsedOptions {
  DaemonOptions daemon;
  bool check_config = false;
  bool restart_on_failure = false;
  std::string nvml_path;  // GPUMUX_NVML
};

// Ready to run, or a text to print and an exit status (--help, --version, errors).
struct EarlyExit {
  int exit_code = 0;
  std::string text;
  bool is_error = false;
};

// Reads the command line, then the configuration that it points to, then the environment.
std::variant<ParsedOptions, EarlyExit> parse_options(int argc, const char* const* argv, const Environment& environment);

}  // namespace gpumux::daemon
