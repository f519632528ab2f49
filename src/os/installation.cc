// SPDX-License-Identifier: Apache-2.0
#include "os/installation.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace gpumux::os {
namespace {

using base::Code;
using base::Result;

std::string absolute(const std::string& path) {
  char buffer[PATH_MAX];
  const char* resolved = ::realpath(path.c_str(), buffer);
  return resolved == nullptr ? path : std::string(resolved);
}

bool is_regular_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

}  // namespace

Result<std::string> executable_dir() {
  char buffer[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", buffer, sizeof buffer);
  if (length <= 0) return base::fail_errno(errno, "cannot read /proc/self/exe (is /proc mounted?)");
  const std::string path(buffer, static_cast<std::size_t>(length));
  const std::size_t slash = path.rfind('/');
  return slash == 0 ? std::string("/") : path.substr(0, slash);
}

std::vector<std::string> library_places(const std::string& dir) {
  const std::string name = kLibraryName;
  return {dir + "/" + name,
          dir + "/../lib/" + name,
          dir + "/../lib/gpumux/" + name,
          dir + "/../lib64/gpumux/" + name,
          "/usr/local/lib/gpumux/" + name,
          "/usr/lib/gpumux/" + name};
}

Result<std::string> find_library(const std::string& dir) {
  const char* named = std::getenv("GPUMUX_LIBRARY");
  if (named != nullptr && named[0] != '\0') {
    if (is_regular_file(named)) return absolute(named);
    return base::fail(Code::kNotFound,
                      "GPUMUX_LIBRARY names " + std::string(named) +
                          ", and there is no such file: correct it, or unset it to use the installed library");
  }
  std::string looked;
  for (const std::string& place : library_places(dir)) {
    if (is_regular_file(place)) return absolute(place);
    looked += (looked.empty() ? "" : ", ") + place;
  }
  return base::fail(Code::kNotFound, std::string(kLibraryName) + " was not found (looked at " + looked +
                                         "): install gpumux again, or name the library in GPUMUX_LIBRARY");
}

Result<std::string> find_own_program(const std::string& dir, const std::string& name) {
  std::string looked;
  for (const std::string& folder : {dir, dir + "/../libexec/gpumux", std::string("/usr/local/libexec/gpumux"),
                                    std::string("/usr/libexec/gpumux")}) {
    std::string place = folder + "/" + name;
    if (::access(place.c_str(), X_OK) == 0) return place;
    looked += (looked.empty() ? "" : ", ") + place;
  }
  return base::fail(Code::kNotFound, name + " was not found (looked at " + looked + "): install gpumux again");
}

std::string private_state_dir(const std::function<const char*(const char*)>& environment) {
  if (const char* named = environment("GPUMUX_STATE_DIR"); named != nullptr && named[0] != '\0') return named;
  if (const char* xdg = environment("XDG_STATE_HOME"); xdg != nullptr && xdg[0] == '/')
    return std::string(xdg) + "/gpumux/queue";
  const char* home = environment("HOME");
  return home != nullptr && home[0] == '/' ? std::string(home) + "/.local/state/gpumux/queue" : "";
}

bool has_system_unit(const std::string& root) {
  struct stat status {};
  if (::stat((root + "/run/systemd/system").c_str(), &status) != 0) return false;
  for (const char* folder : {"/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib"}) {
    if (is_regular_file(root + folder + "/systemd/system/gpumuxd.service")) return true;
  }
  return false;
}

}  // namespace gpumux::os
