// SPDX-License-Identifier: Apache-2.0
// The residency planner by script: one rule of docs/memory-rules.md each. Goal: which seat gets room, from which, and
// when. Method: reports and turns are written down, and the bounds that come out are looked at. Seats follow their
// bounds at once unless the script says otherwise.
#include <gtest/gtest.h>

#include "sched/testing/residency_desk.h"

namespace gpumux::sched {
namespace {

TEST(Residency, AloneASeatHasTheWholeGpu) {
  Desk desk;
  desk.planner.add_gpu(kGpu, 80 * kGiB, kGiB);
  desk.set_foreign(4 * kGiB);
  desk.open(1);
  EXPECT_EQ(desk.room(1), 75u);
  EXPECT_EQ(desk.commitment(1), 75u);  // what does not fit at once can never run, even with more host memory
  const std::size_t before = desk.sent;
  desk.has(1, 60);
  desk.has(1, 75);
  EXPECT_EQ(desk.sent, before);  // and nothing need be said any more
}

TEST(Residency, WhoComesGetsItsShareOfWhatIsFree) {
  Desk desk;
  desk.open(1);
  desk.has(1, 20);
  desk.open(2);  // at first nothing: the other one may have used all of it by now
  desk.say(1);   // it has not
  EXPECT_GE(desk.room(2), 20u);
  EXPECT_GE(desk.room(1), 40u);
  EXPECT_LE(desk.room(1) + desk.room(2), 80u);
}

TEST(Residency, ProgramsThatFitTogetherCostNoMessages) {
  Desk desk;
  desk.open(1);
  desk.open(2);
  desk.has(1, 30);
  desk.has(2, 30);
  desk.say(1);
  desk.say(2);
  const std::size_t before = desk.sent;
  for (int i = 0; i < 10; ++i) {
    desk.turn({{1, kHolding}, {2, kNext}});
    desk.turn({{2, kHolding}, {1, kLeaving}});
    desk.turn({{2, kHolding}, {1, kNext}});
    desk.turn({{1, kHolding}, {2, kLeaving}});
  }
  EXPECT_EQ(desk.sent, before);
  EXPECT_FALSE(desk.planner.is_tight(kGpu));
}

// A switch: what the next seat lacks is taken from the seat that leaves, and handed on as it comes.
TEST(Residency, ASwitchHandsOnWhatIsFreed) {
  Desk desk;
  desk.open(1);
  desk.open(2);
  desk.turn({{1, kHolding}, {2, kIdle}});
  desk.has(1, 50);
  desk.say(2);
  desk.has(2, 30, 20);
  desk.turn({{1, kHolding}, {2, kNext}});
  EXPECT_EQ(desk.room(1), 50u);  // a holder keeps what it has
  EXPECT_LE(desk.room(2), 30u);
  desk.turn({{2, kNext}, {1, kLeaving}});
  EXPECT_EQ(desk.room(1), 30u);  // only what is lacking
  EXPECT_LE(desk.room(2), 30u);  // and not before it is free
  desk.has(1, 45, 5);
  EXPECT_EQ(desk.room(2), 35u);
  desk.has(1, 30, 20);
  EXPECT_EQ(desk.room(2), 50u);
}

TEST(Residency, WhoseTurnIsFurthestAwayGivesFirst) {
  Desk desk(100);
  for (std::uint64_t tenant = 1; tenant <= 4; ++tenant) desk.open(tenant);
  for (std::uint64_t tenant = 1; tenant <= 4; ++tenant) desk.say(tenant);
  // 4 came back from idling: of its 40, nothing is there.
  desk.has(1, 30);
  desk.has(2, 30);
  desk.has(3, 30);
  desk.has(4, 0, 40);
  desk.turn({{1, kHolding}, {4, kNext}, {2, kWaiting}, {3, kIdle}});
  EXPECT_EQ(desk.room(1), 30u);
  EXPECT_EQ(desk.room(2), 30u);
  EXPECT_EQ(desk.room(3), 0u);
  desk.turn({{1, kHolding}, {4, kNext}, {3, kWaiting}, {2, kWaiting}});
  EXPECT_EQ(desk.room(2), 0u);
  EXPECT_EQ(desk.room(3), 30u);
}

TEST(Residency, UnpageableMemoryStays) {
  Desk desk;
  desk.open_two(20, 0, 30);
  desk.has(2, 0, 60);
  desk.turn({{2, kHolding}, {1, kIdle}});
  EXPECT_EQ(desk.room(1), 30u);
  desk.has(1, 0, 20, 30);
  EXPECT_EQ(desk.room(2), 50u);  // it can never have the 60
}

TEST(Residency, AHoldersAllocationIsMadeRoomFor) {
  Desk desk;
  desk.open_two(50);
  desk.turn({{2, kHolding}, {1, kIdle}});
  EXPECT_FALSE(desk.want(2, 60));  // not yet: the other one has to evict
  EXPECT_EQ(desk.room(1), 20u);
  desk.has(1, 20, 30);
  const auto answer = desk.answer(2);
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->refused());
  EXPECT_EQ(desk.room(2), 60u);
}

// Its thread has to wake up first. Until then no report may take back what it was given.
TEST(Residency, WhatWasAskedForIsKeptUntilItIsTaken) {
  Desk desk;
  desk.open_two(50);
  desk.turn({{2, kHolding}, {1, kIdle}});
  EXPECT_FALSE(desk.want(2, 60));
  desk.has(1, 20, 30);
  ASSERT_TRUE(desk.answer(2));
  // It has nothing yet, and the other one could use what it lost.
  desk.turn({{2, kHolding}, {1, kNext}});
  desk.say(1);
  desk.say(2);
  EXPECT_EQ(desk.room(2), 60u);
  desk.now += kTakePatience;
  desk.plan();
  EXPECT_LT(desk.room(2), 60u) << "nor for ever";
}

// Two seats run at once: what one of them was given is not room for the other one's next wish.
TEST(Residency, WhatAHolderWasGivenIsNotTakenByAnother) {
  Desk desk;
  desk.open_two();
  desk.has(1, 20);
  desk.has(2, 10);
  desk.turn({{1, kHolding}, {2, kHolding}});
  desk.want(2, 50);
  desk.say(1);
  ASSERT_TRUE(desk.answer(2));
  ASSERT_GE(desk.room(2), 50u);
  EXPECT_FALSE(desk.want(1, 40));
  desk.say(1);
  desk.say(2);
  EXPECT_GE(desk.room(2), 50u);
  // It does not take it: then it is another one's.
  desk.now += kTakePatience;
  desk.plan();
  desk.say(2);
  EXPECT_TRUE(desk.answer(1));
}

// Memory that a seat is given, takes and frees again at once belongs to no seat any more.
TEST(Residency, WhatWasGivenAndTakenIsNotKept) {
  Desk desk;
  desk.open_two(50);
  desk.turn({{2, kHolding}, {1, kIdle}});
  EXPECT_FALSE(desk.want(2, 60));
  desk.has(1, 20, 30);
  ASSERT_TRUE(desk.answer(2));
  desk.has(2, 60);
  desk.has(2, 10);
  desk.turn({{2, kHolding}, {1, kNext}});
  desk.say(2);
  EXPECT_GE(desk.room(1), 50u);
}

TEST(Residency, ACommitmentThatWasGivenIsKeptUntilItIsTaken) {
  Desk desk(80, 0);
  desk.open_two();
  desk.want(1, 0, 50);
  desk.say(2);
  ASSERT_TRUE(desk.answer(1));
  desk.want(2, 0, 60);
  desk.say(1);
  EXPECT_GE(desk.commitment(1), 50u);
  desk.now += kTakePatience;
  desk.plan();
  desk.say(1);
  ASSERT_TRUE(desk.answer(2));
  EXPECT_GE(desk.commitment(2), 60u);
}

// A member of a gang that has drained, and may be let through as long as the others have not.
TEST(Residency, WhoIsHeldBackKeepsItsMemoryAndGetsWhatItLacks) {
  Desk desk;
  desk.open_two(30, 20);
  desk.has(2, 40);
  desk.turn({{1, kHeldBack}, {2, kNext}});
  desk.say(1);
  desk.say(2);
  EXPECT_GE(desk.room(1), 40u);
  EXPECT_LE(desk.room(2), 30u);
  desk.has(2, 30, 10);
  EXPECT_EQ(desk.room(1), 50u);
}

// The last chunk of each is hardly ever full.
TEST(Residency, NotAllHostMemoryIsPromised) {
  Desk desk(80, 40);
  desk.planner.set_host_budget(40 * kGiB, kGiB, 0);
  desk.open_two();
  EXPECT_LE(desk.commitment(1) + desk.commitment(2), 118u);
  desk.has(1, 70);
  desk.want(2, 0, 49);
  ASSERT_TRUE(desk.answer(2));
  EXPECT_TRUE(desk.answer(2)->refused());
  desk.want(2, 0, 48);
  desk.say(1);
  ASSERT_TRUE(desk.answer(2));
  EXPECT_FALSE(desk.answer(2)->refused());
  Desk small(80, 0);
  small.planner.set_host_budget(40 * kGiB, 40 * kGiB, 0);
  small.open(1);
  small.open(2);
  small.has(1, 70);
  small.want(2, 0, 31);
  ASSERT_TRUE(small.answer(2));
  EXPECT_TRUE(small.answer(2)->refused());
  small.want(2, 0, 30);
  small.say(1);
  ASSERT_TRUE(small.answer(2));
  EXPECT_FALSE(small.answer(2)->refused()) << "half of it is promised all the same";
}

TEST(Residency, CommitmentsFitOnTheGpuAndInHostMemory) {
  Desk desk(80, 40);
  desk.open_two();
  EXPECT_LE(desk.commitment(1) + desk.commitment(2), 120u);
  desk.has(1, 70);
  // The other seat's unused commitment is taken back for it first.
  auto answer = desk.want(2, 0, 50);
  if (!answer) {
    desk.say(1);
    answer = desk.answer(2);
  }
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->refused());
  EXPECT_GE(desk.commitment(2), 50u);
  EXPECT_LE(desk.commitment(1) + desk.commitment(2), 120u);
  const auto more = desk.want(2, 0, 51);
  ASSERT_TRUE(more);
  EXPECT_TRUE(more->refused());
  EXPECT_EQ(more->refusal, Refusal::kHostMemory);
}

