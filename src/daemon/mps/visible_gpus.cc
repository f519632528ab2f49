// SPDX-License-Identifier: Apache-2.0
#include "daemon/mps/visible_gpus.h"

#include "base/split.h"

namespace gpumux::daemon {

std::vector<bool> visible_gpus(std::string_view list, std::span<const std::string> uuids) {
  if (list.empty()) return std::vector<bool>(uuids.size(), true);
  std::vector<bool> visible(uuids.size(), false);
  for (std::string_view name : base::split(list, ',')) {
    while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    if (!name.empty() && name.front() >= '0' && name.front() <= '9') return std::vector<bool>(uuids.size(), true);
    bool is_known = false;
    for (std::size_t i = 0; i < uuids.size() && !name.empty(); ++i) {
      if (!std::string_view(uuids[i]).starts_with(name)) continue;
      visible[i] = true;
      is_known = true;
    }
    if (!is_known) break;
  }
  return visible;
}

}  // namespace gpumux::daemon
