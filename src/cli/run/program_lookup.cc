// SPDX-License-Identifier: Apache-2.0
#include "cli/run/program_lookup.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/split.h"
#include "cli/frame/command.h"
#include "os/installation.h"

namespace gpumux::cli {

FoundProgram look_for_program(const std::string& program, const std::string& directory) {
  FoundProgram found;
  int failure = ENOENT;
  const auto consider = [&](const std::string& path) {
    const std::string full = directory.empty() || path.starts_with('/') ? path : directory + "/" + path;
    struct stat status {};
    if (::stat(full.c_str(), &status) != 0) {
      if (errno == EACCES) failure = EACCES;
      return false;
    }
    if (S_ISDIR(status.st_mode) || ::access(full.c_str(), X_OK) != 0) {
      failure = S_ISDIR(status.st_mode) ? EISDIR : errno;
      return false;
    }
    found.path = full;
    found.is_setuid = (status.st_mode & (S_ISUID | S_ISGID)) != 0;
    return true;
  };
  if (program.find('/') != std::string::npos) {
    if (consider(program)) return found;
  } else if (!program.empty()) {
    const char* path_variable = std::getenv("PATH");
    for (const std::string_view dir : base::split(path_variable == nullptr ? "/bin:/usr/bin" : path_variable, ':')) {
      if (consider((dir.empty() ? "." : std::string(dir)) + "/" + program)) return found;
    }
  }
  found.why = program + ": " + (failure == ENOENT ? "no such program (see PATH)" : ::strerror(failure));
  found.exit_status = failure == ENOENT ? kExitNotFound : kExitNotExecutable;
  return found;
}

std::string own_command() {
  const auto dir = os::executable_dir();
  if (!dir) return "gpumux";
  const std::string own = *dir + "/gpumux";
  std::error_code failed;
  const bool is_this = std::filesystem::equivalent(look_for_program("gpumux").path, own, failed);
  return is_this ? "gpumux" : own;
}

}  // namespace gpumux::cli
