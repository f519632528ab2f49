// SPDX-License-Identifier: Apache-2.0
// Goal: work that does not drain in time is frozen, as a whole or not at all, and goes on with the next lease.
// Method: small scripts. `frozen` is what a library says that has frozen its seat.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sched/testing/freezing_script.h"

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

// ---- how long a revoked seat drains -------------------------------------------------------------

TEST(Freeze, FollowsADrainOfAMillisecondAtTheEndOfATurn) {
  TwoSeats s;
  EXPECT_EQ(s.wait(10ms), "revoke 1@0 e1 quantum drains_for=1000000ns");
}

TEST(Freeze, FollowsAShorterDrainForAHigherPriority) {
  FreezingScript s;
  s.open(kA);
  s.open(kB, true, 5);
  s.request(kA);
  EXPECT_EQ(s.request(kB), "revoke 1@0 e1 urgent drains_for=50000ns");
}

TEST(Freeze, IsNotForASeatThatCannot) {
  TwoSeats s(fifo(), false);
  EXPECT_EQ(s.wait(10ms), "revoke 1@0 e1 quantum");
}

TEST(Freeze, IsNotForASeatWhoseDriverHasRefused) {
  TwoSeats s;
  EXPECT_EQ(s.cannot_freeze(kA), "");
  EXPECT_EQ(s.wait(10ms), "revoke 1@0 e1 quantum");
}

TEST(Freeze, IsNotWhereTheSettingIsOff) {
  GpuSettings settings = fifo();
  settings.interrupt = settings::Interrupt::kOff;
  TwoSeats s(settings);
  EXPECT_EQ(s.wait(10ms), "revoke 1@0 e1 quantum");
}

TEST(Freeze, IsForASeatWhoseMemoryOnlyALaterOneNeeds) {
  TwoSeats s;
  s.open(kC);
  s.request(kC);
  s.tell(MemoryNeed{kC, true});
  EXPECT_EQ(s.wait(10ms), "revoke 1@0 e1 quantum drains_for=1000000ns");
}

TEST(Freeze, IsDecidedOnceForARevocation) {
  GpuSettings settings = fifo();
  TwoSeats s(settings);
  s.wait(10ms);
  s.seen(kA);
  settings.interrupt = settings::Interrupt::kOff;
  s.settings(GpuIndex{0}, settings);
  EXPECT_EQ(s.wait(125ms), "revoke 1@0 e1 quantum drains_for=1000000ns") << "it is asked whether it is there";
  EXPECT_EQ(s.frozen(kA), "grant 2@0 e2 exclusive; contention 2@0 yes 200000ns");
  EXPECT_EQ(s.wait(10ms), "revoke 2@0 e2 quantum");
}

// ---- frozen seats -------------------------------------------------------------------------------

TEST(Frozen, CountsAsDrainedAndWaitsForItsNextLease) {
  TwoSeats s;
  s.wait(10ms);
  EXPECT_EQ(s.closed(kA), "grant 2@0 e2 exclusive") << "as with any drain";
  EXPECT_EQ(s.tell(Drained{kA, s.epoch(kA), false, true}), "contention 2@0 yes 200000ns");
  EXPECT_EQ(s.phase(kA), SeatPhase::kWaiting);
  EXPECT_EQ(s.request(kA), "") << "it waits already";
  s.wait(10ms);
  EXPECT_EQ(s.frozen(kB), "grant 1@0 e3 exclusive; contention 1@0 yes 200000ns");
}

// It is a waiter in the moment in which the next one is chosen. Otherwise each freeze would cost it its place.
TEST(Frozen, IsNextIfItsTurnHasComeAgain) {
  GpuSettings settings = fixed(kUnlimited);
  settings.max_runtime = 10ms;
  settings.overlap = false;
  FreezingScript s(1, settings);
  for (const SeatId one : {kA, kB}) {
    s.tell(TenantConnected{one.tenant, 0});
    s.tell(SeatOpened{.seat = one, .weight = one == kA ? 4u : 1u, .can_freeze = true});
    s.request(one);
  }
  std::string turns;
  for (int i = 0; i < 10; ++i) {
    s.wait(10ms);
    const SeatId holder = s.phase(kA) == SeatPhase::kRevoked ? kA : kB;
    turns += holder == kA ? "A" : "B";
    s.frozen(holder);
  }
  EXPECT_EQ(turns, "ABAAABAAAA");
}

