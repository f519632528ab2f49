// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/recent_use.h"

#include <algorithm>
#include <utility>

namespace gpumux::daemon {

void RecentUse::note(base::TimePoint now, Totals totals) {
  notes_.push_back({now, std::move(totals)});
  while (notes_.size() > 1 && notes_[1].at <= now - kRecentWindow) notes_.pop_front();
}

base::TimePoint RecentUse::since(base::TimePoint now) const { return notes_.empty() ? now : notes_.front().at; }

base::Duration RecentUse::of(base::SeatId seat, base::Duration total, base::TimePoint now) const {
  if (notes_.empty()) return {};
  const Note& begin = notes_.front();
  const auto before = begin.totals.find(seat);
  const base::Duration used = total - (before == begin.totals.end() ? base::Duration() : before->second);
  // A pause is known to be one when it has gone on for a while, and counts from its beginning.
  return std::clamp(used, base::Duration(), std::max(now - begin.at, base::Duration()));
}

}  // namespace gpumux::daemon
