// SPDX-License-Identifier: Apache-2.0
#include "cli/run/tenants_here.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "os/durable_file.h"
#include "os/runtime_dir.h"

namespace gpumux::cli {
namespace {

// client/agent.cc names it.
constexpr char kAgentThread[] = "gpumux-agent";

std::string line_of(const std::string& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// Processes and threads come and go while they are looked at.
std::vector<std::string> numbers_in(const std::string& folder) {
  std::vector<std::string> names = os::list_directory(folder).value_or(std::vector<std::string>());
  std::erase_if(names,
                [](const std::string& name) { return name.find_first_not_of("0123456789") != std::string::npos; });
  return names;
}

bool has_agent(const std::string& process) {
  const std::vector<std::string> threads = numbers_in(process + "/task");
  return std::any_of(threads.begin(), threads.end(), [&process](const std::string& thread) {
    return line_of(process + "/task/" + thread + "/comm") == kAgentThread;
  });
}

// Where the process looks for its daemon. Empty: this user may not know.
std::string runtime_dir_of(const std::string& process) {
  std::ifstream file(process + "/environ");
  if (!file) return {};
  constexpr std::string_view kVariable = "GPUMUX_RUNTIME_DIR=";
  for (std::string variable; std::getline(file, variable, '\0');) {
    if (variable.starts_with(kVariable)) return variable.substr(kVariable.size());
  }
  return os::kSystemRuntimeDir;
}

}  // namespace

std::vector<TenantHere> tenants_here(const std::string& runtime_dir) {
  std::vector<TenantHere> tenants;
  for (const std::string& pid : numbers_in("/proc")) {
    const std::string process = "/proc/" + pid;
    if (runtime_dir_of(process) == runtime_dir && has_agent(process))
      tenants.push_back({std::atoll(pid.c_str()), line_of(process + "/comm")});
  }
  return tenants;
}

std::string tenants_text(const std::vector<TenantHere>& tenants) {
  std::string text;
  for (const TenantHere& tenant : tenants)
    text += (text.empty() ? "" : ", ") + tenant.name + " (" + std::to_string(tenant.pid) + ")";
  return text;
}

}  // namespace gpumux::cli
