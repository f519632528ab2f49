// SPDX-License-Identifier: Apache-2.0
// Goal: a seat's recent use is that of the last seconds, for seats that come, go, and pause.
// Method: totals by hand, in virtual time.
#include "daemon/tenants/recent_use.h"

#include <gtest/gtest.h>

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

constexpr base::SeatId kFirst{{1}, {0}};
constexpr base::SeatId kSecond{{2}, {0}};

base::TimePoint at(base::Duration time) { return base::TimePoint(100s + time); }

TEST(RecentUse, NothingIsKnownAtFirst) {
  const RecentUse use;
  EXPECT_EQ(use.since(at(0s)), at(0s));
  EXPECT_EQ(use.of(kFirst, 3s, at(0s)), 0s);
}

TEST(RecentUse, OnlyTheWindowCounts) {
  RecentUse use;
  // The first has the GPU for 20 s, then the second has it.
  for (int second = 0; second <= 23; ++second) {
    const base::Duration first = std::min(20s, second * 1s);
    use.note(at(second * 1s), {{kFirst, first}, {kSecond, second * 1s - first}});
  }
  EXPECT_EQ(use.since(at(23s)), at(18s)) << "the window is as long as is promised";
  EXPECT_EQ(use.of(kFirst, 20s, at(23s)), 2s);
  EXPECT_EQ(use.of(kSecond, 3s, at(23s)), 3s);
  EXPECT_EQ(use.of(kSecond, 3500ms, at(23500ms)), 3500ms) << "what has come since the last note counts";
}

TEST(RecentUse, ANewSeatHasUsedNothingBefore) {
  RecentUse use;
  use.note(at(0s), {{kFirst, 50s}});
  EXPECT_EQ(use.of(kSecond, 300ms, at(1s)), 300ms);
}

TEST(RecentUse, IsNeverMoreThanTheWindowNorLessThanNothing) {
  RecentUse use;
  use.note(at(0s), {{kFirst, 50s}});
  EXPECT_EQ(use.of(kFirst, 49s, at(1s)), 0s) << "a pause that began before is known now";
  EXPECT_EQ(use.of(kFirst, 60s, at(1s)), 1s);
}

}  // namespace
}  // namespace gpumux::daemon
