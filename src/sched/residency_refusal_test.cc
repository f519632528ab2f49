// SPDX-License-Identifier: Apache-2.0
// Goal: a wish is refused only when nothing that can still happen would fulfil it. Method: a planner and two seats.
#include <gtest/gtest.h>

#include "sched/residency_desk.h"

namespace gpumux::sched {
namespace {

TEST(Residency, WhereNothingMovesTheWaitEnds) {
  Desk desk;
  desk.open_two(50);
  desk.turn({{2, kHolding}, {1, kIdle}});
  EXPECT_FALSE(desk.want(2, 60));
  desk.now += kRoomPatience / 2;
  desk.has(1, 45, 5);  // slow, but it moves
  desk.now += kRoomPatience - 1ms;
  desk.plan();
  EXPECT_FALSE(desk.answer(2));
  ASSERT_TRUE(desk.planner.next_deadline(kGpu));
  desk.now = *desk.planner.next_deadline(kGpu);
  desk.plan();
  const auto answer = desk.answer(2);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->refused());
  EXPECT_EQ(answer->refusal, Refusal::kNothingMoves);
}

// The other one frees a little time and again, and never as much as is wanted.
TEST(Residency, WhereWhatMovesDoesNotHelpTheWaitEnds) {
  Desk desk;
  desk.open_two(50);
  desk.turn({{2, kHolding}, {1, kIdle}});
  const TimePoint began = desk.now;
  EXPECT_FALSE(desk.want(2, 60));
  for (std::uint64_t freed = 1; desk.now + kRoomPatience - 1s < began + kLongestRoomWait; ++freed) {
    desk.now += kRoomPatience - 1s;
    desk.has(1, 50 - freed, freed);
    EXPECT_FALSE(desk.answer(2));
  }
  ASSERT_TRUE(desk.planner.next_deadline(kGpu));
  EXPECT_LE(*desk.planner.next_deadline(kGpu), began + kLongestRoomWait);
  desk.now = began + kLongestRoomWait;
  desk.plan();
  const auto answer = desk.answer(2);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->refused());
}

// What tenants of an earlier daemon have looks like other programs' memory until they are back.
TEST(Residency, NothingIsHopelessWhileTenantsAreAwaited) {
  Desk desk;
  desk.open_two(10);
  desk.turn({{2, kHolding}, {1, kIdle}});
  const TimePoint until = desk.now + 2s;
  desk.planner.await_tenants(until);
  // Seen before and after the wish.
  desk.planner.set_foreign(desk.now, kGpu, 75 * kGiB);
  EXPECT_FALSE(desk.want(2, 40));
  desk.now += 1s;
  desk.planner.set_foreign(desk.now, kGpu, 75 * kGiB, desk.now);
  desk.plan();
  EXPECT_FALSE(desk.answer(2));
  ASSERT_TRUE(desk.planner.next_deadline(kGpu));
  EXPECT_LE(*desk.planner.next_deadline(kGpu), until);
  // They have come back, and what they have is not other programs'.
  desk.planner.set_foreign(desk.now, kGpu, 0, desk.now);
  desk.plan();
  const auto answer = desk.answer(2);
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->refused());
}

TEST(Residency, WhatIsHopelessIsRefusedWhenNoTenantIsAwaitedAnyMore) {
  Desk desk;
  desk.open_two(10);
  desk.turn({{2, kHolding}, {1, kIdle}});
  const TimePoint until = desk.now + 2s;
  desk.planner.await_tenants(until);
  desk.planner.set_foreign(desk.now, kGpu, 75 * kGiB, desk.now);
  EXPECT_FALSE(desk.want(2, 40));
  desk.now = until;
  desk.plan();
  EXPECT_FALSE(desk.answer(2)) << "the GPU has not been looked at since the last one could come back";
  desk.now += 100ms;
  desk.planner.set_foreign(desk.now, kGpu, 75 * kGiB, desk.now);
  desk.plan();
  const auto answer = desk.answer(2);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->refused());
}

}  // namespace
}  // namespace gpumux::sched
