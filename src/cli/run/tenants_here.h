// SPDX-License-Identifier: Apache-2.0
// Programs of this machine that are a daemon's tenants, or were, found without asking a daemon.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpumux::cli {

struct TenantHere {
  std::int64_t pid = 0;
  std::string name;
};

// Those that look for their daemon at `runtime_dir`, as far as this user may see that. Each has the library's thread
// that talks to the daemon.
std::vector<TenantHere> tenants_here(const std::string& runtime_dir);

// "train.py (4711), serve (4712)"; empty: none.
std::string tenants_text(const std::vector<TenantHere>& tenants);

}  // namespace gpumux::cli
