// SPDX-License-Identifier: Apache-2.0
// How long each seat used its GPU in the last seconds.
//
// A seat's use of the window is its lease time in the window, less the time for which it was known to be idle. Seats
// that run at once have the time both. Totals are noted once a second, so the window is up to a second longer than
// kRecentWindow.
//
// Owned by the loop's thread; a copy may be read elsewhere. Pure.
#pragma once

#include <deque>
#include <map>

#include "base/clock.h"
#include "base/ids.h"

namespace gpumux::daemon {

// Many turns of each program, and short enough to see a change while looking.
inline constexpr base::Duration kRecentWindow = std::chrono::seconds(5);

class RecentUse {
 public:
  using Totals = std::map<base::SeatId, base::Duration>;

  // The use of all seats since they were opened.
  void note(base::TimePoint now, Totals totals);
  // Since when the window lasts; `now`: nothing was noted yet.
  base::TimePoint since(base::TimePoint now) const;
  // `total`: the seat's use up to `now`.
  base::Duration of(base::SeatId seat, base::Duration total, base::TimePoint now) const;

 private:
  struct Note {
    base::TimePoint at;
    Totals totals;
  };
  std::deque<Note> notes_;  // oldest first; the first one begins the window
};

}  // namespace gpumux::daemon
