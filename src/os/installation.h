// SPDX-License-Identifier: Apache-2.0
// Where gpumux's own files are.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace gpumux::os {

inline constexpr char kLibraryName[] = "libgpumux.so";

// The directory of the running executable, links resolved.
base::Result<std::string> executable_dir();

// The places of the library, in order, if GPUMUX_LIBRARY does not name it. First the folder of an executable in `dir`
// (build tree, dist/, /usr/local), then where packages put it.
std::vector<std::string> library_places(const std::string& dir);

// The first file of library_places(dir), or the one that GPUMUX_LIBRARY names, as an absolute path. kNotFound names the
// places.
base::Result<std::string> find_library(const std::string& dir);

// A program that only other programs of ours start, by its file name. Places: the folder of an executable in `dir`
// (build tree), ../libexec/gpumux from there, and where installations put it. kNotFound names the places.
base::Result<std::string> find_own_program(const std::string& dir, const std::string& name);

// Where a user's own daemon keeps jobs: GPUMUX_STATE_DIR, else in XDG_STATE_HOME, else in the user's home. Empty: the
// user has none. `environment`: as getenv.
std::string private_state_dir(const std::function<const char*(const char*)>& environment);

// Whether `systemctl start gpumuxd` can work: systemd runs, and has the unit. `root`: where the file system begins.
bool has_system_unit(const std::string& root = "");

}  // namespace gpumux::os
