// SPDX-License-Identifier: Apache-2.0
// Environment variables with values that their reader refuses, or that no part of gpumux reads. settings.table has all.
#include <algorithm>
#include <span>

#include "cli/doctor/checks.h"
#include "cli/frame/command.h"
#include "settings/settings.h"
#include "settings/variables.gen.h"

namespace gpumux::cli {
namespace {

using settings::Reader;

struct Variable {
  std::string_view name;
  const settings::Type* type;
  Reader reader;
  std::string_view own_name;  // of an alias: the variable that wins
};

// Every variable of settings.table. The library's own come first: it reads one that the daemon has, too.
std::vector<Variable> all_variables() {
  std::vector<Variable> all;
  const auto add = [&](std::span<const settings::Setting> table) {
    for (const settings::Setting& setting : table) {
      if (!setting.variable.empty()) all.push_back({setting.variable, &setting.type, setting.reader, {}});
      if (!setting.alias.name.empty())
        all.push_back({setting.alias.name, &setting.alias.type, setting.reader, setting.variable});
    }
  };
  add(settings::kVariables);
  add(settings::kGpuSettings);
  add(settings::kQueueSettings);
  add(settings::kDaemonSettings);
  add(settings::kKubeletSettings);
  return all;
}

// The simulated driver's variables are its own business (sim/cuda has their table).
constexpr std::string_view kSimulatorPrefix = "GPUMUX_SIM_";

std::string what_the_reader_does(Reader reader) {
  switch (reader) {
    case Reader::kLibrary: return "programs ignore it and use the default";
    case Reader::kDaemon: return "a daemon that is started with it refuses to start";
    case Reader::kCommand: return "gpumux refuses it";
    case Reader::kPlugin: return "a gpumux-kubelet-plugin that is started with it refuses to start";
    case Reader::kNobody: return "nothing in this version reads it";
  }
  return {};
}

void check_known(const Variable& variable, const std::string& value, const Facts& facts, Findings& findings) {
  const std::string name(variable.name);
  const bool is_grave =
      variable.reader == Reader::kDaemon || variable.reader == Reader::kCommand || variable.reader == Reader::kPlugin;
  const bool is_good = settings::parse(*variable.type, name, value).has_value();
  if (is_good && variable.reader == Reader::kNobody) {
    findings.push_back({"environment", Level::kWarning, name + " is set, and has no effect",
                        what_the_reader_does(variable.reader), "unset it, unless it is there for another system"});
  }
  if (!is_good) {
    findings.push_back({"environment", is_grave ? Level::kProblem : Level::kWarning,
                        name + "=" + value + ": it must be " + std::string(variable.type->allowed),
                        what_the_reader_does(variable.reader), "correct it, or unset " + name});
  }
  const auto own = facts.environment.find(std::string(variable.own_name));
  if (own != facts.environment.end() && !own->second.empty()) {
    findings.push_back({"environment", Level::kWarning,
                        name + " and " + std::string(variable.own_name) + " are both set",
                        std::string(variable.own_name) + " wins", "unset " + name});
  }
  if (variable.name == "GPUMUX_DISABLE" && value != "0") {
    findings.push_back({"environment", Level::kWarning, "GPUMUX_DISABLE=" + value,
                        "the library stands aside: programs run without gpumux", "unset GPUMUX_DISABLE"});
  }
}

}  // namespace

void check_environment(const Facts& facts, Findings& findings) {
  const std::size_t before = findings.size();
  const std::vector<Variable> variables = all_variables();
  std::vector<std::string_view> names;
  for (const Variable& variable : variables) names.push_back(variable.name);
  for (const auto& [name, value] : facts.environment) {
    if (value.empty()) continue;  // counts as unset
    const auto known =
        std::find_if(variables.begin(), variables.end(), [&name = name](const Variable& v) { return v.name == name; });
    if (known != variables.end()) {
      check_known(*known, value, facts, findings);
      continue;
    }
    const bool ours = name.starts_with("GPUMUX_") || name.starts_with("NVSHARE_") || name.starts_with("CUDA_OVERRIDE_");
    if (!ours || name.starts_with(kSimulatorPrefix)) continue;
    const std::string_view guess = nearest(name, names);
    findings.push_back({"environment", Level::kWarning, "nothing reads " + name,
                        "it is misspelt, or of another version",
                        guess.empty() ? "unset it" : "did you mean " + std::string(guess) + "?"});
  }
  if (findings.size() == before) findings.push_back({"environment", Level::kOk, "no variable has a bad value"});
}

}  // namespace gpumux::cli
