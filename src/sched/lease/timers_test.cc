// SPDX-License-Identifier: Apache-2.0
#include "sched/lease/timers.h"

#include <gtest/gtest.h>

#include <optional>

namespace gpumux::sched {
namespace {

base::TimePoint at(int ns) { return base::TimePoint(base::Duration(ns)); }

TEST(Timers, FireByTimeAndThenInTheOrderInWhichTheyWereArmed) {
  Timers timers;
  Timer first(TimerKind::kRun), second(TimerKind::kRun), soonest(TimerKind::kRun);
  timers.arm(first, at(5));
  timers.arm(second, at(5));
  timers.arm(soonest, at(3));
  for (Timer* const expected : {&soonest, &first, &second}) {
    EXPECT_EQ(timers.earliest(), expected);
    timers.stop(*expected);
  }
  EXPECT_EQ(timers.earliest(), nullptr);
}

TEST(Timers, ATimerThatIsDestroyedStops) {
  Timers timers;
  std::optional<Timer> soonest(std::in_place, TimerKind::kRun);
  Timer later(TimerKind::kRun);
  timers.arm(*soonest, at(1));
  timers.arm(later, at(2));
  soonest.reset();
  EXPECT_EQ(timers.earliest(), &later);
  timers.stop(later);
  EXPECT_EQ(timers.earliest(), nullptr);
}

TEST(Timers, AMomentThatNeverComesStopsATimer) {
  Timers timers;
  Timer timer(TimerKind::kRun);
  timers.arm(timer, at(1));
  timers.arm(timer, base::TimePoint::max());
  EXPECT_FALSE(timer.armed());
}

}  // namespace
}  // namespace gpumux::sched