TEST(Residency, AQuotaIsForTheWholeGroup) {
  Desk desk;
  desk.open(1, {.group = 7, .bytes = 20 * kGiB});
  EXPECT_EQ(desk.bounds[1].total, 20 * kGiB);
  EXPECT_LE(desk.commitment(1), 20u);
  desk.has(1, 15);
  desk.open(2, {.group = 7, .bytes = 20 * kGiB});
  desk.say(1);
  EXPECT_LE(desk.commitment(1) + desk.commitment(2), 20u);
  EXPECT_EQ(desk.bounds[1].most, 20 * kGiB);
  EXPECT_EQ(desk.bounds[2].most, 5 * kGiB);
  const auto answer = desk.want(2, 0, 6);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->refused());
  EXPECT_EQ(answer->refusal, Refusal::kQuota);
  desk.open(3);
  EXPECT_GT(desk.commitment(3), 10u);
  EXPECT_EQ(desk.bounds[3].total, 80 * kGiB);
}

TEST(Residency, WhatASeatHasBeyondItsQuotaHasItsPlace) {
  Desk desk;
  desk.open(1, {.group = 7, .bytes = 20 * kGiB});
  desk.open(2);
  desk.open(3);
  desk.has(1, 5, 25);  // from a time without a daemon
  desk.has(2, 75);
  desk.has(3, 0, 55);
  desk.turn({{1, TurnKind::kHolding}, {3, TurnKind::kNext}, {2, TurnKind::kWaiting}});
  desk.has(2, desk.room(2), 75 - desk.room(2));  // it makes way
  EXPECT_GE(desk.room(1), 30u);
  const auto answer = desk.want(1, 0, 31);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->refused());
}