// Its memory had to leave.
TEST(Frozen, MayDrainWhileItWaits) {
  TwoSeats s;
  s.wait(10ms);
  s.frozen(kA);
  EXPECT_EQ(s.drained(kA), "");
  EXPECT_EQ(s.phase(kA), SeatPhase::kWaiting) << "it has asked";
  EXPECT_EQ(s.tell(Drained{kA, s.epoch(kA), false, true}), "") << "the core has not told it to freeze";
  s.wait(10ms);
  EXPECT_TRUE(says(s.frozen(kB), "grant 1@0 e3 exclusive"));
}

TEST(Frozen, MayDieOrBeSuspended) {
  TwoSeats s;
  s.wait(10ms);
  s.frozen(kA);
  EXPECT_EQ(s.tell(SeatsSuspended{{kA}, true}), "contention 2@0 no 200000ns");
  EXPECT_EQ(s.phase(kA), SeatPhase::kSuspended);
  EXPECT_TRUE(says(s.tell(SeatsSuspended{{kA}, false}), "contention 2@0 yes 200000ns"));
  EXPECT_EQ(s.tell(TenantGone{kA.tenant}), "contention 2@0 no 200000ns");
}

TEST(Frozen, GoesOnWithALeaseThatIsShared) {
  TwoSeats s;
  s.wait(10ms);
  s.frozen(kA);
  GpuSettings settings = fifo();
  settings.mode = Mode::kConcurrent;
  EXPECT_TRUE(says(s.settings(GpuIndex{0}, settings), "grant 1@0 e4 shared"));
}

// Programs whose kernels never end share by their weights, for their time is that of their leases.
TEST(Frozen, SeatsShareTheGpuByTheirWeights) {
  FreezingScript s(1, fixed());
  const std::vector<SeatId> seats{kA, kB, kC};
  for (const SeatId one : seats) {
    s.tell(TenantConnected{one.tenant, 0});
    s.tell(SeatOpened{.seat = one, .weight = static_cast<std::uint32_t>(one.tenant.value), .can_freeze = true});
    s.request(one);
  }
  for (int i = 0; i < 30'000; ++i) {
    s.wait(1ms);
    for (const SeatId one : seats) {
      if (s.phase(one) != SeatPhase::kRevoked) continue;
      s.wait(2ms);
      s.frozen(one);
    }
  }
  const double all = static_cast<double>((s.now() - TimePoint()).count());
  for (const SeatId one : seats) {
    const double part = static_cast<double>(s.view(one).held.count()) / all;
    EXPECT_NEAR(part, static_cast<double>(one.tenant.value) / 6, 0.01) << one.tenant.value;
  }
}

// ---- gangs --------------------------------------------------------------------------------------

TEST(FrozenGang, IsFrozenAndNotOpenedAgain) {
  FreezingGang s;
  EXPECT_EQ(s.wait(10ms), "revoke 1@0 e1 quantum drains_for=1000000ns; revoke 2@1 e1 quantum drains_for=1000000ns");
  s.closed(kX0);
  EXPECT_EQ(s.drained(kX0), "");
  EXPECT_EQ(s.wait(100ms), "") << "it is not opened again";
  EXPECT_EQ(s.frozen(kX1), "grant 5@0 e2 exclusive contended");
  s.wait(10ms);
  EXPECT_TRUE(says(s.frozen(kS0), "grant 1@0 e3 exclusive; grant 2@1 e2 exclusive"));
}

// X has been frozen as a whole, and its turn is over again.
struct ProvenGang : FreezingGang {
  ProvenGang() {
    wait(10ms);
    frozen(kX0);
    frozen(kX1);
    wait(10ms);
    frozen(kS0);
    EXPECT_EQ(wait(10ms), "revoke 1@0 e3 quantum drains_for=1000000ns; revoke 2@1 e2 quantum drains_for=1000000ns");
  }
};

TEST(FrozenGang, ThatHasBeenFrozenBeforeIsFollowedWhenItsGatesAreClosed) {
  ProvenGang s;
  EXPECT_EQ(s.closed(kX0), "") << "a submission of the other may still come";
  EXPECT_EQ(s.closed(kX1), "grant 5@0 e4 exclusive");
  EXPECT_EQ(s.frozen(kX0), "");
  EXPECT_EQ(s.frozen(kX1), "contention 5@0 yes 200000ns");
  EXPECT_EQ(s.phase(kX0), SeatPhase::kWaiting);
}

