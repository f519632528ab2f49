// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/unknown_entries.h"

#include <algorithm>

#include "base/limits.h"
#include "server/loop/log.h"

namespace gpumux::daemon {

void UnknownEntries::note(std::string_view name, const std::string& program) {
  const bool is_name =
      !name.empty() && name.size() <= base::kMaxNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
      });
  if (!is_name) return;
  auto found = entries_.find(std::string(name));
  if (found == entries_.end()) {
    if (entries_.size() >= kMaxUnknownEntries) return;
    found = entries_.emplace(name, UnknownEntry()).first;
    server::log_info("a driver entry went past the library", {{"entry", name}, {"program", program}});
  }
  UnknownEntry& entry = found->second;
  ++entry.count;
  if (entry.programs.size() < kMaxProgramsPerEntry &&
      std::find(entry.programs.begin(), entry.programs.end(), program) == entry.programs.end()) {
    entry.programs.push_back(program);
  }
}

}  // namespace gpumux::daemon
