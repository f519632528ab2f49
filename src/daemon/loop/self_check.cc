// SPDX-License-Identifier: Apache-2.0
#include "daemon/loop/self_check.h"

#include <utility>

#include "server/loop/log.h"

namespace gpumux::daemon {

SelfCheck::SelfCheck(base::Clock& clock, std::vector<Part> parts) : clock_(clock) {
  for (Part& part : parts) parts_.push_back({.part = std::move(part)});
}

void SelfCheck::look() {
  for (Watched& one : parts_) {
    const base::TimePoint begin = clock_.now();
    if (begin < one.due) continue;
    const std::string broken = one.part.broken();
    const base::TimePoint end = clock_.now();
    one.due = end + (end - begin) * kShareOfSelfChecks;
    if (broken.empty()) continue;
    ++found_;
    if (!std::exchange(one.is_logged, true))
      server::log_error("an invariant is broken; please report this with the log",
                        {{"part", one.part.name}, {"what", broken}});
  }
}

}  // namespace gpumux::daemon
