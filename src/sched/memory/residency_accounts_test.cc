// SPDX-License-Identifier: Apache-2.0
// How much tenants that lie or hoard can take from others. Goal: a seat counts for what it is promised, not for what it
// says. Method: seats that say false numbers, and a seat that asks for what it is entitled to.
#include <gtest/gtest.h>

#include "sched/testing/residency_desk.h"

namespace gpumux::sched {
namespace {

// Attack: many seats say that they have allocated twice what a GPU holds, and ask for nothing.
TEST(ResidencyAccounts, SeatsThatSayTheyHaveMoreTakeNoMoreThanThereIs) {
  Desk desk(80, 200);
  desk.open(1);
  desk.settle();
  ASSERT_TRUE(desk.want(1, 0, 60));
  desk.has(1, 60);
  for (std::uint64_t liar = 2; liar < 6; ++liar) {
    desk.open(liar);
    desk.reports[liar].allocated = 160 * kGiB;
    desk.say(liar);
  }
  std::uint64_t promised = 0;
  for (std::uint64_t tenant = 1; tenant < 6; ++tenant) promised += desk.planner.view(seat(tenant))->promised;
  EXPECT_LE(promised, 280 * kGiB);
  EXPECT_GE(desk.planner.view(seat(1))->promised, 60 * kGiB);
}

// Attack: the same, and another account begins.
TEST(ResidencyAccounts, SeatsThatSayTheyHaveMoreLeaveWhatIsReserved) {
  Desk desk(80, 150);
  desk.planner.set_host_budget(150 * kGiB, 0, 10 * kGiB);
  for (std::uint64_t liar = 2; liar < 6; ++liar) {
    desk.open(liar, {}, 1);
    desk.reports[liar].allocated = 160 * kGiB;
    desk.say(liar);
  }
  desk.open(1, {}, 2);
  desk.settle();
  const auto first = desk.want(1, 0, 8);
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->refused());
}

// A program may have more than its promise (the driver made it, or there was no daemon). It is promised as a wish is.
TEST(ResidencyAccounts, WhatThereIsRoomForIsBelieved) {
  Desk desk(80, 200);
  desk.open(1);
  desk.has(1, 70, 80);
  EXPECT_EQ(desk.planner.view(seat(1))->promised, 150 * kGiB);
}

// Attack: an account has itself promised all that there is, and keeps it. Another account begins.
TEST(ResidencyAccounts, AnAccountThatComesLastCanBegin) {
  Desk desk(80, 150);
  desk.planner.set_host_budget(150 * kGiB, 0, 10 * kGiB);
  for (const std::uint64_t greedy : {1u, 2u, 3u}) {
    desk.open(greedy, {}, 1);
    desk.settle();
    ASSERT_TRUE(desk.want(greedy, 0, greedy < 3 ? 80 : 70));
    desk.has(greedy, 0, greedy < 3 ? 80 : 70);
  }
  const auto beyond = desk.want(3, 0, 75);
  ASSERT_TRUE(beyond);
  EXPECT_TRUE(beyond->refused()) << "it has begun already";
  desk.open(4, {}, 2);
  desk.open(5, {}, 2);
  desk.settle();
  const auto first = desk.want(4, 0, 6);
  ASSERT_TRUE(first);
  EXPECT_FALSE(first->refused());
  desk.has(4, 0, 6);
  const auto second = desk.want(5, 0, 4);
  ASSERT_TRUE(second);
  EXPECT_FALSE(second->refused());
  desk.has(5, 0, 4);
  const auto third = desk.want(5, 0, 5);
  ASSERT_TRUE(third);
  EXPECT_TRUE(third->refused()) << "no account begins with more than is reserved";
  EXPECT_GE(desk.commitment(3), 70u);
}

// Two accounts wait for what comes back: the one with less than its share gets it, in any order of turns.
TEST(ResidencyAccounts, WhatComesBackGoesToTheAccountThatHasLessThanItsShare) {
  Desk desk(80, 150);
  for (const std::uint64_t greedy : {1u, 2u, 3u}) {
    desk.open(greedy, {}, 1);
    desk.settle();
    desk.want(greedy, 0, greedy < 3 ? 80 : 60);
    desk.has(greedy, 0, greedy < 3 ? 80 : 60);
  }
  desk.open(4, {}, 2);
  desk.settle();
  desk.turn({{3, kHolding}, {4, kWaiting}, {1, kWaiting}, {2, kWaiting}});
  // Both want what one of them can have: 10 GiB are left.
  desk.planner.wanted(desk.now, seat(3), ++desk.ticket, 0, 70 * kGiB);
  desk.planner.wanted(desk.now, seat(4), desk.ticket, 0, 10 * kGiB);
  desk.plan();
  desk.settle();
  EXPECT_GE(desk.commitment(4), 10u);
  EXPECT_LT(desk.commitment(3), 70u);
}

// Attack: an account over its share says that it has more, while another one waits for what has come free.
TEST(ResidencyAccounts, AnAccountThatSaysItHasMoreTakesNothingFromOneThatWaits) {
  Desk desk(80, 150);
  for (const std::uint64_t greedy : {1u, 2u, 3u}) {
    desk.open(greedy, {}, 1);
    desk.settle();
    desk.want(greedy, 0, greedy < 3 ? 80 : 60);
    desk.has(greedy, 0, greedy < 3 ? 80 : 60);
  }
  desk.open(4, {}, 2);
  desk.settle();
  desk.planner.wanted(desk.now, seat(4), ++desk.ticket, 0, 10 * kGiB);
  desk.reports[3].allocated = 160 * kGiB;
  desk.say(3);
  desk.settle();
  EXPECT_GE(desk.commitment(4), 10u);
}

// The last tenant that comes back ends the wait. The earlier daemon promised it what it says next.
TEST(ResidencyAccounts, TheLastSeatThatComesBackIsBelieved) {
  Desk desk(80, 10);
  desk.planner.await_tenants(desk.now + 2s);
  desk.planner.opened(desk.now, seat(1), {{}, 1}, false);
  desk.planner.await_tenants(desk.now);
  desk.turns.push_back({seat(1), TurnKind::kIdle, TimePoint::max()});
  desk.has(1, 80, 40);
  EXPECT_EQ(desk.planner.view(seat(1))->promised, 120 * kGiB);
}

}  // namespace
}  // namespace gpumux::sched
