// SPDX-License-Identifier: Apache-2.0
#include "sched/lease/switch_cost.h"

#include <gtest/gtest.h>

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

TEST(SwitchCost, TheFirstDrainCountsAsItIsAndLaterOnesALittle) {
  SwitchCost cost;
  EXPECT_EQ(cost.automatic_quantum(), 40ms) << "nothing is known";
  cost.add_drain(8ms);
  EXPECT_EQ(cost.drain(), 8ms);
  EXPECT_EQ(cost.automatic_quantum(), 264ms);
  cost.add_drain(0ms);
  EXPECT_EQ(cost.drain(), 7ms);
}

TEST(SwitchCost, AFirstDrainThatCostNothingIsMeasured) {
  SwitchCost cost;
  cost.add_drain(0ms);
  cost.add_drain(8ms);
  EXPECT_EQ(cost.drain(), 1ms) << "an outlier";
}

TEST(SwitchCost, MemoryThatMovesNoLongerIsForgotten) {
  SwitchCost cost;
  cost.add_paging(4s);
  EXPECT_EQ(cost.paging(), 1s);
  EXPECT_EQ(cost.total(), 1s);
  int switches = 0;
  for (; cost.paging() > 0s; ++switches) cost.add_paging(0s);
  EXPECT_LT(switches, 60);
  EXPECT_EQ(cost.automatic_quantum(), 40ms);
}

TEST(SwitchCost, NoQuantumIsLongerThanPeopleWait) {
  SwitchCost cost;
  cost.add_drain(Duration::max());
  cost.add_paging(Duration::max());
  EXPECT_EQ(cost.drain(), 30s);
  EXPECT_EQ(cost.automatic_quantum(), 30s);
}

}  // namespace
}  // namespace gpumux::sched
