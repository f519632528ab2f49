// SPDX-License-Identifier: Apache-2.0
// Turns that are lent while memory comes. Method: the lease core by script.
#include <gtest/gtest.h>

#include "sched/testing/one_gpu.h"

namespace gpumux::sched {
namespace {

// One GPU with a quantum of 100 ms: A holds and waits for its memory, B waits for its turn and lacks nothing.
struct Loans : OneGpu {
  explicit Loans(std::uint64_t seats = 2, const GpuSettings& settings = fixed(100ms)) : OneGpu(settings, seats) {
    request(kA);
    expect(kA, MemoryOutlook::kComes);
    request(kB);
  }
  std::string expect(SeatId seat, MemoryOutlook outlook) { return tell(MemoryExpected{seat, outlook}); }
  std::string pages(SeatId seat, bool pages) { return tell(MemoryNeed{seat, pages}); }
  std::string lend() { return expect(kB, MemoryOutlook::kStays); }
  bool holds(SeatId seat) { return phase(seat) == SeatPhase::kHolding; }
  // The holder of which status says that another tenant has its turn.
  std::optional<SeatId> lender() {
    for (const SeatId one : {kA, kB, kC}) {
      if (holds(one) && says(view(one).waits_for, "another tenant has its turn until then")) return one;
    }
    return std::nullopt;
  }
};

TEST(Loans, AHolderThatWaitsLendsItsTurn) {
  Loans script;
  EXPECT_FALSE(script.holds(kB));
  EXPECT_TRUE(says(script.lend(), "grant 2@0"));
  EXPECT_TRUE(script.holds(kA));
  EXPECT_EQ(script.lender(), kA);
}

TEST(Loans, ABorrowedTurnHasNoQuantum) {
  Loans script(3);
  script.request(kC);
  script.lend();
  script.wait(5s);
  EXPECT_TRUE(script.holds(kB));
}

TEST(Loans, ItHasItsTurnBackWhenItsMemoryIsThere) {
  Loans script;
  script.lend();
  script.wait(50ms);
  EXPECT_EQ(script.expect(kA, MemoryOutlook::kUnknown), "revoke 2@0 e2 quantum");
  EXPECT_EQ(script.lender(), std::nullopt);
  // Its own quantum is whole: it begins now.
  script.closed(kB);
  script.drained(kB);
  script.request(kB);
  script.wait(99ms);
  EXPECT_TRUE(script.holds(kA));
  script.wait(2ms);
  EXPECT_EQ(script.phase(kA), SeatPhase::kRevoked);
}

// Otherwise a seat that is lent one short turn after the other would never have one of its own.
TEST(Loans, ABorrowerKeepsItsPlaceInTheQueue) {
  Loans script(3, fifo(100ms));
  script.wait(1ms);
  script.request(kC);
  script.lend();
  script.wait(1ms);
  script.expect(kA, MemoryOutlook::kUnknown);
  script.request(kB);
  script.closed(kB);
  script.drained(kB);
  script.wait(100ms);
  EXPECT_TRUE(says(script.closed(kA), "grant 2@0")) << "it asked before C";
}

// The next unit starts then, while the borrower drains, and not before.
TEST(Loans, ABorrowerThatDrainsLetsNobodyElseIn) {
  Loans script(3);
  script.request(kC);
  script.lend();
  script.expect(kA, MemoryOutlook::kUnknown);
  script.tell(SeatClosed{kA});
  EXPECT_FALSE(script.holds(kC));
  EXPECT_TRUE(says(script.closed(kB), "grant 3@0"));
}

TEST(Loans, OnlyAUnitThatLacksNothingAndStaysBorrows) {
  Loans script(3);
  script.pages(kB, true);
  script.request(kC);
  script.expect(kB, MemoryOutlook::kComes);
  EXPECT_FALSE(script.holds(kB));
  script.expect(kC, MemoryOutlook::kUnknown);
  EXPECT_FALSE(script.holds(kC)) << "its memory is wanted";
  EXPECT_TRUE(says(script.expect(kC, MemoryOutlook::kStays), "grant 3@0")) << "it goes before B";
}

// The planner is told whose memory is to stay.
TEST(Loans, TheFirstCompleteUnitIsNextWhileAHolderWaits) {
  Loans script(3);
  script.pages(kB, true);
  script.request(kC);
  std::vector<Turn> turns;
  script.core().turns(GpuIndex{0}, turns);
  ASSERT_EQ(turns.size(), 3u);
  EXPECT_EQ(turns[1].seat, kC);
  EXPECT_EQ(turns[1].kind, TurnKind::kNext);
  script.expect(kA, MemoryOutlook::kUnknown);
  script.core().turns(GpuIndex{0}, turns);
  EXPECT_EQ(turns[1].seat, kB);
}

// The lender's memory comes before the memory that the borrower asks for.
TEST(Loans, TheLenderComesFirst) {
  Loans script;
  const SeatId other = script.holds(kA) ? kB : kA;
  script.lend();
  std::vector<Turn> turns;
  script.core().turns(GpuIndex{0}, turns);
  ASSERT_EQ(turns.size(), 2u);
  EXPECT_EQ(turns[0].seat, kA);
  EXPECT_EQ(turns[1].seat, other);
  EXPECT_EQ(turns[1].kind, TurnKind::kHolding);
}

// It waits for the lender and keeps its place: the lender's memory comes first.
TEST(Loans, ABorrowerThatComesToLackMemoryGivesTheTurnBack) {
  Loans script(3);
  script.request(kC);
  script.lend();
  EXPECT_TRUE(says(script.expect(kB, MemoryOutlook::kComes), "revoke 2@0 e2 memory"));
  script.request(kB);
  script.closed(kB);
  script.drained(kB);
  script.expect(kB, MemoryOutlook::kWants);
  EXPECT_FALSE(script.holds(kB));
  EXPECT_TRUE(says(script.expect(kC, MemoryOutlook::kStays), "grant 3@0"));
}

TEST(Loans, ABorrowerThatHasDoneGivesTheTurnToTheNext) {
  Loans script(3);
  script.request(kC);
  script.lend();
  EXPECT_FALSE(says(script.drained(kB), "grant"));
  EXPECT_EQ(script.lender(), std::nullopt);
  EXPECT_TRUE(says(script.expect(kC, MemoryOutlook::kStays), "grant 3@0"));
}

TEST(Loans, WhoeverOutranksTheLenderTakesTheTurn) {
  Loans script(3);
  script.lend();
  script.tell(StandingChanged{kC, 1});
  const std::string said = script.request(kC);
  EXPECT_TRUE(says(said, "revoke 1@0"));
  EXPECT_TRUE(says(said, "revoke 2@0"));
  script.closed(kA);
  script.drained(kA);
  EXPECT_TRUE(says(script.closed(kB), "grant 3@0"));
}

// A lender whose memory cannot come makes way, and the borrower goes on as a holder with a quantum.
TEST(Loans, TheBorrowerStaysWhenTheLenderMakesWay) {
  Loans script(3);
  script.pages(kA, true);
  script.lend();
  script.request(kC);
  const std::string said = script.expect(kA, MemoryOutlook::kNothingMoves);
  EXPECT_TRUE(says(said, "revoke 1@0 e1 memory"));
  EXPECT_TRUE(script.holds(kB));
  script.closed(kA);
  script.drained(kA);
  script.wait(101ms);
  EXPECT_EQ(script.phase(kB), SeatPhase::kRevoked);
}

TEST(Loans, NoTurnIsLentForLongerThanMaxRuntime) {
  GpuSettings settings = fixed(100ms);
  settings.max_runtime = 2s;
  Loans script(3, settings);
  script.request(kC);
  script.lend();
  script.wait(2001ms);
  EXPECT_EQ(script.phase(kA), SeatPhase::kRevoked);
}

TEST(Loans, ASuspendedLenderDrainsBesideTheBorrower) {
  Loans script;
  script.lend();
  EXPECT_EQ(script.tell(SeatsSuspended{{kA}}), "revoke 1@0 e1 suspended");
  EXPECT_TRUE(script.holds(kB));
}

TEST(Loans, BothShareWhenAllRunAtOnce) {
  Loans script;
  script.lend();
  GpuSettings settings = fixed(100ms);
  settings.mode = Mode::kConcurrent;
  script.settings(GpuIndex{0}, settings);
  EXPECT_TRUE(script.holds(kA));
  EXPECT_TRUE(script.holds(kB));
  EXPECT_EQ(script.lender(), std::nullopt);
}

TEST(Loans, ALenderThatJoinsAGangTakesItsTurnBack) {
  Loans script;
  script.lend();
  script.tell(GangJoined{TenantId{1}, "gang"});
  EXPECT_TRUE(script.holds(kA));
  EXPECT_EQ(script.phase(kB), SeatPhase::kRevoked);
}

TEST(Loans, TheBorrowerStaysWhenTheLenderIsGone) {
  Loans script(3);
  script.lend();
  script.request(kC);
  EXPECT_EQ(script.tell(TenantGone{TenantId{1}}), "");
  EXPECT_TRUE(script.holds(kB));
  script.wait(101ms);
  EXPECT_EQ(script.phase(kB), SeatPhase::kRevoked);
}

// It may be long in giving the turn back.
TEST(Loans, AUnitThatStalledDoesNotBorrow) {
  GpuSettings settings = fixed(100ms);
  settings.silence_limit = 30s;
  OneGpu script(settings);
  script.request(kB);
  script.request(kA);
  script.wait(100ms);
  script.tell(SeatsSuspended{{kA}});
  script.wait(settings.stall_timeout);
  ASSERT_EQ(script.phase(kB), SeatPhase::kDraining);
  script.tell(SeatsSuspended{{kA}, false});
  script.tell(MemoryExpected{kA, MemoryOutlook::kComes});
  script.request(kA);
  script.request(kB);
  script.tell(MemoryExpected{kB, MemoryOutlook::kStays});
  EXPECT_EQ(script.phase(kA), SeatPhase::kHolding);
  EXPECT_NE(script.phase(kB), SeatPhase::kHolding);
}

// A gang whose other GPU is another unit's would not start.
TEST(Loans, NoLenderGoesForAGangThatCannotStart) {
  Script script(2, fixed(100ms));
  script.tenant(1, {0});
  script.tenant(2, {0});
  script.tenant(3, {1});
  script.tell(StandingChanged{seat(3, 1), 1});
  script.request(seat(3, 1));
  script.request(kA);
  script.tell(MemoryExpected{kA, MemoryOutlook::kComes});
  script.request(kB);
  script.tell(MemoryExpected{kB, MemoryOutlook::kStays});
  ASSERT_EQ(script.phase(kB), SeatPhase::kHolding);
  script.tell(TenantConnected{TenantId{4}});
  script.tell(GangJoined{TenantId{4}, "gang"});
  for (const std::uint32_t gpu : {0u, 1u}) script.tell(SeatOpened{seat(4, gpu), 1, false, 1});
  script.request(seat(4, 0));
  EXPECT_EQ(script.phase(kA), SeatPhase::kHolding);
  EXPECT_EQ(script.phase(kB), SeatPhase::kHolding);
  // When its turn on the other GPU has come, all make way.
  script.wait(101ms);
  EXPECT_EQ(script.phase(kA), SeatPhase::kRevoked);
  EXPECT_EQ(script.phase(kB), SeatPhase::kRevoked);
  EXPECT_EQ(script.phase(seat(3, 1)), SeatPhase::kRevoked);
}

TEST(Loans, TimeThatIsLentIsNotTheLenders) {
  Loans script;
  script.wait(50ms);
  script.lend();
  script.wait(1s);
  EXPECT_EQ(script.view(kA).held, 50ms);
  script.tell(StandingChanged{kA, 0, 2});
  EXPECT_EQ(script.view(kA).held, 50ms);
  script.expect(kA, MemoryOutlook::kUnknown);
  script.wait(10ms);
  EXPECT_EQ(script.view(kA).held, 60ms);
}

// After a restart the core knows of no loan.
TEST(Loans, OfLenderAndBorrowerThatComeBackOneKeepsItsLease) {
  OneGpu script;
  script.tell(GrantsHeld{script.now() + 1s});
  script.tell(SeatClaimed{kA, Claim::kHolding, LeaseKind::kExclusive, LeaseEpoch{7}});
  EXPECT_EQ(script.tell(SeatClaimed{kB, Claim::kHolding, LeaseKind::kExclusive, LeaseEpoch{8}}),
            "revoke 2@0 e8 bad_claim");
  script.wait(1s);
  EXPECT_EQ(script.phase(kA), SeatPhase::kHolding);
  script.drained(kB);
  script.tell(MemoryExpected{kA, MemoryOutlook::kComes});
  script.request(kB);
  EXPECT_TRUE(says(script.tell(MemoryExpected{kB, MemoryOutlook::kStays}), "borrowed"));
}

TEST(Loans, ABorrowerGoesOnlyForAUnitThatCanBorrow) {
  Loans script(3);
  script.tell(StandingChanged{kA, 1});
  script.tell(StandingChanged{kC, 1});
  script.lend();
  script.request(kC);
  EXPECT_TRUE(script.holds(kB)) << "the lender may need what C has";
  EXPECT_EQ(script.expect(kC, MemoryOutlook::kStays), "revoke 2@0 e2 urgent");
}

// The gang needs the lender's place, too.
TEST(Loans, AGangThatWaitsKeepsNoTurnFromABorrower) {
  Script script(2, fixed(100ms));
  for (const std::uint64_t id : {1u, 2u}) script.tenant(id, {0});
  script.tenant(3, {1});
  for (const SeatId one : {kA, seat(3, 1)}) {
    script.tell(StandingChanged{one, 1});
    script.request(one);
  }
  script.tell(MemoryExpected{kA, MemoryOutlook::kComes});
  script.tell(TenantConnected{TenantId{4}});
  script.tell(GangJoined{TenantId{4}, "gang"});
  for (const std::uint32_t gpu : {0u, 1u}) script.tell(SeatOpened{seat(4, gpu), 1, false, 1});
  script.request(seat(4, 0));
  script.request(kB);
  script.tell(MemoryExpected{kB, MemoryOutlook::kStays});
  EXPECT_EQ(script.phase(kB), SeatPhase::kHolding);
  script.wait(200ms);
  EXPECT_EQ(script.phase(kB), SeatPhase::kHolding);
}

TEST(Loans, WithoutOverlapNoTurnIsLent) {
  GpuSettings settings = fixed(100ms);
  settings.overlap = false;
  Loans script(2, settings);
  script.lend();
  EXPECT_FALSE(script.holds(kB));
}

TEST(Loans, AHolderThatMayNotLendAnyMoreIsToldHowLongItMayIdle) {
  Loans script(3);
  script.request(kC);
  ASSERT_TRUE(says(script.expect(kB, MemoryOutlook::kStays), "borrowed"));
  GpuSettings settings = fixed(100ms);
  settings.overlap = false;
  const std::string said = script.settings(GpuIndex{0}, settings);
  EXPECT_TRUE(says(said, "contention 1@0 yes 200000ns"));
  EXPECT_TRUE(says(said, "revoke 2@0"));
}

// A switch costs the time for which the GPU stood still.
TEST(Loans, LentTimeIsNoCost) {
  Loans script(2, plain());
  script.closed(kA);
  script.drained(kA);
  script.pages(kA, true);
  script.drained(kB);
  script.request(kA);
  script.wait(300ms);
  script.request(kB);
  script.expect(kB, MemoryOutlook::kStays);
  script.expect(kA, MemoryOutlook::kComes);
  EXPECT_EQ(script.lender(), kA);
  script.wait(700ms);
  script.pages(kA, false);
  script.expect(kA, MemoryOutlook::kUnknown);
  EXPECT_EQ(script.core().view(script.now()).front().switch_cost, 300ms / 4)
      << "the first measure counts for a quarter";
}

// Memory that moves while other programs work slows them down.
TEST(Loans, MemoryThatCameBesideWorkIsACost) {
  OneGpu script;
  script.request(kA);
  script.tell(MemoryNeed{kB, true});
  script.request(kB);
  script.tell(MemoryExpected{kB, MemoryOutlook::kComes, std::uint64_t{32} << 30});
  script.wait(1s);
  script.tell(MemoryNeed{kB, false});
  script.tell(MemoryExpected{kB, MemoryOutlook::kStays});
  script.closed(kA);
  EXPECT_TRUE(script.phase(kB) == SeatPhase::kHolding);
  EXPECT_EQ(script.core().view(script.now()).front().switch_cost, 32 * 1200us / 4);
}

// A unit whose memory comes anyway is waited for.
TEST(Loans, NoHolderGoesForAUnitWhoseMemoryComes) {
  OneGpu script(fixed(100ms));
  script.request(kA);
  script.tell(MemoryNeed{kB, true});
  script.tell(MemoryExpected{kB, MemoryOutlook::kComes});
  script.request(kB);
  script.wait(5s);
  EXPECT_EQ(script.phase(kA), SeatPhase::kHolding);
  EXPECT_TRUE(says(script.tell(MemoryNeed{kB, false}), "revoke 1@0 e1 quantum"));
}

TEST(Loans, AHolderGoesForAUnitWhoseMemoryItKeeps) {
  OneGpu script(fixed(100ms));
  script.request(kA);
  script.tell(MemoryNeed{kB, true});
  script.tell(MemoryExpected{kB, MemoryOutlook::kComes});
  script.request(kB);
  script.wait(150ms);
  EXPECT_EQ(script.tell(MemoryExpected{kB, MemoryOutlook::kUnknown}), "revoke 1@0 e1 quantum");
}

}  // namespace
}  // namespace gpumux::sched
