// SPDX-License-Identifier: Apache-2.0
#include "sched/pace.h"

#include <gtest/gtest.h>

#include <array>

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

TEST(StepPace, StepsGrowAndFollowFaster) {
  StepPace pace(0);
  EXPECT_EQ(pace.pause(2ms), 2ms);
  std::uint32_t count = 0;
  for (const std::uint32_t expected : {1u, 4u, 16u, 64u, 256u, 256u}) {
    count = pace.next(count);
    EXPECT_EQ(count, expected);
    EXPECT_EQ(pace.pause(2ms), 250us);
  }
}

TEST(StepPace, SlowingDownLengthensPausesAndShortensSteps) {
  StepPace pace(0);
  EXPECT_EQ(pace.next(64), 256u);
  pace.slow_down();
  EXPECT_EQ(pace.pause(2ms), 1ms);
  EXPECT_EQ(pace.next(64), 64u);
  while (pace.can_slow_down()) pace.slow_down();
  EXPECT_EQ(pace.pause(2ms), 250us * (1 << 14));
  EXPECT_EQ(pace.next(64), 1u) << "they meet at the last";
}

TEST(StepPace, ANextRevocationHurriesIfStepsSufficed) {
  EXPECT_EQ(StepPace(1).next_hurry(), 1u) << "no step was needed";
  StepPace sufficed(1);
  sufficed.next(0);
  EXPECT_EQ(sufficed.next_hurry(), 2u);
  EXPECT_EQ(StepPace(2).pause(2ms), 500us);
  sufficed.slow_down();
  EXPECT_EQ(sufficed.next_hurry(), 0u);
  StepPace fastest(3);
  fastest.next(0);
  EXPECT_EQ(fastest.next_hurry(), 3u);
}

}  // namespace
}  // namespace gpumux::sched
