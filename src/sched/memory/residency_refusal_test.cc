// SPDX-License-Identifier: Apache-2.0
// Goal: a wish is refused only when nothing that can still happen would fulfil it. Method: a planner and two seats.
#include <gtest/gtest.h>

#include "sched/testing/residency_desk.h"

namespace gpumux::sched {
namespace {

TEST(Residency, WhatNeverFitsIsRefusedAtOnce) {
  Desk desk;
  desk.open_two(10, 0, 30);
  desk.turn({{2, kHolding}, {1, kIdle}});
  const auto answer = desk.want(2, 51);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->refused());
  EXPECT_EQ(answer->refusal, Refusal::kGpuMemory);
  desk.want(2, 40);
  desk.say(1);  // its spare room is free
  const auto fits = desk.answer(2);
  ASSERT_TRUE(fits);
  EXPECT_FALSE(fits->refused());
}

// Another program may have ended since it was seen. No seat is refused because of it before a new look.
TEST(Residency, NobodyIsRefusedForWhatOthersHadWhenTheyWereLastLookedAt) {
  Desk desk;
  desk.open(1);
  desk.turn({{1, kHolding}});
  const TimePoint before = desk.now;
  desk.set_foreign(60 * kGiB, before);
  desk.say(1);
  desk.now += 1ms;
  ASSERT_TRUE(desk.want(1, 90)) << "so much there never is";
  EXPECT_FALSE(desk.want(1, 40, 40));
  EXPECT_TRUE(desk.planner.awaits_look(kGpu));
  desk.now += 20ms;
  EXPECT_TRUE(desk.set_foreign(0, desk.now));
  desk.plan();
  ASSERT_TRUE(desk.answer(1));
  EXPECT_FALSE(desk.answer(1)->refused());
  // It is there still, which changes nothing but what is known of it.
  desk.set_foreign(60 * kGiB, desk.now);
  desk.has(1, 10);
  desk.now += 1ms;
  EXPECT_FALSE(desk.want(1, 60, 60));
  desk.now += 20ms;
  EXPECT_TRUE(desk.set_foreign(60 * kGiB, desk.now));
  desk.plan();
  ASSERT_TRUE(desk.answer(1));
  EXPECT_TRUE(desk.answer(1)->refused());
  // No look comes.
  desk.now += 1ms;
  EXPECT_FALSE(desk.want(1, 61, 61));
  const TimePoint asked_at = desk.now;
  while (!desk.answer(1)) {
    ASSERT_TRUE(desk.planner.next_deadline(kGpu));
    desk.now = *desk.planner.next_deadline(kGpu);
    desk.plan();
  }
  EXPECT_TRUE(desk.answer(1)->refused());
  EXPECT_EQ(desk.now, asked_at + kForeignPatience);
}

// A seat that lacks host memory says that it is stuck. Mostly that comes, so no seat is refused for it at once.
TEST(Residency, WhoIsStuckMayStillGiveWay) {
  Desk desk;
  desk.open(1);
  desk.turn({{1, TurnKind::kHolding}});
  desk.has(1, 70);
  desk.open(2);
  desk.reports[1].stuck = true;
  desk.turn({{2, TurnKind::kHolding}, {1, TurnKind::kIdle}});
  desk.say(1);
  desk.say(2);
  EXPECT_FALSE(desk.want(2, 40, 40)) << "it waits";
  desk.reports[1].stuck = false;
  desk.has(1, 30, 40);
  desk.say(1);
  const auto answer = desk.answer(2);
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->refused());
}

// It could wait for ever: a thread that waits for room asks for no lease. So it hears what there is, and asks again
// when it holds one.
TEST(Residency, WhoHoldsNoLeaseIsAnsweredAtOnce) {
  Desk desk;
  desk.open(1);
  desk.open(2);
  desk.turn({{1, kHolding}, {2, kIdle}});
  desk.say(1);
  desk.has(1, 70);
  const auto answer = desk.want(2, 60);
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->refused());
  EXPECT_LT(desk.room(2), 60u);
}