TEST(Residency, WhoNeverReportsIsNotCounted) {
  Desk desk;
  desk.planner.opened(desk.now, seat(1), {}, true);
  desk.plan();
  EXPECT_EQ(desk.room(1), 0u);
  desk.open(2);
  EXPECT_EQ(desk.room(2), 80u);
  EXPECT_EQ(desk.planner.together(kGpu).unknown, 1u);
  ASSERT_TRUE(desk.planner.next_deadline(kGpu));
  desk.now += kFirstReportPatience;
  desk.plan();
  desk.say(2);
  desk.say(2);
  EXPECT_FALSE(desk.planner.next_deadline(kGpu));
  EXPECT_EQ(desk.planner.together(kGpu).silent, 1u);
  desk.say(1);  // after all
  desk.say(2);
  EXPECT_GT(desk.room(1), 0u);
}

TEST(Residency, WhoComesBackSaysFirstWhatItHas) {
  Desk desk;
  desk.planner.opened(desk.now, seat(1), {}, false);
  desk.plan();
  EXPECT_EQ(desk.sent, 0u);
  desk.has(1, 60, 5);
  EXPECT_GE(desk.room(1), 60u);
}

// Stopped alone on a GPU, with room for all of it and little used: others are not kept waiting for its word.
TEST(Residency, WhoDoesNotTakeNoteOfALowerBoundCountsForWhatItHas) {
  Desk desk;
  desk.open(1);
  desk.turn({{1, TurnKind::kHolding}});
  desk.has(1, 10);
  EXPECT_GE(desk.room(1), 79u);
  // The first one says nothing from now on.
  desk.open(2);
  desk.turn({{2, TurnKind::kHolding}, {1, TurnKind::kLeaving}});
  EXPECT_EQ(desk.room(2), 0u) << "the first may still take what it was told";
  const auto deadline = desk.planner.next_deadline(kGpu);
  ASSERT_TRUE(deadline);
  EXPECT_EQ((*deadline - desk.now).count(), Duration(kAnswerPatience).count());
  desk.now += kAnswerPatience;
  desk.plan();
  desk.say(2);
  const auto answer = desk.want(2, 40, 40);
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->refused());
  EXPECT_GE(desk.room(2), 40u);
  EXPECT_LE(desk.room(2) + 10, 80u);
  // It wakes up.
  desk.has(1, 10);
  EXPECT_LE(desk.room(1) + desk.room(2), 80u);
}

