// SPDX-License-Identifier: Apache-2.0
// gpumux-kubelet-plugin's command line and variables. settings.table has the settings.
#pragma once

#include <functional>
#include <string>
#include <variant>

#include "settings/structs.gen.h"

namespace gpumux::kubernetes {

enum ExitCode { kExitStopped = 0, kExitFailed = 1, kExitUsage = 2 };

// Which of the kubelet's APIs the plugin serves.
enum class Api { kDevicePlugin, kDra };

// The task of this run of the program.
enum class Task {
  kServe,
  kCheck,    // only ask the plugin that runs
  kInstall,  // put hook and library on the host, and end
  kRemove,   // take them away, and end
};

struct PluginOptions {
  Api api = Api::kDevicePlugin;
  Task task = Task::kServe;
  settings::KubeletSettings settings;
  std::string runtime_dir;  // the daemon's
  // The API server, for dynamic resource allocation.
  std::string api_address{};
  std::string api_port{};
};

// The text to print and the code to exit with (--help, --version, errors).
struct EarlyExit {
  int exit_code = 0;
  std::string text;
  bool is_error = false;
};

using Environment = std::function<const char*(const char* name)>;

// An option goes before its variable, the variable before its alias.
std::variant<PluginOptions, EarlyExit> parse_options(int argc, const char* const* argv, const Environment& environment);

}  // namespace gpumux::kubernetes
