// SPDX-License-Identifier: Apache-2.0
#include "sched/lease/cap_budget.h"

#include <gtest/gtest.h>

namespace gpumux::sched {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

TimePoint at(Duration since) { return TimePoint(since); }

// A quarter of the time: 250 ms in a window.
CapBudget quarter() {
  CapBudget budget;
  budget.settle(at(seconds(100)), false);
  budget.set(kNoCap / 4);
  return budget;
}

TEST(CapBudget, ASeatWithoutACapNeverSpendsAnything) {
  CapBudget budget;
  budget.settle(at(seconds(100)), true);
  EXPECT_FALSE(budget.is_capped());
  EXPECT_FALSE(budget.is_spent());
}

TEST(CapBudget, BeginsFullAndGrowsWhileItIsSpent) {
  CapBudget budget = quarter();
  const Duration lasts = budget.lasts();
  EXPECT_EQ(lasts, Duration(seconds(1)) / 3 + nanoseconds(1));
  budget.settle(at(seconds(100) + lasts - nanoseconds(2)), true);
  EXPECT_FALSE(budget.is_spent());
  budget.settle(at(seconds(100) + lasts), true);
  EXPECT_TRUE(budget.is_spent());
}

TEST(CapBudget, ThawsWithHalfAWindow) {
  CapBudget budget = quarter();
  const TimePoint spent_at = at(seconds(100) + budget.lasts());
  budget.settle(spent_at, true);
  const Duration thaws_in = budget.thaws_in();
  EXPECT_GT(thaws_in, milliseconds(499));
  EXPECT_LT(thaws_in, milliseconds(501));
  budget.settle(spent_at + thaws_in, false);
  EXPECT_EQ(budget.thaws_in(), Duration::zero());
}

TEST(CapBudget, NoMoreThanAWindowIsSaved) {
  CapBudget budget = quarter();
  const Duration full = budget.lasts();
  budget.settle(at(seconds(200)), false);
  EXPECT_EQ(budget.lasts(), full);
}

// The lease counts as half a minute, of which the seat was allowed a quarter.
TEST(CapBudget, ALeaseOfAnHourIsPaidBackInMinutes) {
  CapBudget budget = quarter();
  budget.settle(at(seconds(3700)), true);
  EXPECT_GT(budget.thaws_in(), seconds(89));
  EXPECT_LT(budget.thaws_in(), seconds(90));
}

// A cap that changes does not fill the allowance up.
TEST(CapBudget, AnotherCapKeepsTheAllowance) {
  CapBudget budget = quarter();
  budget.settle(at(seconds(100) + budget.lasts()), true);
  budget.set(kNoCap / 2);
  EXPECT_TRUE(budget.is_spent());
  budget.set(kNoCap);
  budget.set(kNoCap / 2);
  EXPECT_FALSE(budget.is_spent());
}

}  // namespace
}  // namespace gpumux::sched
