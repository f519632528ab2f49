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

TEST(SwitchCost, ASkippedSwitchDoesNotCount) {
  SwitchCost cost;
  cost.skip_next_paging();
  cost.add_paging(0s);
  cost.add_paging(20s);
  EXPECT_EQ(cost.paging(), 0s) << "the first one that moves memory";
  cost.add_paging(80ms);
  EXPECT_EQ(cost.paging(), 20ms);
}

// One program of three is large. Of all time, switches take no more than if all cost the same.
TEST(SwitchCost, ADearSwitchThatComesAgainCounts) {
  SwitchCost cost;
  Duration moves{};
  Duration works{};
  for (int i = 0; i < 300; ++i) {
    const Duration paging = i % 3 == 0 ? 1s : 50ms;
    cost.add_paging(paging);
    moves += paging;
    works += cost.automatic_quantum();
  }
  EXPECT_LT(moves, works / 30);
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
