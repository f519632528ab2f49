// SPDX-License-Identifier: Apache-2.0
// The memory of suspended seats. Goal: all of it that can leave the GPU does, even if no seat needs the room. It is in
// no seat's way there, and it comes back in its turn. Method: scripts, as in residency_test.cc.
#include <gtest/gtest.h>

#include "sched/memory/memory_mode.h"
#include "sched/testing/residency_desk.h"

namespace gpumux::sched {
namespace {

struct Suspended : Desk {
  using Desk::Desk;
  void suspend(std::uint64_t tenant) {
    planner.set_suspended(now, seat(tenant), true);
    plan();
  }
  void resume(std::uint64_t tenant) {
    planner.set_suspended(now, seat(tenant), false);
    plan();
  }
  MemoryMode::Reason mode(settings::Mode setting = settings::Mode::kAuto) {
    static_cast<void>(memory_mode.resolve(now, planner, kGpu, setting, false, Mode::kSerial));
    return memory_mode.reason();
  }
  MemoryMode memory_mode;
};

TEST(SuspendedMemory, LeavesAlthoughNobodyNeedsTheRoom) {
  Suspended desk;
  desk.open_two(40);
  desk.suspend(1);
  desk.turn({{2, kIdle}, {1, kSuspended}});
  EXPECT_EQ(desk.room(1), 0u);
  EXPECT_TRUE(desk.planner.is_clearing(kGpu));
  desk.has(1, 0, 40);
  EXPECT_FALSE(desk.planner.is_clearing(kGpu));
  EXPECT_GE(desk.room(2), 79u) << "all of it is the other one's";
  EXPECT_GE(desk.commitment(2), 70u);
}

TEST(SuspendedMemory, WhatCannotLeaveStays) {
  Suspended desk;
  desk.open_two(20, 0, 5);
  desk.suspend(1);
  desk.turn({{2, kIdle}, {1, kSuspended}});
  EXPECT_EQ(desk.room(1), 5u);
  desk.has(1, 0, 20, 5);
  EXPECT_FALSE(desk.planner.is_clearing(kGpu));
  EXPECT_LE(desk.room(2), 75u);
  EXPECT_GE(desk.room(2), 74u);
}

// While its work runs it has what it has; a bound says so ahead, and is for when it has drained.
TEST(SuspendedMemory, LeavesWhenItHasDrained) {
  Suspended desk;
  desk.open_two(40);
  desk.turn({{1, kHolding}, {2, kIdle}});
  desk.suspend(1);
  EXPECT_GE(desk.room(1), 40u) << "it holds its lease";
  desk.turn({{1, kHeldBack}, {2, kIdle}});
  EXPECT_GE(desk.room(1), 40u) << "it may have to be let through";
  desk.turn({{1, kLeaving}, {2, kIdle}});
  EXPECT_EQ(desk.room(1), 0u);
}

TEST(SuspendedMemory, ComesBackInItsTurn) {
  Suspended desk;
  desk.open_two(50);
  desk.has(2, 30);
  desk.suspend(1);
  desk.turn({{2, kHolding}, {1, kSuspended}});
  desk.has(1, 0, 50);
  desk.settle();
  ASSERT_TRUE(desk.want(2, 60));
  EXPECT_FALSE(desk.answer(2)->refused());
  desk.has(2, 60);
  desk.resume(1);
  desk.turn({{2, kHolding}, {1, kNext}});
  EXPECT_EQ(desk.room(2), 60u);
  EXPECT_LE(desk.room(1), 20u);
  desk.turn({{1, kHolding}, {2, kLeaving}});
  desk.has(2, 30, 30);
  EXPECT_EQ(desk.room(1), 50u);
}

TEST(SuspendedMemory, AWishWaitsUntilItIsResumed) {
  Suspended desk;
  desk.open_two(40);
  desk.has(2, 20);
  desk.suspend(1);
  desk.turn({{2, kIdle}, {1, kSuspended}});
  EXPECT_FALSE(desk.want(1, 70, 70));
  desk.has(1, 0, 40);
  EXPECT_FALSE(desk.planner.is_tight(kGpu));
  desk.now += 100 * kRoomPatience;
  desk.plan();
  EXPECT_FALSE(desk.answer(1)) << "neither given nor refused";
  EXPECT_FALSE(desk.planner.next_deadline(kGpu));
  EXPECT_FALSE(desk.planner.awaits_look(kGpu));
  desk.planner.set_suspended(desk.now, seat(1), false);
  desk.turn({{1, kHolding}, {2, kIdle}});
  EXPECT_FALSE(desk.answer(1));
  desk.has(2, 10, 10);
  desk.settle();
  ASSERT_TRUE(desk.answer(1));
  EXPECT_FALSE(desk.answer(1)->refused());
}

// One suspended seat fits with the other one, one would not: the GPU is the other one's alone.
TEST(SuspendedMemory, MakesNoGpuTightOrSerial) {
  Suspended desk;
  for (std::uint64_t tenant = 1; tenant <= 3; ++tenant) desk.open(tenant);
  desk.settle();
  desk.has(1, 60);
  desk.has(2, 10);
  desk.has(3, 20);
  EXPECT_EQ(desk.mode(), MemoryMode::Reason::kTooMuch);
  desk.suspend(1);
  desk.turn({{2, kHolding}, {3, kHolding}, {1, kSuspended}});
  desk.has(1, 0, 60);
  desk.now += kFitDwell;
  EXPECT_EQ(desk.mode(), MemoryMode::Reason::kFits);
  EXPECT_FALSE(desk.planner.is_tight(kGpu));
  EXPECT_EQ(desk.planner.host_demand(kGpu).evicted, 60 * kGiB) << "which host memory has to take";
  EXPECT_EQ(desk.planner.host_demand(kGpu).copies, 0u) << "it comes back to stay";
  EXPECT_EQ(desk.planner.together(kGpu).seats, 2u);
  EXPECT_EQ(desk.planner.together(kGpu).suspended, 1u);
  EXPECT_EQ(desk.planner.together(kGpu).evicted, 0u);
  desk.has(2, 50);
  EXPECT_TRUE(desk.planner.fits_together(kGpu, 0));
  desk.resume(1);
  EXPECT_FALSE(desk.planner.fits_together(kGpu, 0));
}

// In this mode no seat's memory is moved for another one, but that of suspended seats is, and comes back by turns.
TEST(SuspendedMemory, LeavesInModeConcurrentToo) {
  Suspended desk;
  desk.planner.set_free_only(kGpu, true);
  desk.open_two(50);
  desk.suspend(1);
  desk.turn({{2, kHolding}, {1, kSuspended}});
  EXPECT_EQ(desk.room(1), 0u);
  desk.has(1, 0, 50);
  desk.settle();
  EXPECT_FALSE(desk.want(2, 70, 70) && desk.answer(2)->refused());
  desk.settle();
  ASSERT_TRUE(desk.answer(2));
  EXPECT_FALSE(desk.answer(2)->refused());
  desk.has(2, 70);
  desk.resume(1);
  EXPECT_EQ(desk.mode(settings::Mode::kConcurrent), MemoryMode::Reason::kTooMuch) << "by turns until it fits";
}

// Host memory is used up. The memory stays where it is, the seat is asked all the same, and its place is promised to no
// seat.
TEST(SuspendedMemory, ThatIsStuckIsCountedOn) {
  Suspended desk;
  desk.open_two(50);
  desk.suspend(1);
  desk.turn({{2, kHolding}, {1, kSuspended}});
  desk.reports[1].stuck = true;
  desk.has(1, 30, 20);
  EXPECT_EQ(desk.room(1), 0u) << "it goes on trying";
  EXPECT_LE(desk.room(2), 50u);
  EXPECT_TRUE(desk.planner.is_clearing(kGpu));
  desk.reports[1].stuck = false;
  desk.has(1, 0, 50);
  EXPECT_GE(desk.room(2), 79u);
}

// A member of a gang that has to be let through gets what it lacks: else the gang would not drain.
TEST(SuspendedMemory, ComesToWhoCannotDrainWithoutIt) {
  Suspended desk;
  desk.open_two(60);
  desk.has(2, 10, 20);
  desk.suspend(2);
  desk.turn({{2, kHeldBack}, {1, kIdle}});
  desk.has(1, 50, 10);
  desk.settle();
  EXPECT_GE(desk.room(2), 30u);
  desk.turn({{1, kIdle}, {2, kSuspended}});
  EXPECT_EQ(desk.room(2), 0u);
}

// It is told what to give up, and nothing else: its process may be frozen.
TEST(SuspendedMemory, IsNeverRaised) {
  Suspended desk;
  desk.open_two(70);
  desk.turn({{1, kHolding}, {2, kIdle}});
  EXPECT_FALSE(desk.want(2, 0, 40)->refused()) << "its thread will take it in a moment";
  desk.has(2, 0, 10);
  desk.suspend(2);
  desk.turn({{1, kHolding}, {2, kSuspended}});
  desk.settle();
  EXPECT_EQ(desk.commitment(2), 10u);
  const std::uint32_t last = desk.bounds[2].sequence;
  desk.reports[2].unpageable = 5 * kGiB;  // which its room does not allow
  desk.say(2);
  desk.now += 1s;
  desk.has(1, 5);
  EXPECT_EQ(desk.bounds[2].sequence, last);
  EXPECT_GE(desk.room(1), 74u) << "and nobody's share waits for that";
}

// Memory that a seat lacked when it was suspended is no obstacle any more.
TEST(SuspendedMemory, IsInNobodysWay) {
  Suspended desk;
  desk.open_two(60, 0, 0);
  desk.has(2, 0, 60);
  desk.turn({{2, kHolding}, {1, kLeaving}});
  for (int i = 0; i < 10 && !is_obstacle(desk.outlooks[2]); ++i) {
    desk.now += 1s;
    desk.plan();
  }
  ASSERT_EQ(desk.outlooks[2], MemoryOutlook::kNothingMoves);
  desk.planner.set_suspended(desk.now, seat(2), true);
  desk.turn({{1, kIdle}, {2, kSuspended}});
  EXPECT_EQ(desk.outlooks[2], MemoryOutlook::kUnknown);
}

// A seat that takes no note any more is told next to nothing.
TEST(SuspendedMemory, IsNotSpokenToOnceItIsGone) {
  Suspended desk;
  desk.open_two(40);
  desk.suspend(1);
  desk.turn({{2, kHolding}, {1, kSuspended}});
  desk.has(1, 0, 40);
  desk.settle();
  const std::uint32_t last = desk.bounds[1].sequence;
  EXPECT_TRUE(desk.planner.view(seat(1))->is_told);
  for (std::uint64_t gib = 10; gib <= 70; gib += 5) {
    desk.want(2, gib, gib);
    desk.has(2, gib);
    desk.set_foreign((gib % 4) * kGiB);
    desk.now += 1s;
    desk.plan();
  }
  EXPECT_EQ(desk.bounds[1].sequence, last);
}

// One quota for a run of which some processes stand still: they keep their part of it.
TEST(SuspendedMemory, CountsAgainstItsQuota) {
  Suspended desk;
  const Quota quota{.group = 1, .bytes = 50 * kGiB};
  desk.open(1, quota);
  desk.open(2, quota);
  desk.settle();
  desk.has(1, 30);
  desk.suspend(1);
  desk.turn({{2, kHolding}, {1, kSuspended}});
  desk.has(1, 0, 30);
  desk.settle();
  EXPECT_LE(desk.commitment(2), 20u);
  ASSERT_TRUE(desk.want(2, 0, 25));
  EXPECT_TRUE(desk.answer(2)->refused());
}

}  // namespace
}  // namespace gpumux::sched
