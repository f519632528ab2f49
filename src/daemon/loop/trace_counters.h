// SPDX-License-Identifier: Apache-2.0
// Counts of the trace: each entry is counted once, by GPU, event and detail. So a counter and the trace cannot differ.
//
// Owned by the loop's thread; a copy may be read elsewhere.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_map>

#include "base/clock.h"
#include "base/ids.h"
#include "daemon/loop/trace.h"
#include "server/loop/wait_histogram.h"

namespace gpumux::daemon {

class TraceCounters {
 public:
  // An event and its detail, as the trace has them.
  using Kind = std::pair<std::string_view, std::string_view>;
  struct Counts {
    std::map<Kind, std::uint64_t> events;
    server::WaitHistogram waits;  // from a request to its grant
  };

  void count(const TraceEntry& entry);
  // By the GPU's index; -1 has what concerns no GPU.
  const std::map<std::int32_t, Counts>& counts() const { return counts_; }

 private:
  std::map<std::int32_t, Counts> counts_;
  std::map<base::SeatId, base::TimePoint> requested_;  // seats that wait, since when
};

}  // namespace gpumux::daemon
