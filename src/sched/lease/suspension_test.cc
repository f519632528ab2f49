// SPDX-License-Identifier: Apache-2.0
// Seats that may have no lease. Goal: a suspended seat gives its GPUs up, gets none, counts for nothing, and competes
// as before when it is resumed. Method: scripts; every step checks the core's invariants.
#include <gtest/gtest.h>

#include "sched/testing/one_gpu.h"
#include "sched/testing/two_gangs.h"

namespace gpumux::sched {
namespace {

TurnKind turn_of(Script& script, SeatId s) {
  std::vector<Turn> turns;
  script.core().turns(s.gpu, turns);
  for (const Turn& turn : turns) {
    if (turn.seat == s) return turn.kind;
  }
  ADD_FAILURE() << "no such seat";
  return TurnKind::kIdle;
}

TEST(Suspension, AHolderIsRevokedAndTheNextOneStarts) {
  OneGpu one(fixed());
  one.request(kA);
  one.request(kB);
  EXPECT_EQ(one.tell(SeatsSuspended{{kA}}), "revoke 1@0 e1 suspended");
  EXPECT_EQ(one.phase(kA), SeatPhase::kRevoked);
  EXPECT_EQ(one.closed(kA), "grant 2@0 e2 exclusive");
  EXPECT_EQ(turn_of(one, kA), TurnKind::kLeaving);
  one.drained(kA);
  EXPECT_EQ(one.phase(kA), SeatPhase::kSuspended);
  EXPECT_EQ(turn_of(one, kA), TurnKind::kSuspended);
  EXPECT_EQ(one.core().phase(kA), SeatPhase::kSuspended);
}

TEST(Suspension, WhatItAsksForIsRememberedAndKeepsNobodyWaiting) {
  OneGpu one(fixed());
  one.tell(SeatsSuspended{{kA}});
  EXPECT_EQ(one.request(kA), "");
  EXPECT_EQ(one.view(kA).waits_for, "its job, which is suspended");
  EXPECT_EQ(one.request(kB), "grant 2@0 e1 exclusive") << "and not contended";
  EXPECT_EQ(one.wait(400s), "") << "nobody waits: neither the quantum nor max_runtime ends it";
  EXPECT_EQ(one.view(kA).queue_place, 0u);
  const std::string resumed = one.tell(SeatsSuspended{{kA}, false});
  EXPECT_EQ(resumed, "contention 1@0 no 200000ns; revoke 2@0 e1 max_runtime");
  one.closed(kB);
  EXPECT_EQ(one.phase(kA), SeatPhase::kHolding);
}

// Waiting is waiting for the GPU: not for the run to go on.
TEST(Suspension, IsNoWaiting) {
  OneGpu one(fifo(1s));
  one.request(kB);
  one.request(kA);
  one.wait(100ms);
  one.tell(SeatsSuspended{{kA}});
  one.wait(10s);
  EXPECT_EQ(one.view(kA).waited, 100ms);
  one.tell(SeatsSuspended{{kA}, false});
  EXPECT_EQ(one.view(kA).waited, 100ms);
  one.closed(kB);
  EXPECT_EQ(one.phase(kA), SeatPhase::kHolding);
  EXPECT_LE(one.view(kA).wait_p99, 1ms);
}

// fifo: a resumed seat asks anew.
TEST(Suspension, GoesBehindThoseThatAskedMeanwhile) {
  OneGpu one(fifo(10s), 3);
  one.request(kC);
  one.request(kA);
  one.tell(SeatsSuspended{{kA}});
  one.wait(1ms);
  one.request(kB);
  one.wait(1ms);
  one.tell(SeatsSuspended{{kA}, false});
  EXPECT_EQ(one.view(kB).queue_place, 1u);
  EXPECT_EQ(one.view(kA).queue_place, 2u);
}

TEST(Suspension, HoldsFromTheBeginningOnForWhoComesLater) {
  OneGpu one(fixed(), 1);
  one.tell(TenantConnected{TenantId{2}});
  EXPECT_EQ(one.tell(SeatOpened{.seat = kB, .is_suspended = true}), "contention 2@0 no 200000ns");
  EXPECT_EQ(one.request(kB), "");
  EXPECT_EQ(one.phase(kB), SeatPhase::kSuspended);
  EXPECT_EQ(one.tell(SeatsSuspended{{kB}, false}), "contention 2@0 no 200000ns; grant 2@0 e1 exclusive");
}

// After a restart: what a tenant comes back with is taken from it as soon as anything is.
TEST(Suspension, EndsALeaseThatIsClaimed) {
  OneGpu one(fixed(), 1);
  one.tell(GrantsHeld{one.now() + 1s});
  one.tell(TenantConnected{TenantId{2}});
  one.tell(SeatOpened{.seat = kB, .is_suspended = true});
  one.tell(SeatClaimed{kB, Claim::kHolding, LeaseKind::kExclusive, LeaseEpoch{7}});
  EXPECT_EQ(one.phase(kB), SeatPhase::kHolding);
  EXPECT_EQ(one.wait(1s), "revoke 2@0 e7 suspended");
  one.closed(kB);
  one.drained(kB);
  EXPECT_EQ(one.phase(kB), SeatPhase::kSuspended);
}

// Two seats of one run that take turns: neither gets what the other gives up.
TEST(Suspension, OfSeveralIsOneStep) {
  OneGpu one(fixed(), 3);
  one.request(kA);
  one.request(kB);
  one.request(kC);
  EXPECT_EQ(one.tell(SeatsSuspended{{kA, kB}}), "revoke 1@0 e1 suspended");
  EXPECT_EQ(one.closed(kA), "grant 3@0 e2 exclusive");
  one.drained(kA);
  EXPECT_EQ(one.drained(kC), "") << "C has given it up, and nobody is to have it";
  EXPECT_EQ(one.tell(SeatsSuspended{{kA, kB}, false}),
            "contention 1@0 no 200000ns; contention 2@0 no 200000ns; grant 2@0 e3 exclusive");
}

TEST(Suspension, TwiceOrOfNobodyIsNothing) {
  OneGpu one(fixed());
  EXPECT_EQ(one.tell(SeatsSuspended{{kA}, false}), "");
  one.tell(SeatsSuspended{{kA, kA, kD}});
  EXPECT_EQ(one.tell(SeatsSuspended{{kA}}), "");
  one.tell(SeatsSuspended{{kA}, false});
  EXPECT_EQ(one.request(kA), "grant 1@0 e1 exclusive");
  EXPECT_EQ(one.tell(SeatsSuspended{{}}), "");
}

TEST(Suspension, EndsWithTheTenant) {
  OneGpu one(fixed());
  one.tell(SeatsSuspended{{kA}});
  one.request(kA);
  one.tell(TenantGone{TenantId{1}});
  EXPECT_EQ(one.core().phase(kA), std::nullopt);
  EXPECT_EQ(one.request(kB), "grant 2@0 e1 exclusive");
}

// ---- which seats count ------------------------------------------------------------------------------

TEST(Suspension, LeavesAGpuToTheOthersAsIfTheyWereAlone) {
  GpuSettings settings = fixed();
  settings.in_flight = 4ms;
  OneGpu one(settings);
  // Two seats are bounded; a seat that is alone with a suspended one is not.
  EXPECT_EQ(one.tell(SeatsSuspended{{kA}}), "contention 2@0 no 200000ns");
  settings.idle_hold = 5ms;
  EXPECT_EQ(one.settings(GpuIndex{0}, settings), "contention 2@0 no 5000000ns") << "nothing is said to the suspended";
  EXPECT_EQ(one.tell(SeatsSuspended{{kA}, false}),
            "contention 2@0 no 5000000ns in_flight=4000000ns; contention 1@0 no 5000000ns in_flight=4000000ns");
}

TEST(Suspension, TakesNoPartInHowSeatsStand) {
  OneGpu one(fixed(), 3);
  EXPECT_FALSE(one.core().wants_turns(GpuIndex{0}));
  one.tell(StandingChanged{kA, 5, 1, 300});
  EXPECT_TRUE(one.core().wants_turns(GpuIndex{0}));
  one.tell(SeatsSuspended{{kA}});
  EXPECT_FALSE(one.core().wants_turns(GpuIndex{0}));
  std::vector<SeatUse> uses;
  one.core().uses(one.now(), GpuIndex{0}, uses);
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_EQ(uses[0].seat, kB);
  one.tell(SeatsSuspended{{kA}, false});
  EXPECT_TRUE(one.core().wants_turns(GpuIndex{0}));
}

// A seat that ends its own turns makes all seats wait in order of arrival, but not while it stands still.
TEST(Suspension, OfOneThatEndsItsOwnTurnsGivesTheOrderBack) {
  Script script(1, fixed(1s));
  for (std::uint64_t id = 1; id <= 3; ++id) script.tell(TenantConnected{TenantId{id}});
  script.tell(SeatOpened{.seat = kA, .ends_own_turns = true});
  script.tell(SeatOpened{.seat = kB});
  script.tell(SeatOpened{.seat = kC});
  EXPECT_TRUE(script.core().wants_turns(GpuIndex{0}));
  script.tell(SeatsSuspended{{kA}});
  EXPECT_FALSE(script.core().wants_turns(GpuIndex{0}));
  script.tell(SeatsSuspended{{kA}, false});
  EXPECT_TRUE(script.core().wants_turns(GpuIndex{0}));
}

// At any priority, no seat's turn is further away.
TEST(Suspension, IsFurthestFromItsTurnOfAll) {
  OneGpu one(fixed(), 3);
  one.tell(StandingChanged{kA, 100, 1, kNoCap});
  one.tell(SeatsSuspended{{kA}});
  std::vector<Turn> turns;
  one.core().turns(GpuIndex{0}, turns);
  ASSERT_EQ(turns.size(), 3u);
  EXPECT_EQ(turns.back().seat, kA);
}

// An urgent waiter that is suspended leaves the lower one alone, and no allowance of a cap brings a suspended seat
// back.
TEST(Suspension, StopsWhatItsPriorityAndItsCapWouldDo) {
  OneGpu one(fixed(), 2);
  one.tell(StandingChanged{kA, 10, 1, 100});
  one.request(kB);
  EXPECT_EQ(one.request(kA), "revoke 2@0 e1 urgent");
  one.tell(SeatsSuspended{{kA}});
  EXPECT_EQ(one.drained(kB), "");
  EXPECT_EQ(one.wait(10s), "");
  EXPECT_EQ(one.phase(kA), SeatPhase::kSuspended);
  one.tell(SeatsSuspended{{kA}, false});
  EXPECT_EQ(one.phase(kA), SeatPhase::kHolding);
  EXPECT_TRUE(says(one.wait(150ms), "revoke 1@0 e2 cap"));
  one.drained(kA);
  one.request(kA);
  EXPECT_EQ(one.view(kA).waits_for, "its own cap: time that it may have");
  one.tell(SeatsSuspended{{kA}});
  EXPECT_EQ(one.wait(10s), "");
}

// ---- shared leases ------------------------------------------------------------------------------

TEST(Suspension, OfOneAmongManyLeavesTheOthersTheirs) {
  GpuSettings settings = fixed();
  settings.mode = Mode::kConcurrent;
  OneGpu one(settings);
  one.request(kA);
  one.request(kB);
  EXPECT_EQ(one.tell(SeatsSuspended{{kA}}), "revoke 1@0 e1 suspended");
  one.drained(kA);
  EXPECT_EQ(one.phase(kB), SeatPhase::kHolding);
  EXPECT_EQ(one.request(kA), "");
  settings.mode = Mode::kSerial;
  EXPECT_EQ(one.settings(GpuIndex{0}, settings), "grant 2@0 e3 exclusive") << "it is the only one";
}

// ---- gangs --------------------------------------------------------------------------------------

TEST(Suspension, OfAGangFreesAllItsGpusAtOnce) {
  TwoGangs gangs;
  gangs.request(kX0);
  gangs.request(kY0);
  EXPECT_EQ(gangs.tell(SeatsSuspended{{kX0, kX1}}), "revoke 1@0 e1 suspended; revoke 2@1 e1 suspended");
  gangs.closed(kX0);
  gangs.closed(kX1);
  gangs.drained(kX0);
  EXPECT_EQ(turn_of(gangs, kX0), TurnKind::kHeldBack) << "it may have to be let through";
  EXPECT_EQ(gangs.core().phase(kX0), SeatPhase::kDraining);
  EXPECT_EQ(gangs.drained(kX1), "grant 3@0 e2 exclusive; grant 4@1 e2 exclusive");
  EXPECT_EQ(turn_of(gangs, kX0), TurnKind::kSuspended);
  EXPECT_EQ(gangs.request(kX1), "");
  gangs.drained(kY0);
  gangs.drained(kY1);
  EXPECT_EQ(gangs.tell(SeatsSuspended{{kX0}, false}), "contention 1@0 no 200000ns") << "not before all are";
  EXPECT_TRUE(says(gangs.tell(SeatsSuspended{{kX1}, false}), "grant 1@0"));
}

// A gang is granted whole or not at all.
TEST(Suspension, OfOneMemberHoldsTheOthersUp) {
  TwoGangs gangs;
  gangs.tell(SeatsSuspended{{kX1}});
  EXPECT_EQ(gangs.request(kX0), "");
  EXPECT_EQ(gangs.view(kX0).waits_for, "a suspended member of gang x");
  EXPECT_EQ(gangs.phase(kX0), SeatPhase::kIdle);
  EXPECT_EQ(gangs.request(kS0), "grant 5@0 e1 exclusive");
  // The suspended one dies: the others go on.
  gangs.drained(kS0);
  EXPECT_EQ(gangs.tell(TenantGone{TenantId{2}}), "grant 1@0 e2 exclusive");
}

// A tenant that joins a gang with a suspended member stands still with it.
TEST(Suspension, SpreadsWithTheGang) {
  TwoGangs gangs;
  gangs.tell(SeatsSuspended{{kX0, kX1}});
  gangs.request(kS0);
  EXPECT_EQ(gangs.tell(GangJoined{TenantId{5}, "x", 0}), "contention 5@0 no 200000ns; revoke 5@0 e1 suspended");
  gangs.closed(kS0);
  gangs.drained(kS0);
  gangs.request(kS0);
  EXPECT_EQ(gangs.phase(kS0), SeatPhase::kIdle);
  const std::string resumed = gangs.tell(SeatsSuspended{{kX0, kX1}, false});
  EXPECT_TRUE(says(resumed, "grant 5@0"));
  EXPECT_TRUE(says(resumed, "grant 2@1"));
}

// Resumed before it was revoked: what the merging left out gets its part.
TEST(Suspension, ThatEndsBeforeItCouldBeginLeavesNobodyOut) {
  TwoGangs gangs;
  gangs.tell(SeatsSuspended{{kX0, kX1}});
  gangs.tell(GrantsHeld{gangs.now() + 1s});
  gangs.tell(TenantConnected{TenantId{7}});
  gangs.tell(SeatOpened{seat(7, 0)});
  gangs.tell(SeatClaimed{seat(7, 0), Claim::kHolding, LeaseKind::kExclusive, LeaseEpoch{9}});
  gangs.tell(GangJoined{TenantId{7}, "x", 0});
  gangs.tell(SeatsSuspended{{kX0, kX1}, false});
  gangs.wait(2s);
  EXPECT_EQ(gangs.phase(seat(7, 0)), SeatPhase::kHolding);
  EXPECT_EQ(gangs.phase(kX1), SeatPhase::kHolding);
}

// A rank that is ahead spins for a rank that is behind: both are opened again, as in any revocation.
TEST(Suspension, OpensAGangAgainThatIsInACollective) {
  TwoGangs gangs;
  gangs.request(kX0);
  gangs.tell(SeatsSuspended{{kX0, kX1}});
  gangs.seen(kX0);
  gangs.seen(kX1);
  gangs.closed(kX0);
  gangs.closed(kX1);
  gangs.drained(kX1);
  EXPECT_EQ(gangs.wait(2ms), "grant 2@1 e2 exclusive again");
  EXPECT_EQ(gangs.drained(kX0), "revoke 2@1 e2 gang");
  gangs.closed(kX1);
  EXPECT_NE(gangs.phase(kX0), SeatPhase::kSuspended);
  gangs.drained(kX1);
  EXPECT_EQ(gangs.phase(kX0), SeatPhase::kSuspended);
  EXPECT_EQ(gangs.phase(kX1), SeatPhase::kSuspended);
}

// ---- what does not drain ------------------------------------------------------------------------

// The daemon resumes it, for its work may wait for a later submission.
TEST(Suspension, OfWhatDoesNotDrainIsNotOver) {
  OneGpu one(fixed(), 1);
  one.request(kA);
  one.tell(SeatsSuspended{{kA}});
  one.seen(kA);
  one.closed(kA);
  std::string said;
  for (int i = 0; i < 100; ++i) {
    said += one.wait(100ms) + "; ";
    one.seen(kA);
  }
  EXPECT_TRUE(says(said, "stall 1@0"));
  EXPECT_EQ(one.phase(kA), SeatPhase::kDraining);
  EXPECT_EQ(one.request(kA), "");
  EXPECT_EQ(one.phase(kA), SeatPhase::kDraining);
  one.tell(SeatsSuspended{{kA}, false});
  EXPECT_EQ(one.phase(kA), SeatPhase::kHolding);
}

// Its work runs on, and ends by itself.
TEST(Suspension, OfWhatDrainsLateIsOverThen) {
  GpuSettings settings = fixed();
  settings.stall_timeout = 400ms;
  OneGpu one(settings, 1);
  one.request(kA);
  one.wait(10ms);
  one.tell(SeatsSuspended{{kA}});
  one.closed(kA);
  EXPECT_TRUE(says(one.wait(1s), "stall 1@0"));
  EXPECT_NE(one.phase(kA), SeatPhase::kSuspended) << "its process must not be frozen yet";
  one.drained(kA);
  EXPECT_EQ(one.phase(kA), SeatPhase::kSuspended);
}

// Their processes may be stopped: they are granted nothing for a later member's sake.
TEST(Suspension, OfWhatStandsStillIsNotUndoneByAMemberThatFreezes) {
  TwoGangs gangs;
  gangs.tell(SeatsSuspended{{kX0, kX1}});
  EXPECT_EQ(gangs.phase(kX0), SeatPhase::kSuspended);
  gangs.request(kS0);
  gangs.tell(GangJoined{kS0.tenant, "x", 3});
  gangs.seen(kS0);
  gangs.closed(kS0);
  std::string text;
  for (int i = 0; i < 120; ++i) {
    text += gangs.wait(100ms);
    gangs.seen(kS0);
    gangs.request(kS0);
  }
  EXPECT_TRUE(says(text, "stall 5@0"));
  EXPECT_FALSE(says(text, "grant"));
  EXPECT_EQ(gangs.phase(kX0), SeatPhase::kSuspended);
}

TEST(Suspension, OfASilentHolderPassesItOver) {
  OneGpu one(fixed());
  one.request(kA);
  one.request(kB);
  one.tell(SeatsSuspended{{kA}});
  EXPECT_TRUE(says(one.wait(1s), "grant 2@0"));
  EXPECT_EQ(one.phase(kA), SeatPhase::kSilent);
  one.seen(kA);
  one.closed(kA);
  one.drained(kA);
  EXPECT_EQ(one.phase(kA), SeatPhase::kSuspended);
  EXPECT_EQ(one.phase(kB), SeatPhase::kHolding);
}

// Drained and frozen: it is not asked whether it is there, and it is not killed for its silence.
TEST(Suspension, LetsItSayNothing) {
  GpuSettings settings = fixed();
  settings.kill_silent_after = 1s;
  OneGpu one(settings);
  one.request(kA);
  one.tell(SeatsSuspended{{kA}});
  one.closed(kA);
  one.drained(kA);
  one.request(kB);
  EXPECT_EQ(one.wait(3600s), "");
  EXPECT_EQ(one.phase(kA), SeatPhase::kSuspended);
}

}  // namespace
}  // namespace gpumux::sched