TEST(FrozenGang, ThatHasASuccessorRunsOnIfAMemberCannotBeFrozenAnyMore) {
  ProvenGang s;
  s.closed(kX0);
  s.closed(kX1);
  s.frozen(kX0);
  EXPECT_EQ(s.cannot_freeze(kX1), "");
  EXPECT_EQ(s.wait(2ms), "contention 5@0 yes 200000ns");
  EXPECT_EQ(s.phase(kX1), SeatPhase::kWaiting) << "its kernels wait for those of the other";
  EXPECT_EQ(s.wait(8ms), "revoke 5@0 e4 quantum drains_for=1000000ns");
  EXPECT_TRUE(says(s.frozen(kS0), "grant 1@0 e5 exclusive; grant 2@1 e3 exclusive"));
  EXPECT_TRUE(says(s.wait(10ms), "revoke 1@0 e5 quantum; revoke 2@1 e3 quantum")) << "a drain";
}

// The second one's kernels may wait for submissions of the first, which is not let through beside the successor.
TEST(FrozenGang, ThatHasASuccessorRunsOnIfAMemberDeclinesBeforeAnotherIsFrozen) {
  ProvenGang s;
  s.closed(kX0);
  s.closed(kX1);
  s.drained(kX0);
  EXPECT_EQ(s.cannot_freeze(kX1), "");
  EXPECT_EQ(s.wait(2ms), "") << "no stall";
  EXPECT_EQ(s.phase(kX1), SeatPhase::kDraining);
  EXPECT_EQ(s.request(kX0), "contention 5@0 yes 200000ns");
  EXPECT_EQ(s.wait(8ms), "revoke 5@0 e4 quantum drains_for=1000000ns");
  EXPECT_TRUE(says(s.frozen(kS0), "grant 1@0 e5 exclusive; grant 2@1 e3 exclusive"));
}

TEST(FrozenGang, GoesOnDrainingWhenAMemberComesBack) {
  FreezingGang s(false);
  EXPECT_EQ(s.wait(10ms), "revoke 1@0 e1 quantum; revoke 2@1 e1 quantum");
  s.tell(TenantGone{kX1.tenant});
  s.open(kX1);
  s.tell(GangJoined{kX1.tenant, "x", 2});
  s.tell(SeatClaimed{kX1, Claim::kDraining, LeaseKind::kExclusive, LeaseEpoch{1}});
  s.seen(kX0);
  s.closed(kX0);
  EXPECT_FALSE(says(s.wait(125ms), "drains_for")) << "as all its members were told";
}

TEST(FrozenGang, ThatDrainsIsFollowedWhenAllOfItHasDrained) {
  ProvenGang s;
  s.cannot_freeze(kX1);
  s.closed(kX0);
  s.closed(kX1);
  EXPECT_EQ(s.drained(kX0), "");
  EXPECT_EQ(s.drained(kX1), "grant 5@0 e4 exclusive");
}

// Two seats that are revoked become a gang.
TEST(FrozenGang, ThatJoinsWhileItIsRevokedIsFrozen) {
  FreezingScript s(2);
  for (const SeatId one : {kX0, kX1, kS0, kS1}) s.open(one);
  for (const SeatId one : {kX0, kX1, kS0, kS1}) s.request(one);
  s.wait(10ms);
  for (const SeatId one : {kX0, kX1}) s.tell(GangJoined{one.tenant, "x", 2});
  EXPECT_EQ(s.frozen(kX0), "");
  EXPECT_EQ(s.wait(50ms), "");
  EXPECT_EQ(s.frozen(kX1), "grant 5@0 e2 exclusive contended; grant 6@1 e2 exclusive contended");
}

// All members have been told the same. Later events change nothing.
TEST(FrozenGang, IsFrozenEvenIfTheNextOneLacksMemorySince) {
  FreezingGang s;
  s.wait(10ms);
  s.frozen(kX0);
  s.tell(MemoryNeed{kS0, true});
  EXPECT_EQ(s.closed(kX1), "");
  EXPECT_EQ(s.wait(50ms), "");
  EXPECT_TRUE(says(s.frozen(kX1), "grant 5@0 e2 exclusive"));
}

