// SPDX-License-Identifier: Apache-2.0
// Managed memory in the residency planner by script. Goal: it may be more than the GPU, gets the GPU for its turn,
// makes way for others, and counts in quotas. Method: as in residency_test.cc.
#include <gtest/gtest.h>

#include "sched/testing/residency_desk.h"

namespace gpumux::sched {
namespace {

TEST(Residency, ManagedMemoryMayBeMoreThanTheGpuButNotMoreThanAllThereIs) {
  Desk desk(80, 100);
  desk.open(1);
  const auto refused = desk.want(1, 0, 120);
  ASSERT_TRUE(refused);
  EXPECT_TRUE(refused->refused()) << "so much could never be on the GPU";
  const auto given = desk.want(1, 0, 120, 120);
  ASSERT_TRUE(given);
  EXPECT_FALSE(given->refused());
  EXPECT_GE(given->commitment, 120 * kGiB);
  desk.has_managed(1, 120);
  const auto beyond = desk.want(1, 0, 181, 181);
  ASSERT_TRUE(beyond);
  EXPECT_TRUE(beyond->refused()) << "GPU and host memory together are 180";
  // That leaves less for others.
  desk.open(2);
  desk.say(1);
  desk.say(2);
  EXPECT_LE(desk.commitment(2), 60u);
  const auto too_much = desk.want(2, 0, 70);
  ASSERT_TRUE(too_much);
  EXPECT_TRUE(too_much->refused());
}

// Its pages count for no seat, so no seat has to wait for them. While it runs it is given the GPU, and the next seat is
// told so.
TEST(Residency, ManagedMemoryIsGivenTheGpuForItsTurnAndMakesWay) {
  Desk desk;
  desk.open_two();
  desk.has_managed(1, 60);
  desk.has(2, 50);
  EXPECT_FALSE(desk.planner.fits_together(kGpu, 0));
  EXPECT_TRUE(desk.planner.is_tight(kGpu)) << "turns matter";
  EXPECT_EQ(desk.planner.host_demand(kGpu).evicted, 0u)
      << "none of it will ever be evicted to the daemon's host memory";
  desk.turn({{1, kHolding}, {2, kIdle}});
  EXPECT_EQ(desk.room(2), 20u) << "it is in the way";
  desk.has(2, 20, 30);
  EXPECT_GE(desk.room(1), 60u);
  desk.turn({{1, kHolding}, {2, kNext}}, 80ms);
  EXPECT_TRUE(desk.commands.evictions.empty()) << "a short turn is not spent without one's memory";
  ASSERT_TRUE(desk.planner.next_deadline(kGpu));
  EXPECT_EQ(*desk.planner.next_deadline(kGpu), desk.now + 70ms);
  desk.now += 70ms;
  desk.plan();
  ASSERT_EQ(desk.commands.evictions.size(), 1u);
  EXPECT_EQ(desk.commands.evictions[0].managed, 30 * kGiB) << "as much as the next one lacks";
  desk.turn({{2, kNext}, {1, kLeaving}});
  desk.say(1);
  EXPECT_GE(desk.room(2), 50u) << "nothing has to be said to have been freed";
}

TEST(Residency, NoMoreManagedMemoryLeavesAheadThanThereIs) {
  Desk desk;
  desk.open(1);
  desk.open(2);
  desk.turn({{1, kHolding}, {2, kIdle}});
  desk.has(1, 50);
  desk.has_managed(1, 10);
  desk.say(2);
  desk.has(2, 20, 20);
  desk.turn({{1, kHolding}, {2, kNext}}, 80ms);
  desk.now += 70ms;
  desk.plan();
  ASSERT_EQ(desk.commands.evictions.size(), 1u);
  EXPECT_EQ(desk.commands.evictions[0].managed, 10 * kGiB);
}

TEST(Residency, AQuotaHoldsForManagedMemoryToo) {
  Desk desk;
  const Quota quota{.group = 1, .bytes = 30 * kGiB};
  desk.open(1, quota);
  desk.say(1);
  const auto given = desk.want(1, 0, 30, 30);
  ASSERT_TRUE(given);
  EXPECT_FALSE(given->refused());
  const auto beyond = desk.want(1, 0, 31, 31);
  ASSERT_TRUE(beyond);
  EXPECT_TRUE(beyond->refused());
}

TEST(Residency, OnlyManagedMemoryMayBeMoreWhereNobodyIsEvicted) {
  Desk desk(80, 100);
  desk.planner.set_free_only(kGpu, true);
  desk.open_two();
  const auto given = desk.want(1, 0, 120, 120);
  ASSERT_TRUE(given);
  EXPECT_FALSE(given->refused());
  desk.has_managed(1, 120);
  desk.say(2);
  desk.want(2, 0, 60);
  desk.say(1);  // it confirms that the room it was given ahead is taken back
  const auto fits = desk.answer(2);
  ASSERT_TRUE(fits);
  EXPECT_FALSE(fits->refused()) << "managed memory makes way";
  const auto beyond = desk.want(2, 0, 81);
  ASSERT_TRUE(beyond);
  EXPECT_TRUE(beyond->refused());
}

}  // namespace
}  // namespace gpumux::sched
