// SPDX-License-Identifier: Apache-2.0
// Lists of libraries to preload, read as glibc's loader reads them: the variable LD_PRELOAD, and the file
// /etc/ld.so.preload. The two have different separators, and only the file has comments.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpumux::os {

// Of LD_PRELOAD's value.
std::vector<std::string> variable_entries(std::string_view value);

// Of the file's text. REQUIRES: no zero byte, which ends the list for the loader.
std::vector<std::string> file_entries(std::string_view text);

// Whether an entry names a libgpumux.so, wherever that lies.
bool is_library(std::string_view entry);
bool has_library(const std::vector<std::string>& entries);

// Whether the loader puts libgpumux.so into every program of this machine: its list names one that is there.
bool is_preloaded_everywhere(const char* list = "/etc/ld.so.preload");

// LD_PRELOAD's new value: the old value, less other files of the library's name, then `library`. The program's own
// libraries come first: a tracer of CUDA calls sees them all, and AddressSanitizer demands the first place. Two copies
// of libgpumux.so in one process would wait for each other's leases.
std::string compose_preload(std::string_view existing, std::string_view library);

}  // namespace gpumux::os