TEST(Residency, AStoppedSeatIsNotFloodedWithBounds) {
  Desk desk;
  desk.open(1);
  desk.open(2);
  desk.turn({{2, kHolding}, {1, kIdle}});
  const std::size_t before = desk.sent;
  for (int i = 0; i < 100; ++i) {  // 1 says nothing any more
    desk.set_foreign(static_cast<std::uint64_t>(i % 2) * 60 * kGiB);
    desk.say(2);
  }
  std::size_t of_1 = desk.sent - before;
  EXPECT_GT(of_1, 0u);
  EXPECT_EQ(desk.planner.check_invariants(), "");  // which counts them
}

TEST(Residency, TheHolderHearsNothingAheadOfMemoryThatTheMoverMoves) {
  Desk desk;
  desk.open_two(50);
  desk.has(2, 30, 20);
  desk.turn({{1, kHolding}, {2, kNext}}, 10s);
  desk.say(1);
  desk.say(2);
  desk.now += 10s - 1ms;
  desk.plan();
  EXPECT_TRUE(desk.commands.evictions.empty());
}

// Programs fill a GPU faster than host memory is made.
TEST(Residency, HostMemoryIsPreparedBeforeAGpuThatIsSharedIsFull) {
  Desk desk;
  desk.open_two(40);
  desk.has(2, 30);
  EXPECT_EQ(desk.planner.host_demand(kGpu).evicted, 0u) << "an eighth of it is free";
  desk.has(2, 36);
  EXPECT_EQ(desk.planner.host_demand(kGpu).evicted, 6 * kGiB) << "it may be full in a moment";
  EXPECT_EQ(desk.planner.host_demand(kGpu).copies, 0u);
  desk.has(2, 40, 5);
  EXPECT_EQ(desk.planner.host_demand(kGpu).evicted, 10 * kGiB) << "what is out, and as much as it may grow by";
  desk.has(2, 40, 20);
  EXPECT_EQ(desk.planner.host_demand(kGpu).evicted, 20 * kGiB) << "it knows by now what it needs";
  desk.has(2, 0);
  desk.has(1, 80);
  EXPECT_EQ(desk.planner.host_demand(kGpu).evicted, 0u) << "one program alone evicts nothing";
}

