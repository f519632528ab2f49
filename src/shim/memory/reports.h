// SPDX-License-Identifier: Apache-2.0
// When the pager thread reports a seat's memory to the daemon. Seats wait for memory that comes free, so the pager
// thread reports that at once. It does the same with memory that was born evicted: the seat's work waits for it, and
// the daemon gives room for what it knows of. It reports changes that only people want to see each kReportEvery at
// most.
//
// A Reports is the time since one report; the next report begins a new one. The pager thread owns it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace gpumux::shim {

class Reports {
 public:
  // A guess: people look at a status that is a quarter of a second old as if it were now.
  static constexpr base::Duration kReportEvery = std::chrono::milliseconds(250);

  struct View {
    std::uint64_t used = 0;            // bytes on the GPU
    std::uint64_t away = 0;            // bytes that are not, and should be
    bool is_moving = false;            // a job runs
    bool has_unreported_room = false;  // a bound is in force that has not been reported
    bool has_changed = false;          // something that people want to see
  };

  Reports() = default;  // nothing was ever reported
  Reports(base::TimePoint at, std::uint64_t used, std::uint64_t away) : at_(at), used_(used), away_(away) {}

  // The next report is due at once.
  void hurry() { is_urgent_ = true; }

  // How long until a report is due; 0: now. Nothing: there is nothing to report.
  std::optional<base::Duration> next(const View& view, base::TimePoint now) const {
    const bool is_less = view.used < used_;
    const bool is_born = view.away > away_ && !view.is_moving;
    if (is_urgent_ || view.has_unreported_room || is_born || (is_less && view.is_moving)) return base::Duration(0);
    if (!view.has_changed && !is_less) return std::nullopt;
    return at_ ? std::max(base::Duration(0), *at_ + kReportEvery - now) : base::Duration(0);
  }

 private:
  std::optional<base::TimePoint> at_;
  std::uint64_t used_ = 0;
  std::uint64_t away_ = 0;
  bool is_urgent_ = false;
};

}  // namespace gpumux::shim
