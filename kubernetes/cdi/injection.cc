// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/cdi/injection.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "os/installation.h"
#include "os/runtime_dir.h"

namespace gpumux::kubernetes {
namespace {

constexpr char kPreload[] = "LD_PRELOAD";

tl::unexpected<base::Error> invalid(std::string what) { return base::fail(base::Code::kInvalid, std::move(what)); }

bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; });
}

base::Status check_path(const std::string& path) {
  if (path.empty() || path.front() != '/') return invalid("'" + path + "' is not an absolute path");
  if (has_control_characters(path)) return invalid("'" + path + "' has control characters");
  if ((path + "/").find("/../") != std::string::npos) return invalid(path + " has .. in it; name the folder itself");
  return {};
}

base::Status check_variable(const Variable& variable) {
  const auto is_fit = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (variable.name.empty() || !std::all_of(variable.name.begin(), variable.name.end(), is_fit))
    return invalid("'" + variable.name + "' is no name of a variable");
  if (variable.value.find('\0') != std::string::npos) return invalid(variable.name + " has a zero byte in its value");
  return {};
}

}  // namespace

base::Result<Injection> make_injection(const Node& node, std::vector<Variable> variables, containers::Claim claim) {
  if (node.version.empty() || node.version.front() == '.' || node.version.find('/') != std::string::npos)
    return invalid("'" + node.version + "' is no name of a version's folder");
  Injection injection;
  injection.mounts = {
      {node.libraries, kLibrariesInside, Access::kExecute},
      {node.runtime_dir + "/" + os::kTenantDir, std::string(kRuntimeDirInside) + "/" + os::kTenantDir, Access::kRead}};
  injection.variables = std::move(variables);
  injection.variables.push_back({"GPUMUX_RUNTIME_DIR", kRuntimeDirInside});
  injection.library = std::string(kLibrariesInside) + "/" + node.version + "/" + os::kLibraryName;
  injection.records = node.runtime_dir + "/" + os::kContainersDir;
  injection.claim = std::move(claim);
  if (node.simulated) {
    injection.mounts.push_back({node.simulated->libraries, kSimulatedLibrariesInside, Access::kExecute});
    injection.mounts.push_back({node.simulated->machine, kSimulatedMachineInside, Access::kWrite});
    injection.variables.push_back({"LD_LIBRARY_PATH", kSimulatedLibrariesInside});
    injection.variables.push_back({"GPUMUX_SIM_DIR", kSimulatedMachineInside});
  }
  GPUMUX_TRY(check(injection));
  return injection;
}

base::Status check(const Injection& injection) {
  std::set<std::string> places, names;
  for (const Mount& mount : injection.mounts) {
    GPUMUX_TRY(check_path(mount.host_path));
    GPUMUX_TRY(check_path(mount.container_path));
    if (!places.insert(mount.container_path).second) return invalid(mount.container_path + " is mounted twice");
  }
  for (const Variable& variable : injection.variables) {
    GPUMUX_TRY(check_variable(variable));
    if (!names.insert(variable.name).second) return invalid(variable.name + " is set twice");
  }
  GPUMUX_TRY(check_path(injection.library));
  // The loader replaces $ORIGIN and its like, and ends an entry at the others.
  if (injection.library.find_first_of(" :#$") != std::string::npos)
    return invalid(injection.library + " has a character that the loader's list cannot hold");
  GPUMUX_TRY(check_path(injection.records));
  if (has_control_characters(injection.claim.uid)) return invalid("a claim's uid has control characters");
  return containers::check_claim(injection.claim);
}

base::Result<PlainInjection> environment_only(const Injection& injection) {
  Injection plain = injection;
  plain.variables.push_back({kPreload, injection.library});
  GPUMUX_TRY(check(plain));
  return PlainInjection{std::move(plain.mounts), std::move(plain.variables)};
}

}  // namespace gpumux::kubernetes