// A report of what has been allocated comes up to a quarter of a second late, and a GPU is full by then.
TEST(Residency, HostMemoryIsPreparedForWhatIsAskedForAndForContexts) {
  Desk desk;
  desk.open_two(40);
  const auto given = desk.want(2, 36, 36);
  ASSERT_TRUE(given && !given->refused());
  EXPECT_EQ(desk.planner.host_demand(kGpu).evicted, 6 * kGiB) << "the seat has not said yet that it has it";
  desk.set_foreign(8 * kGiB);
  EXPECT_EQ(desk.planner.host_demand(kGpu).evicted, 9 * kGiB) << "an eighth of what contexts leave";
  desk.set_foreign(0);
  // Given, and not taken.
  desk.now += kTakePatience;
  desk.say(2);
  EXPECT_EQ(desk.planner.host_demand(kGpu).evicted, 0u);
  // An allocation that can never be had prepares nothing.
  const auto refused = desk.want(2, 81, 81);
  ASSERT_TRUE(refused && refused->refused());
  EXPECT_EQ(desk.planner.host_demand(kGpu).evicted, 0u);
}

TEST(Residency, WhetherAllFitsTogether) {
  Desk desk;
  desk.open_two();
  desk.has(1, 30);
  desk.has(2, 20, 20);
  EXPECT_TRUE(desk.planner.fits_together(kGpu, 0));
  EXPECT_FALSE(desk.planner.fits_together(kGpu, 11 * kGiB));
  desk.turn({{1, kHolding}, {2, kHolding}});
  EXPECT_FALSE(desk.want(1, 60));
  EXPECT_FALSE(desk.planner.fits_together(kGpu, 0));  // what seats wait for counts
}

TEST(Residency, WhereOnlyFreeMemoryMayBeHadNobodyIsEvicted) {
  Desk desk;
  desk.planner.set_free_only(kGpu, true);
  desk.open_two(50);
  desk.turn({{2, kHolding}, {1, kIdle}});
  const auto answer = desk.want(2, 31);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->refused());
  EXPECT_GE(desk.room(1), 50u);
}

// Memory on its way has its place on the GPU and counts as evicted until it is there: it is needed once.
TEST(Residency, WhatIsBeingRestoredIsNeededOnce) {
  Desk desk;
  desk.open(1);
  desk.open(2);
  desk.turn({{1, kHolding}, {2, kIdle}});
  desk.has(1, 50);
  desk.say(2);
  desk.has(2, 30, 20);
  desk.turn({{2, kNext}, {1, kLeaving}});
  EXPECT_EQ(desk.room(1), 30u);
  desk.has(1, 40, 10);
  desk.restores(2, 10);
  EXPECT_EQ(desk.room(1), 30u) << "no more is taken for what has its place already";
  desk.has(1, 30, 0);
  desk.restores(2, 5);
  EXPECT_TRUE(desk.planner.fits_together(kGpu, 0)) << "30 and 50";
}

// If no seat is evicted, what one was given is not taken back because another one restores the last of its own.
TEST(Residency, WhatIsBeingRestoredTakesNothingBackFromOthers) {
  Desk desk;
  desk.open(1);
  desk.open(2);
  desk.planner.set_free_only(kGpu, true);
  desk.turn({{1, kHolding}, {2, kHolding}});
  desk.has(1, 30, 10);
  desk.say(2);
  desk.want(2, 40);
  desk.say(1);
  ASSERT_TRUE(desk.answer(2));
  ASSERT_FALSE(desk.answer(2)->refused());
  desk.restores(1, 5);
  EXPECT_EQ(desk.room(2), 40u);
}

