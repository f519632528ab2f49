// SPDX-License-Identifier: Apache-2.0
#include "daemon/gpus/holds.h"

#include <string>
#include <utility>

#include "os/pidfd.h"

namespace gpumux::daemon {

base::Status Holds::add(pid_t pid) {
  auto process = os::open_pidfd(pid);
  if (!process) {
    return base::fail(base::Code::kUnsupported,
                      "process " + std::to_string(pid) + " cannot be watched: " + process.error().message());
  }
  any();
  if (processes_.size() >= kMaxHolds && !processes_.contains(pid)) {
    return base::fail(base::Code::kExhausted, std::to_string(kMaxHolds) + " processes hold this daemon already");
  }
  // The same process again (gpumux run under gpumux run): one hold. Another one of this number: the old one has ended.
  processes_[pid] = std::move(*process);
  return {};
}

bool Holds::any() {
  std::erase_if(processes_, [](const auto& entry) { return os::has_ended(entry.second.get()); });
  return !processes_.empty();
}

}  // namespace gpumux::daemon
