// SPDX-License-Identifier: Apache-2.0
// Lists of libraries to preload: LD_PRELOAD's (separated by spaces or colons) and /etc/ld.so.preload's text (also by
// newlines, with # comments).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpumux::os {

std::vector<std::string> preload_entries(std::string_view list);

// Whether the list has libgpumux.so, wherever that lies.
bool names_library(std::string_view list);

// Whether the loader puts libgpumux.so into every program of this machine: /etc/ld.so.preload names it.
bool is_preloaded_everywhere();

// LD_PRELOAD's new value: `library`, then what was there, less other files of its name: two copies of libgpumux.so in
// one process would wait for each other's leases.
std::string compose_preload(std::string_view existing, std::string_view library);

}  // namespace gpumux::os
