// SPDX-License-Identifier: Apache-2.0
#include "cli/run/simulated_machine.h"

#include <limits.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>
#include <vector>

#include "os/installation.h"
#include "os/runtime_dir.h"

namespace gpumux::cli {
namespace {

using base::Code;
using base::Result;
using base::Status;

constexpr std::string_view kSubdirectory = "/simulated";
constexpr char kSuffix[] = "-simulated";
// Where the simulated driver keeps a machine if GPUMUX_SIM_DIR is not set; the user's number follows (sim/cuda).
constexpr char kSimulatedMachine[] = "/dev/shm/gpumux-sim-";

// The first of `places`, relative to the executable's directory, that has `file`; as an absolute path.
Result<std::string> find_beside_executable(const std::vector<std::string>& places, const std::string& file) {
  const auto dir = os::executable_dir();
  if (!dir) return tl::unexpected(dir.error());
  std::string looked;
  for (const std::string& place : places) {
    const std::string folder = *dir + place;
    char absolute[PATH_MAX];
    if (::access((folder + "/" + file).c_str(), R_OK) == 0 && ::realpath(folder.c_str(), absolute) != nullptr)
      return std::string(absolute);
    looked += (looked.empty() ? "" : ", ") + folder;
  }
  return base::fail(Code::kNotFound, file + " was not found in " + looked + ": install gpumux again");
}

}  // namespace

Status use_simulated_machine() {
  // Where tools/install.sh, dist/ and the build tree have it.
  const auto driver = find_beside_executable({"/../lib/gpumux/sim", "/../sim", "/../lib/sim"}, "libcuda.so.1");
  if (!driver) return tl::unexpected(driver.error());
  const char* named = std::getenv("GPUMUX_RUNTIME_DIR");
  if (named != nullptr && std::string_view(named).ends_with(kSubdirectory)) return {};

  const auto users = os::make_user_runtime_dir();
  if (!users) return tl::unexpected(users.error());
  const std::string runtime_dir = *users + std::string(kSubdirectory);
  GPUMUX_TRY(os::make_own_dir(runtime_dir, 0700));
  ::setenv("GPUMUX_RUNTIME_DIR", runtime_dir.c_str(), 1);
  if (const std::string jobs = os::private_state_dir(::getenv); !jobs.empty())
    ::setenv("GPUMUX_STATE_DIR", (jobs + kSuffix).c_str(), 1);
  const char* machine = std::getenv("GPUMUX_SIM_DIR");
  const bool is_named = machine != nullptr && machine[0] != '\0';
  const std::string users_machine = is_named ? machine : kSimulatedMachine + std::to_string(::geteuid());
  ::setenv("GPUMUX_SIM_DIR", (users_machine + kSuffix).c_str(), 1);
  const char* existing = std::getenv("LD_LIBRARY_PATH");
  const std::string rest = existing == nullptr || existing[0] == '\0' ? "" : std::string(":") + existing;
  ::setenv("LD_LIBRARY_PATH", (*driver + rest).c_str(), 1);
  return {};
}

Result<std::string> find_demo_program() {
  constexpr char kProgram[] = "gpumux_demo";
  const auto folder = find_beside_executable({"/../libexec/gpumux", "/../demo", ""}, kProgram);
  if (!folder) return tl::unexpected(folder.error());
  return *folder + "/" + kProgram;
}

}  // namespace gpumux::cli
