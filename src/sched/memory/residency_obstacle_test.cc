// SPDX-License-Identifier: Apache-2.0
// Which seats cannot have their memory, and why. Goal: a seat whose memory comes is never called obstructed, and a seat
// that would keep a GPU idle is always called so. Method: as residency_test.cc.
#include <gtest/gtest.h>

#include "sched/testing/residency_desk.h"

namespace gpumux::sched {
namespace {

// Why the seat's memory cannot come; kUnknown: it can.
MemoryOutlook obstacle_of(const Desk& desk, std::uint64_t tenant) {
  const auto found = desk.outlooks.find(tenant);
  return found != desk.outlooks.end() && is_obstacle(found->second) ? found->second : MemoryOutlook::kUnknown;
}

// The other one has been told to give way, and does not: it waits for host memory, or is stopped.
TEST(Residency, AHolderForWhomNothingMovesIsTriedAgainEverMoreRarely) {
  Desk desk;
  desk.open_two(60);
  desk.has(2, 0, 50);
  desk.turn({{2, kHolding}, {1, kWaiting}});
  desk.settle();
  Duration pause = kHolderRetry;
  for (int i = 0; i < 3; ++i) {
    const auto impatient = desk.planner.next_deadline(kGpu);
    ASSERT_TRUE(impatient);
    EXPECT_EQ(*impatient, desk.now + kHolderPatience);
    desk.now = *impatient - 1ms;
    desk.plan();
    EXPECT_EQ(obstacle_of(desk, 2), MemoryOutlook::kUnknown);
    desk.now += 1ms;
    desk.plan();
    EXPECT_EQ(obstacle_of(desk, 2), MemoryOutlook::kNothingMoves);
    desk.turn({{1, kHolding}, {2, kWaiting}});
    EXPECT_EQ(obstacle_of(desk, 2), MemoryOutlook::kNothingMoves);
    desk.settle();
    EXPECT_EQ(desk.planner.next_deadline(kGpu), desk.now + pause);
    desk.now += pause;
    desk.plan();
    EXPECT_EQ(obstacle_of(desk, 2), MemoryOutlook::kUnknown);
    desk.turn({{2, kHolding}, {1, kWaiting}});
    desk.settle();
    pause *= 2;
  }
  // Something moves.
  desk.now += kHolderPatience - 1ms;
  desk.has(1, 59, 1);
  desk.now += kHolderPatience - 1ms;
  desk.plan();
  EXPECT_EQ(obstacle_of(desk, 2), MemoryOutlook::kUnknown);
  EXPECT_LT(desk.room(2), 51u);
}

TEST(Residency, WhatFitsBesideTheOthersIsObstructedNoMore) {
  Desk desk;
  desk.open_two(60);
  desk.has(2, 0, 50);
  desk.turn({{2, kHolding}, {1, kWaiting}});
  desk.say(1);
  desk.now += kHolderPatience + kRoomPatience;
  desk.plan();
  ASSERT_EQ(obstacle_of(desk, 2), MemoryOutlook::kNothingMoves);
  desk.turn({{1, kHolding}, {2, kWaiting}});
  desk.has(1, 20);
  EXPECT_EQ(obstacle_of(desk, 2), MemoryOutlook::kUnknown);
}

// The memory that others keep is seen to go up and down: it counts when it has lasted.
TEST(Residency, WhatNobodyCanGiveUpObstructsAfterAWhile) {
  Desk desk;
  desk.open_two(0, 0, 30);
  desk.turn({{2, kHolding}, {1, kIdle}});
  desk.has(2, 10, 41);
  EXPECT_EQ(obstacle_of(desk, 2), MemoryOutlook::kUnknown);
  desk.settle();
  desk.now += kHolderPatience;
  desk.plan();
  EXPECT_EQ(obstacle_of(desk, 2), MemoryOutlook::kOtherTenants);
  desk.has(1, 1, 0, 29);
  EXPECT_NE(obstacle_of(desk, 2), MemoryOutlook::kOtherTenants);
  desk.has(2, 51);
  EXPECT_EQ(obstacle_of(desk, 2), MemoryOutlook::kUnknown);
}

// Now and then there is a little more for it, and never enough.
TEST(Residency, CrumbsDoNotKeepWhoIsObstructedWaiting) {
  constexpr std::uint64_t kCrumb = std::uint64_t{2} << 20;
  Desk desk;
  std::uint64_t foreign = kGiB;
  desk.set_foreign(foreign);
  desk.open_two(0, 0, 30);
  desk.turn({{2, kHolding}, {1, kIdle}});
  desk.has(2, 10, 41);
  desk.settle();
  const TimePoint since = desk.now;
  const std::uint64_t room = desk.bounds[2].room;
  MemoryOutlook found = MemoryOutlook::kUnknown;
  while (!is_obstacle(found) && desk.now < since + 2 * kHolderPatience) {
    desk.now += 250ms;
    desk.set_foreign(foreign -= kCrumb);
    desk.plan();
    found = obstacle_of(desk, 2);
    if (!is_obstacle(found)) desk.say(2);
    found = obstacle_of(desk, 2);
  }
  EXPECT_GT(desk.bounds[2].room, room);
  EXPECT_EQ(found, MemoryOutlook::kOtherTenants);
  EXPECT_EQ(desk.now, since + kHolderPatience);
}

TEST(Residency, OtherProgramsObstructAfterAWhile) {
  Desk desk;
  desk.open(1);
  desk.set_foreign(30 * kGiB);
  desk.planner.set_other_programs(kGpu, true);
  desk.turn({{1, kHolding}});
  desk.has(1, 10, 41);
  desk.settle();
  EXPECT_EQ(obstacle_of(desk, 1), MemoryOutlook::kUnknown);
  desk.now += kHolderPatience;
  desk.plan();
  EXPECT_EQ(obstacle_of(desk, 1), MemoryOutlook::kOtherPrograms);
  EXPECT_FALSE(desk.bounds[1].is_stranded) << "another program may end";
}

// Each seat holds in turn, for as long as it is believed that its memory comes.
void hold_in_turn(Desk& desk) {
  for (const std::uint64_t tenant : {1u, 2u}) {
    desk.turn({{tenant, kHolding}, {3 - tenant, kWaiting}});
    desk.settle();
    desk.now += kHolderPatience;
    desk.plan();
    desk.plan();  // as the node machine does after an obstruction
  }
}

// The contexts of both leave no room for the memory of either. Nothing can move.
TEST(Residency, TheNewestOfSeatsThatBlockEachOtherIsStranded) {
  Desk desk;
  desk.open_two(0, 1);
  desk.has(2, 0, 1);
  desk.set_foreign(80 * kGiB);
  hold_in_turn(desk);
  // Programs that have ended may still give something back.
  desk.now += 5s;
  desk.set_foreign(79 * kGiB + kGiB / 2);
  EXPECT_EQ(desk.planner.next_deadline(kGpu), desk.now + kRoomPatience);
  desk.now += kRoomPatience - 1ms;
  desk.plan();
  EXPECT_FALSE(desk.bounds[1].is_stranded || desk.bounds[2].is_stranded);
  desk.now += 1ms;
  desk.plan();
  desk.plan();  // as the node machine does after an obstruction
  EXPECT_FALSE(desk.bounds[1].is_stranded);
  EXPECT_TRUE(desk.bounds[2].is_stranded);
  EXPECT_LE(desk.planner.next_deadline(kGpu), desk.now + kStrandedPatience);
  // Its program destroys a context.
  desk.set_foreign(60 * kGiB);
  desk.plan();
  desk.plan();
  EXPECT_FALSE(desk.bounds[2].is_stranded);
}

// A notebook shows the error, and keeps its contexts.
TEST(Residency, TheNextSeatIsStrandedIfTheFirstKeepsWhatItHas) {
  Desk desk;
  desk.open_two(0, 1);
  desk.has(2, 0, 1);
  desk.set_foreign(80 * kGiB);
  hold_in_turn(desk);
  desk.now += kRoomPatience;
  desk.plan();
  desk.plan();
  ASSERT_TRUE(desk.bounds[2].is_stranded);
  desk.now += kStrandedPatience - 1ms;
  desk.plan();
  desk.plan();
  EXPECT_FALSE(desk.bounds[1].is_stranded);
  desk.now += 1ms;
  desk.plan();
  desk.plan();
  EXPECT_TRUE(desk.bounds[1].is_stranded);
  EXPECT_GT(desk.planner.next_deadline(kGpu).value_or(TimePoint::max()), desk.now) << "all that can be told is told";
}

TEST(Residency, NoSeatIsStrandedWhileAnotherOneCanRun) {
  Desk desk;
  desk.open_two(0, 1);
  desk.has(2, 0, 1);
  desk.open(3);  // has nothing, and may end
  desk.set_foreign(80 * kGiB);
  hold_in_turn(desk);
  desk.now += kLongestRoomWait;
  desk.plan();
  desk.plan();
  EXPECT_FALSE(desk.bounds[1].is_stranded || desk.bounds[2].is_stranded);
}

// The driver refuses room that a seat was given. If that counted as the seat's memory, contexts would seem to be less.
TEST(Residency, RoomThatTheDriverRefusesExplainsNothingOnTheGpu) {
  Desk desk;
  desk.open(1);
  desk.has(1, 10, 0, 5);
  desk.reports[1].hidden = 3 * kGiB;
  desk.say(1);
  EXPECT_EQ(desk.planner.on_gpu(kGpu), 12 * kGiB);
}

// All the room is there, and it does not fetch what it has elsewhere: it is stopped, or the driver refuses it.
TEST(Residency, AHolderThatFetchesNothingIsObstructed) {
  Desk desk;
  desk.open_two(20, 30);
  desk.turn({{1, kHolding}, {2, kWaiting}});
  desk.settle();
  ASSERT_GE(desk.room(1), 50u);
  desk.now += kHolderPatience - 1ms;
  desk.plan();
  EXPECT_EQ(obstacle_of(desk, 1), MemoryOutlook::kUnknown);
  desk.has(1, 30, 20);  // slow, but something comes
  desk.now += kHolderPatience - 1ms;
  desk.plan();
  EXPECT_EQ(obstacle_of(desk, 1), MemoryOutlook::kUnknown);
  ASSERT_EQ(desk.planner.next_deadline(kGpu), desk.now + 1ms);
  desk.now += 1ms;
  desk.plan();
  EXPECT_EQ(obstacle_of(desk, 1), MemoryOutlook::kNothingMoves);
  desk.has(1, 50);
  EXPECT_EQ(obstacle_of(desk, 1), MemoryOutlook::kUnknown);
}

TEST(Residency, MemoryOfTheDeadIsWaitedForWithinBounds) {
  Desk desk;
  desk.open(1);
  desk.has(1, 80);
  desk.planner.closed(desk.now, seat(1));
  desk.open(2);
  EXPECT_EQ(desk.room(2), 0u);
  desk.planner.returned(desk.now, kGpu, 30 * kGiB);
  desk.plan();
  EXPECT_EQ(desk.room(2), 50u);
  desk.say(2);
  desk.now += kReturnPatience;  // the rest is not its any more, or is counted with what is not ours
  desk.plan();
  EXPECT_EQ(desk.room(2), 80u);
}

TEST(Residency, TheDeadHaveLeftNoMoreThanIsInUse) {
  Desk desk;
  desk.open(1);
  desk.has(1, 80);
  const TimePoint before = desk.now;
  desk.now += 1ms;
  desk.planner.closed(desk.now, seat(1));
  desk.open(2);
  EXPECT_FALSE(desk.planner.looked(desk.now, before, kGpu, 3 * kGiB)) << "it was there then";
  EXPECT_FALSE(desk.planner.looked(desk.now, desk.now + 1ms, kGpu, 90 * kGiB));
  desk.plan();
  EXPECT_EQ(desk.room(2), 0u);
  EXPECT_TRUE(desk.planner.looked(desk.now, desk.now + 1ms, kGpu, 3 * kGiB));
  desk.plan();
  EXPECT_EQ(desk.room(2), 77u);
}

}  // namespace
}  // namespace gpumux::sched
