// SPDX-License-Identifier: Apache-2.0
// The parts of seats in a revocation by themselves: their counts follow from what their tenants say.
#include "sched/revocation.h"

#include <gtest/gtest.h>

#include "sched/units.h"

namespace gpumux::sched {
namespace {

class RevocationTest : public testing::Test {
 protected:
  RevocationTest() : revocation_(unit_, StepPace(0), RevokeReason::kQuantum, TimePoint()), ahead_(a_), behind_(b_) {
    revocation_.add(ahead_, false);
    revocation_.add(behind_, false);
  }

  Unit unit_;
  Seat a_, b_;
  UnitRevocation revocation_;
  SeatRevocation ahead_, behind_;
};

TEST_F(RevocationTest, IsDividedWhileOneHasDrained) {
  EXPECT_FALSE(revocation_.is_divided());
  revocation_.set_closing(behind_, Closing::kClosed);
  EXPECT_TRUE(behind_.gate_closed());
  EXPECT_FALSE(revocation_.is_divided());
  revocation_.set_closing(behind_, Closing::kDrained);
  EXPECT_TRUE(revocation_.is_divided());
  EXPECT_EQ(revocation_.seats(), (RevokedSeats{.all = 2, .undrained = 1}));
  revocation_.set_closing(ahead_, Closing::kDrained);
  EXPECT_FALSE(revocation_.is_divided());
  EXPECT_EQ(revocation_.seats().undrained, 0u);
}

TEST_F(RevocationTest, ASeatThatRestedHasDrained) {
  Seat seat;
  SeatRevocation rested(seat);
  revocation_.add(rested, true);
  EXPECT_TRUE(rested.drained());
  EXPECT_EQ(revocation_.seats(), (RevokedSeats{.all = 3, .undrained = 2}));
}

TEST_F(RevocationTest, AStepThatIsTakenBackMakesTheSeatUndrained) {
  revocation_.set_closing(behind_, Closing::kDrained);
  revocation_.take_back_step(behind_);
  EXPECT_TRUE(behind_.drained()) << "it had no permits";
  revocation_.set_permits(behind_, 4);
  EXPECT_EQ(revocation_.seats().permitted, 1u);
  revocation_.set_permits(behind_, 1);
  EXPECT_EQ(revocation_.seats().permitted, 1u);
  revocation_.take_back_step(behind_);
  EXPECT_EQ(behind_.permits(), 0u);
  EXPECT_EQ(behind_.closing(), Closing::kRecalled);
  EXPECT_EQ(revocation_.seats(), (RevokedSeats{.all = 2, .undrained = 2}));
}

}  // namespace
}  // namespace gpumux::sched
