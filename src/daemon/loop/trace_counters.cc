// SPDX-License-Identifier: Apache-2.0
#include "daemon/loop/trace_counters.h"

#include <algorithm>

namespace gpumux::daemon {

void TraceCounters::count(const TraceEntry& entry) {
  Counts& counts = counts_[entry.gpu];
  // A grant is told apart by the lease that it gives, too.
  const bool is_shared = entry.has_lease && !entry.exclusive && entry.detail.empty();
  ++counts.events[{entry.event, is_shared ? "shared" : entry.detail}];
  if (entry.event == "gone") {
    const auto begin = requested_.lower_bound({entry.tenant, {0}});
    const auto end =
        std::find_if(begin, requested_.end(), [&](const auto& one) { return one.first.tenant != entry.tenant; });
    requested_.erase(begin, end);
    return;
  }
  if (entry.gpu < 0) return;
  const base::SeatId seat{entry.tenant, {static_cast<std::uint32_t>(entry.gpu)}};
  if (entry.event == "request") {
    requested_.try_emplace(seat, entry.time);
  } else if (entry.event == "close") {
    requested_.erase(seat);
  } else if (entry.event == "grant") {
    const auto since = requested_.find(seat);
    if (since == requested_.end()) return;
    counts.waits.add(entry.time - since->second);
    requested_.erase(since);
  }
}

}  // namespace gpumux::daemon