TEST(FrozenGang, IsOpenedAgainIfAMemberCannotBeFrozen) {
  FreezingGang s(false);
  EXPECT_EQ(s.wait(10ms), "revoke 1@0 e1 quantum; revoke 2@1 e1 quantum");
  s.closed(kX0);
  s.closed(kX1);
  EXPECT_EQ(s.drained(kX0), "");
  EXPECT_EQ(s.wait(2ms), "grant 1@0 e2 exclusive again");
}

TEST(FrozenGang, RunsOnIfTheDriverRefusesToFreezeAnother) {
  FreezingGang s;
  s.wait(10ms);
  s.frozen(kX0);
  EXPECT_EQ(s.cannot_freeze(kX1), "");
  EXPECT_EQ(s.wait(10ms), "") << "its gate is not closed";
  EXPECT_EQ(s.closed(kX1), "");
  EXPECT_EQ(s.wait(2ms), "grant 5@0 e2 exclusive contended");
  s.wait(10ms);
  EXPECT_TRUE(says(s.frozen(kS0), "grant 1@0 e3 exclusive; grant 2@1 e2 exclusive"));
  EXPECT_TRUE(says(s.wait(10ms), "revoke 1@0 e3 quantum; revoke 2@1 e2 quantum")) << "a drain";
}

// The messages cross.
TEST(FrozenGang, RunsOnIfAMemberIsFrozenAfterAnotherWasRefused) {
  FreezingGang s;
  s.wait(10ms);
  s.closed(kX1);
  EXPECT_EQ(s.cannot_freeze(kX1), "");
  EXPECT_EQ(s.frozen(kX0), "");
  EXPECT_TRUE(says(s.wait(2ms), "grant 5@0 e2 exclusive contended")) << "what it submits would stand still";
}

// Its library has found that its memory must leave, and says nothing. Its kernels may wait for those that are frozen.
TEST(FrozenGang, RunsOnIfAMemberDrainsInstead) {
  FreezingGang s;
  s.wait(10ms);
  s.frozen(kX0);
  EXPECT_EQ(s.closed(kX1), "");
  EXPECT_EQ(s.wait(99ms), "");
  EXPECT_TRUE(says(s.wait(1ms), "grant 5@0 e2 exclusive contended"));
  s.wait(10ms);
  EXPECT_TRUE(says(s.frozen(kS0), "grant 1@0 e3 exclusive; grant 2@1 e2 exclusive"));
  EXPECT_TRUE(says(s.wait(10ms), "revoke 1@0 e3 quantum; revoke 2@1 e2 quantum")) << "a drain";
}

TEST(FrozenGang, GoesOnDrainingIfNoMemberIsFrozenYet) {
  FreezingGang s;
  s.wait(10ms);
  s.closed(kX0);
  EXPECT_EQ(s.cannot_freeze(kX1), "");
  s.closed(kX1);
  EXPECT_EQ(s.drained(kX0), "");
  EXPECT_EQ(s.wait(2ms), "grant 1@0 e2 exclusive again");
  s.drained(kX1);
  EXPECT_EQ(s.drained(kX0), "grant 5@0 e3 exclusive");
}

// It is opened while others are frozen already.
TEST(FrozenGang, RunsOnForAMemberThatCannotBeFrozen) {
  FreezingGang s;
  s.wait(10ms);
  s.frozen(kX0);
  s.open(kS1, false);
  s.request(kS1);
  const SeatId late = seat(1, 1);
  s.tell(SeatOpened{.seat = late});
  s.closed(kX1);
  EXPECT_TRUE(says(s.wait(2ms), "grant 5@0 e2 exclusive contended; grant 6@1 e2 exclusive contended"));
  EXPECT_EQ(s.phase(late), SeatPhase::kWaiting) << "for their next turn";
}

// It was on its way when the core gave up waiting for it.
TEST(FrozenGang, IsFrozenThoughAMemberSaysSoLate) {
  FreezingGang s;
  s.wait(10ms);
  s.frozen(kX0);
  s.closed(kX1);
  EXPECT_TRUE(says(s.wait(100ms), "grant 5@0 e2 exclusive contended"));
  EXPECT_EQ(s.phase(kX1), SeatPhase::kWaiting);
  EXPECT_TRUE(s.core().has_overruns(kX1.gpu));
  s.frozen(kX1);
  EXPECT_TRUE(s.view(kX1).is_frozen);
  EXPECT_FALSE(s.core().has_overruns(kX1.gpu));
}

