// SPDX-License-Identifier: Apache-2.0
// The loan of a turn by itself: who lends, who runs, and for how long.
#include "sched/loan.h"

#include <gtest/gtest.h>

#include "sched/units.h"

namespace gpumux::sched {
namespace {

using std::chrono::milliseconds;

TEST(Loan, CountsTheTimeOfTheLenderOnly) {
  const TimePoint start = TimePoint() + milliseconds(100);
  Unit lender, borrower;
  Loan loan;
  EXPECT_EQ(loan.lender(), nullptr);
  EXPECT_FALSE(loan.is_from_other_than(borrower));

  loan.begin(lender, start);
  EXPECT_EQ(loan.lender(), &lender);
  EXPECT_TRUE(loan.is_from_other_than(borrower));
  EXPECT_FALSE(loan.is_from_other_than(lender));
  EXPECT_EQ(loan.lent_by(lender, start + milliseconds(7)), milliseconds(7));
  EXPECT_EQ(loan.lent_by(borrower, start + milliseconds(7)), Duration::zero());

  EXPECT_EQ(loan.end(start + milliseconds(9)), milliseconds(9));
  EXPECT_EQ(loan.lender(), nullptr);
  EXPECT_FALSE(loan.is_from_other_than(borrower));
  EXPECT_EQ(loan.lent_by(lender, start + milliseconds(20)), Duration::zero());
}

}  // namespace
}  // namespace gpumux::sched
