// SPDX-License-Identifier: Apache-2.0
// The residency planner's expectation of each seat's memory, for the lease core. Method: a desk of seats
// (residency_desk.h).
#include "sched/testing/residency_desk.h"

namespace gpumux::sched {
namespace {

using enum MemoryOutlook;

// Three seats on a GPU of 80 GiB, of which two fit. The first and the second have 35 GiB each, the third lacks 30 of
// 35.
struct Three : Desk {
  Three() {
    for (const std::uint64_t tenant : {1u, 2u, 3u}) open(tenant);
    has(1, 35);
    has(2, 35);
    has(3, 5, 30);
    settle();
  }
};

// Memory that a holder waits to allocate comes as long as something moves.
TEST(Outlook, OfAHolderThatAsksIsThatItComes) {
  Desk desk;
  desk.open_two(70);
  EXPECT_TRUE(desk.want(2, 40, 40)) << "it holds no lease, and asks again when it does";
  EXPECT_EQ(desk.outlooks[2], kWants);
  desk.turn({{2, kHolding}, {1, kWaiting}});
  EXPECT_FALSE(desk.want(2, 40, 40));
  EXPECT_EQ(desk.outlooks[2], kComes);
  desk.plan();
  EXPECT_TRUE(desk.commands.expected.empty()) << "it is said once";
  // Nothing moves; then something does.
  desk.now += kHolderPatience - 1ms;
  desk.plan();
  EXPECT_EQ(desk.outlooks[2], kComes);
  ASSERT_EQ(desk.planner.next_deadline(kGpu), desk.now + 1ms);
  desk.now += 1ms;
  desk.plan();
  EXPECT_EQ(desk.outlooks[2], kUnknown);
  desk.has(1, 60, 10);
  EXPECT_EQ(desk.outlooks[2], kComes);
}

// A program fills its memory piece by piece.
TEST(Outlook, OfAHolderThatGrowsIsThatMoreComes) {
  Desk desk;
  desk.open_two(70);
  desk.turn({{2, kHolding}, {1, kWaiting}});
  EXPECT_FALSE(desk.want(2, 40, 40));
  desk.has(1, 40, 30);
  ASSERT_TRUE(desk.answer(2));
  desk.has(2, 40);
  EXPECT_EQ(desk.outlooks[2], kComes);
  ASSERT_EQ(desk.planner.next_deadline(kGpu), desk.now + kTakePatience);
  desk.now += kTakePatience;
  desk.plan();
  EXPECT_EQ(desk.outlooks[2], kUnknown);
  // Memory that the seat had before is no growth.
  desk.has(2, 20);
  desk.turn({{1, kHolding}, {2, kWaiting}});
  desk.has(1, 60, 10);
  desk.turn({{2, kHolding}, {1, kWaiting}});
  EXPECT_FALSE(desk.want(2, 40, 40));
  EXPECT_EQ(desk.outlooks[2], kComes);
  desk.has(1, 40, 30);
  ASSERT_TRUE(desk.answer(2));
  EXPECT_EQ(desk.outlooks[2], kUnknown);
}

TEST(Outlook, OfTheNextSeatThatLosesNothingIsThatItStays) {
  Three desk;
  desk.turn({{3, kHolding}, {1, kNext}, {2, kWaiting}});
  EXPECT_EQ(desk.outlooks[3], kComes) << "what it lacks, the second gives up";
  EXPECT_EQ(desk.outlooks[1], kStays);
  EXPECT_EQ(desk.outlooks[2], kUnknown);
}

TEST(Outlook, OfTheNextSeatWhoseMemoryIsNeededIsNotKnown) {
  Desk desk;
  desk.open_two(60);
  desk.has(2, 10, 50);
  desk.turn({{2, kHolding}, {1, kNext}});
  EXPECT_EQ(desk.outlooks[2], kComes);
  EXPECT_EQ(desk.outlooks[1], kUnknown);
}

TEST(Outlook, OfTheNextSeatIsThatItsMemoryComesIfNoHolderHasToGiveItUp) {
  Three desk;
  desk.turn({{1, kHolding}, {3, kNext}, {2, kWaiting}});
  EXPECT_EQ(desk.outlooks[3], kComes);
  // Nothing of it has come for a while.
  desk.now += kHolderPatience;
  desk.plan();
  EXPECT_EQ(desk.outlooks[3], kUnknown);
  desk.turn({{1, kHolding}, {2, kHolding}, {3, kNext}});
  desk.has(1, 35);
  EXPECT_EQ(desk.outlooks[3], kUnknown) << "both hold what it lacks";
}

// A borrower's memory is kept from the lender, too: if that needs it, the loan is to end.
TEST(Outlook, OfALenderWhoseMemoryTheBorrowerHasIsNotKnown) {
  Three desk;
  desk.turn({{3, kHolding}, {1, kHolding}, {2, kNext}});
  EXPECT_EQ(desk.outlooks[3], kComes);
  desk.has(1, 60);
  EXPECT_EQ(desk.outlooks[3], kUnknown);
}

// Its memory is stuck on the GPU. When it holds, that is kept from the holder, which comes first.
TEST(Outlook, OfTheNextSeatWhoseMemoryAHolderLacksIsNotKnown) {
  Desk desk;
  desk.open_two(60);
  desk.has(2, 10, 50);
  desk.reports[1].stuck = true;
  desk.turn({{2, kHolding}, {1, kNext}});
  desk.say(1);
  EXPECT_EQ(desk.outlooks[2], kComes);
  EXPECT_EQ(desk.outlooks[1], kUnknown);
  desk.turn({{2, kHolding}, {1, kHolding}});
  EXPECT_EQ(desk.outlooks[2], kUnknown);
}

// Without a lease a program does not fill its memory.
TEST(Outlook, OfASeatThatGrewInItsLastTurnIsThatItStays) {
  Desk desk;
  desk.open_two(70);
  desk.turn({{2, kHolding}, {1, kWaiting}});
  EXPECT_FALSE(desk.want(2, 40, 40));
  desk.has(1, 40, 30);
  ASSERT_TRUE(desk.answer(2));
  desk.has(2, 40);
  desk.turn({{1, kHolding}, {2, kNext}});
  desk.has(2, 10);
  desk.has(1, 69, 1);
  EXPECT_EQ(desk.outlooks[1], kComes);
  EXPECT_EQ(desk.outlooks[2], kStays);
  desk.turn({{1, kHolding}, {2, kHolding}});
  EXPECT_EQ(desk.outlooks[2], kUnknown) << "it lacks nothing, and does not wait";
}

// So it keeps the turn while it gets what it asks for.
TEST(Outlook, OfABorrowerThatGrowsIsNotKnown) {
  Desk desk;
  desk.open_two(10);
  desk.turn({{1, kHolding}, {2, kHolding}});
  ASSERT_TRUE(desk.want(2, 20, 20));
  EXPECT_EQ(desk.outlooks[2], kUnknown);
  desk.turn({{2, kHolding}, {1, kWaiting}});
  EXPECT_EQ(desk.outlooks[2], kComes) << "now the turn is its own";
}

// A quantum does not stand still for a program that only asks.
TEST(Outlook, OfAHolderThatAsksForTheSameAgainIsNotKnown) {
  Desk desk;
  desk.open_two(10);
  desk.turn({{2, kHolding}, {1, kWaiting}});
  ASSERT_TRUE(desk.want(2, 20, 20));
  EXPECT_EQ(desk.outlooks[2], kComes);
  desk.now += kTakePatience;
  ASSERT_TRUE(desk.want(2, 20, 20));
  EXPECT_EQ(desk.outlooks[2], kUnknown);
}

// Its wish is not answered yet: another seat has to take note that it may allocate less.
TEST(Outlook, OfAWaitingSeatThatAsksIsThatItWants) {
  Desk desk(80, 0);
  desk.open_two(30);
  desk.open(3);
  desk.turn({{3, kHolding}, {2, kNext}, {1, kWaiting}});
  ASSERT_FALSE(desk.want(2, 45, 45));
  EXPECT_EQ(desk.outlooks[2], kWants);
}

// Another of its threads asks for a commitment only. The first one still asks for room in the next lease.
TEST(Outlook, OfASeatThatWantsMoreIsNotChangedByAnotherWish) {
  Desk desk;
  desk.open_two(70);
  ASSERT_TRUE(desk.want(2, 40, 40));
  ASSERT_TRUE(desk.want(2, 0, 45));
  EXPECT_EQ(desk.outlooks[2], kWants);
  desk.turn({{2, kHolding}, {1, kWaiting}});
  EXPECT_EQ(desk.outlooks[2], kUnknown);
}

// The lease core hears one after the other, and lends no turn to a seat whose memory was to stay before.
TEST(Outlook, WhatIsOverIsSaidFirst) {
  Desk desk;
  desk.open_two(60);
  desk.has(2, 10);
  desk.turn({{2, kHolding}, {1, kNext}});
  EXPECT_EQ(desk.outlooks[1], kStays);
  EXPECT_FALSE(desk.want(2, 40, 40));
  ASSERT_EQ(desk.commands.expected.size(), 2u);
  EXPECT_EQ(desk.commands.expected[0].seat, seat(1));
  EXPECT_EQ(desk.commands.expected[0].outlook, kUnknown);
  EXPECT_EQ(desk.commands.expected[1].outlook, kComes);
}

}  // namespace
}  // namespace gpumux::sched