// A tenant may say what it likes. It must not keep its lease for that.
TEST(FrozenGang, IsNotBelievedIfItWasToDrain) {
  FreezingGang s(false);
  s.wait(10ms);
  s.closed(kX1);
  EXPECT_EQ(s.frozen(kX0), "");
  EXPECT_EQ(s.wait(2ms), "grant 1@0 e2 exclusive again") << "as one that has drained";
}

TEST(FrozenGang, ThatIsSuspendedWhileItFreezesStandsStill) {
  FreezingGang s;
  s.wait(10ms);
  s.frozen(kX0);
  s.tell(SeatsSuspended{{kX0, kX1}, true});
  EXPECT_EQ(s.frozen(kX1), "grant 5@0 e2 exclusive");
  for (const SeatId one : {kX0, kX1}) EXPECT_EQ(s.phase(one), SeatPhase::kSuspended);
}

// ---- after a restart ----------------------------------------------------------------------------

TEST(Frozen, SeatsComeBackDrainingAndSayItAgain) {
  FreezingScript s;
  s.tell(GrantsHeld{s.now() + 1s});
  s.open(kB);
  s.tell(SeatClaimed{kB, Claim::kHolding, LeaseKind::kExclusive, LeaseEpoch{9}});
  s.open(kA);
  s.tell(SeatClaimed{kA, Claim::kDraining, LeaseKind::kExclusive, LeaseEpoch{8}});
  EXPECT_EQ(s.frozen(kA), "contention 2@0 yes 200000ns");
  EXPECT_EQ(s.phase(kA), SeatPhase::kWaiting);
  EXPECT_TRUE(says(s.wait(1s), "revoke 2@0 e9 quantum drains_for=1000000ns"));
  EXPECT_TRUE(says(s.frozen(kB), "grant 1@0 e10 exclusive"));
}

// The daemon ended after one member had been frozen, and before the other.
TEST(FrozenGang, ThatComesBackHalfFrozenIsFrozenAsAWhole) {
  FreezingScript s(2);
  s.tell(GrantsHeld{s.now() + 1s});
  for (const SeatId one : {kX0, kX1}) {
    s.open(one);
    s.tell(GangJoined{one.tenant, "x", 2});
    s.tell(SeatClaimed{one, Claim::kDraining, LeaseKind::kExclusive, LeaseEpoch{8}});
  }
  s.frozen(kX0);
  s.closed(kX1);
  EXPECT_EQ(s.wait(50ms), "");
  EXPECT_EQ(s.frozen(kX1), "");
  EXPECT_EQ(s.wait(1s), "grant 1@0 e9 exclusive; grant 2@1 e9 exclusive");
}

// The first member is frozen, and alone in its gang, when the second one comes back.
TEST(FrozenGang, ThatComesBackSuspendedStandsStill) {
  FreezingScript s(2);
  s.tell(GrantsHeld{s.now() + 1s});
  for (const SeatId one : {kX0, kX1}) {
    s.tell(TenantConnected{one.tenant, 1000});
    s.tell(GangJoined{one.tenant, "x", 2});
    s.tell(SeatOpened{.seat = one, .is_suspended = true, .can_freeze = true});
    if (one == kX1) break;
    s.tell(SeatClaimed{one, Claim::kDraining, LeaseKind::kExclusive, LeaseEpoch{8}});
    s.frozen(one);
  }
  EXPECT_EQ(s.wait(1s), "");
  for (const SeatId one : {kX0, kX1}) EXPECT_EQ(s.phase(one), SeatPhase::kSuspended);
}

TEST(FrozenGang, ThatComesBackHalfFrozenAndMustDrainRunsOn) {
  FreezingScript s(2);
  s.tell(GrantsHeld{s.now() + 1s});
  for (const SeatId one : {kX0, kX1}) {
    s.open(one, one == kX0);
    s.tell(GangJoined{one.tenant, "x", 2});
    s.tell(SeatClaimed{one, Claim::kDraining, LeaseKind::kExclusive, LeaseEpoch{8}});
  }
  s.frozen(kX0);
  s.closed(kX1);
  std::string text;
  for (int i = 0; i < 11; ++i) {
    text += s.wait(100ms);
    s.seen(kX1);
  }
  EXPECT_TRUE(says(text, "grant 1@0 e9 exclusive; grant 2@1 e9 exclusive")) << "as soon as leases are given";
}

}  // namespace
}  // namespace gpumux::sched
