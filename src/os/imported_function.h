// SPDX-License-Identifier: Apache-2.0
// A loaded library's calls of one function of another library, sent elsewhere.
//
// A library calls functions of others through slots that the loader fills with their addresses. Writing another address
// there changes what this library calls, and nothing of what the program or any other library calls.
#pragma once

#include <cstddef>

#include "base/result.h"

namespace gpumux::os {

// Where the calls went before. Null: where the loader would send them (the slot had not been filled yet).
struct FormerImport {
  std::size_t slots = 0;  // 0: the library does not import the function
  const void* function = nullptr;
};

// The library is the one that `inside` (any address of its code or data) belongs to. From now on it calls
// `replacement` instead of `name`, a function's name without its version; `replacement` must look like that function to
// its callers, and stay. Addresses that the library has taken before go to the old one. Threads may be calling the
// function at that time.
//
// kNotFound: no loaded library has that address. kUnsupported: its tables are not what this platform's loader reads.
// Else the system's reason why the slots could not be made writable.
base::Result<FormerImport> replace_import(const void* inside, const char* name, const void* replacement);

}  // namespace gpumux::os