// Memory of a dead tenant that is still coming back refuses no seat: the seat waits for it.
TEST(Residency, NobodyIsRefusedForWhatTheDeadHaveNotGivenBackYet) {
  Desk desk(80, 0);
  desk.open(1);
  desk.has(1, 60);  // alone: it may have had all of the GPU by now
  desk.turn({});
  desk.planner.closed(desk.now, seat(1));
  desk.open(2);
  EXPECT_FALSE(desk.want(2, 0, 30)) << "not now, but soon";
  desk.turn({{2, kHolding}});
  desk.now += 50ms;
  desk.planner.returned(desk.now, kGpu, 0);
  desk.plan();
  const auto answer = desk.answer(2);
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->refused());
}

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

// The other one frees a little time and again, and never what is wanted.
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

// The memory of an earlier daemon's tenants looks like other programs' until they are back.
TEST(Residency, NothingIsHopelessWhileTenantsAreAwaited) {
  Desk desk;
  desk.open_two(10);
  desk.turn({{2, kHolding}, {1, kIdle}});
  const TimePoint until = desk.now + 2s;
  desk.planner.await_tenants(until);
  // Seen before and after the wish.
  desk.set_foreign(75 * kGiB);
  EXPECT_FALSE(desk.want(2, 40));
  desk.now += 1s;
  desk.set_foreign(75 * kGiB, desk.now);
  desk.plan();
  EXPECT_FALSE(desk.answer(2));
  ASSERT_TRUE(desk.planner.next_deadline(kGpu));
  EXPECT_LE(*desk.planner.next_deadline(kGpu), until);
  // They have come back, and what they have is not other programs'.
  desk.set_foreign(0, desk.now);
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
  desk.set_foreign(75 * kGiB, desk.now);
  EXPECT_FALSE(desk.want(2, 40));
  desk.now = until;
  desk.plan();
  EXPECT_FALSE(desk.answer(2)) << "the GPU has not been looked at since the last one could come back";
  desk.now += 100ms;
  desk.set_foreign(75 * kGiB, desk.now);
  desk.plan();
  const auto answer = desk.answer(2);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->refused());
}

// Another thread of the seat asks for less, or for a commitment only. The first thread's room is kept for it.
TEST(Residency, AnotherWishOfTheSeatTakesNothingBack) {
  Desk desk;
  desk.open_two();
  desk.turn({{1, kHolding}, {2, kNext}});
  desk.has(2, 40, 40);
  EXPECT_FALSE(desk.want(1, 50, 50));
  desk.has(2, 30, 50);
  ASSERT_TRUE(desk.answer(1));
  ASSERT_EQ(desk.room(1), 50u);
  ASSERT_TRUE(desk.want(1, 0, 20));
  desk.say(2);
  EXPECT_EQ(desk.room(1), 50u);
  EXPECT_GE(desk.commitment(1), 50u);
  desk.now += kTakePatience;
  desk.say(2);
  EXPECT_EQ(desk.room(1), 0u) << "it takes nothing";
}

// It cannot be told less any more. So the commitment that it was told last answers its wish.
TEST(Residency, AStoppedSeatIsAnsweredByWhatItWasToldLast) {
  Desk desk;
  desk.open(1);
  desk.open(2);
  desk.turn({{2, kHolding}, {1, kIdle}});
  for (int i = 0; i < 100; ++i) {
    desk.set_foreign(static_cast<std::uint64_t>(i % 2) * 60 * kGiB);
    desk.say(2);
  }
  ASSERT_GE(desk.commitment(1), 30u);
  desk.set_foreign(79 * kGiB, desk.now - 1s);
  const auto answer = desk.want(1, 40, 30);
  ASSERT_TRUE(answer) << "it holds no lease";
  EXPECT_FALSE(answer->refused());
  EXPECT_GE(answer->commitment, 30 * kGiB);
  desk.now += 1ms;
  desk.plan();
}

}  // namespace
}  // namespace gpumux::sched
