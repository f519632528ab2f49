// SPDX-License-Identifier: Apache-2.0
// Whether the loader will take libgpumux.so.
#pragma once

#include <string>

#include "base/result.h"

namespace gpumux::cli {

// Whether the dynamic loader would take it into this machine's programs. It must be an ELF shared object for the same
// machine that needs no newer glibc than the one here. Its path must be one that LD_PRELOAD can name (no space, no
// colon).
base::Status check_preloadable(const std::string& library);

}  // namespace gpumux::cli