// Nothing that a tenant says makes sums overflow or the planner give away what is not there.
TEST(Residency, AbsurdNumbersChangeNothingForOthers) {
  Desk desk;
  desk.open(1);
  desk.open(2);
  desk.say(1);
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  desk.planner.reported(desk.now, seat(2), {kAll & 0xffffffff, kAll, kAll, kAll, kAll, false});
  desk.plan();
  desk.planner.wanted(desk.now, seat(2), 0, kAll, kAll);
  desk.planner.wanted(desk.now, seat(2), 0xffffffff, kAll, kAll);
  desk.planner.wanted(desk.now, seat(3), 1, kAll, kAll);
  desk.plan();
  desk.say(2);
  desk.say(1);
  EXPECT_LE(desk.room(1) + desk.room(2), 80u);
}

// A second GPU of the same planner. Its seats confirm their bounds when they are told to.
class OtherGpu {
 public:
  OtherGpu(Desk& desk, std::size_t seats) : desk_(desk), reports_(seats) {
    desk.planner.add_gpu(kOther, 80 * kGiB, 0);
    for (std::size_t i = 0; i < seats; ++i) desk.planner.opened(desk.now, seat(i), {}, true);
    for (int i = 0; i < 4; ++i) {
      plan();
      say();
    }
  }
  static SeatId seat(std::size_t i) { return {TenantId{90 + i}, kOther}; }
  void plan() {
    ResidencyCommands commands;
    desk_.planner.plan(desk_.now, kOther, {}, commands);
    for (const RoomBound& bound : commands.bounds) {
      const std::size_t i = bound.seat.tenant.value - 90;
      reports_[i].sequence = bound.sequence;
      commitments_[i] = bound.commitment;
    }
    EXPECT_EQ(desk_.planner.check_invariants(), "");
  }
  void say() {
    for (std::size_t i = 0; i < reports_.size(); ++i) desk_.planner.reported(desk_.now, seat(i), reports_[i]);
  }
  std::uint64_t committed() const {
    std::uint64_t sum = 0;
    for (const auto& [i, commitment] : commitments_) sum += commitment;
    return sum / kGiB;
  }

 private:
  static constexpr GpuIndex kOther{1};
  Desk& desk_;
  std::vector<MemoryReport> reports_;
  std::map<std::size_t, std::uint64_t> commitments_;
};

// Host memory belongs to all GPUs: no seat needs what programs on another GPU could allocate, and have not.
TEST(Residency, HostMemoryIsNotDealtOutAhead) {
  Desk desk(80, 100);
  const OtherGpu other(desk, 2);
  EXPECT_LE(other.committed(), 80u);
  desk.open(1);
  desk.open(2);
  desk.turn({{1, kHolding}, {2, kNext}});
  desk.has(1, 75);
  desk.turn({{2, kHolding}, {1, kNext}});
  const auto answer = desk.want(2, 0, 75);
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->refused());
  EXPECT_GE(answer->commitment, 75 * kGiB);
}

// The planner waits for memory that another GPU's seat may still take up, as far as it knows: that is over in a moment.
TEST(Residency, WhatIsBeingGivenElsewhereIsNoReasonToRefuse) {
  Desk desk(80, 100);
  OtherGpu other(desk, 2);
  for (const std::size_t i : {0u, 1u}) desk.planner.wanted(desk.now, OtherGpu::seat(i), 1, 0, 79 * kGiB);
  other.plan();  // they may have 158 GiB from now on, take nothing, and have not said so yet
  desk.open(1);
  desk.open(2);
  desk.turn({{1, kHolding}, {2, kNext}});
  desk.has(1, 75);
  desk.turn({{2, kHolding}, {1, kNext}});
  EXPECT_FALSE(desk.want(2, 0, 75));
  desk.now += 1s;
  for (int i = 0; i < 3; ++i) {
    other.say();
    other.plan();
  }
  desk.plan();
  const auto answer = desk.answer(2);
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->refused());
}

}  // namespace
}  // namespace gpumux::sched
