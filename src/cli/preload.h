// SPDX-License-Identifier: Apache-2.0
// libgpumux.so: where it is, whether the loader will take it, and how it gets into LD_PRELOAD.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpumux::cli {

inline constexpr char kLibraryName[] = "libgpumux.so";

// The directory of the running executable, links resolved.
base::Result<std::string> executable_dir();

// Where the library is looked for, in order, when GPUMUX_LIBRARY does not name it: beside an executable in `dir` (build
// tree, dist/, /usr/local), then where packages put it.
std::vector<std::string> library_places(const std::string& dir);

// The first file of library_places(dir), or what GPUMUX_LIBRARY names, as an absolute path. kNotFound names the places.
base::Result<std::string> find_library(const std::string& dir);

// Whether the dynamic loader would take it into this machine's programs: an ELF shared object for the same machine,
// that needs no newer glibc than the one here, at a path that LD_PRELOAD can name (no space, no colon).
base::Status check_preloadable(const std::string& library);

// LD_PRELOAD's new value: `library`, then what was there (separated by spaces or colons), less other copies of
// libgpumux.so, for two of them in one process would wait for each other's leases.
std::string compose_preload(std::string_view existing, const std::string& library);

// The entries of such a list, or of /etc/ld.so.preload's text.
std::vector<std::string> preload_entries(std::string_view list);

// Whether a list of libraries (LD_PRELOAD, /etc/ld.so.preload: separated by spaces, colons or newlines, with #
// comments) has libgpumux.so.
bool names_library(std::string_view list);

}  // namespace gpumux::cli
