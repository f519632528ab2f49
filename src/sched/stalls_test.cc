// SPDX-License-Identifier: Apache-2.0
// Goal: what does not drain, a gang or a single seat, drains by steps or gets its GPUs back.
// Method: small scripts, and a few programs with collectives whose kernels spin until all ranks have submitted them.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "sched/two_gangs.h"

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

// X is revoked while rank 0 has submitted a collective that rank 1 has not.
struct Revoked : TwoGangs {
  Revoked() {
    request(kX0);
    wait(10ms);
    request(kS0);
    for (const SeatId one : {kX0, kX1}) {
      seen(one);
      closed(one);
    }
  }
};

TEST(Stall, MemberBehindIsLetThroughByEverMoreSubmissions) {
  Revoked s;
  EXPECT_EQ(s.drained(kX1), "");
  EXPECT_EQ(s.wait(1999us), "");
  EXPECT_EQ(s.wait(1us), "step 2@1 e1") << "the drained one is behind";
  EXPECT_EQ(s.wait(50ms), "") << "never two steps at a time";
  EXPECT_EQ(s.stepped(kX1), "");
  EXPECT_EQ(s.drained(kX1), "") << "a plain kernel: still behind";
  EXPECT_EQ(s.wait(249us), "");
  EXPECT_EQ(s.wait(1us), "step 2@1 e1 times 4") << "it is known to be behind now";
  EXPECT_EQ(s.stepped(kX1, 3), "");
  EXPECT_EQ(s.drained(kX1), "");
  EXPECT_EQ(s.wait(50ms), "") << "one of the four is still out";
  EXPECT_EQ(s.stepped(kX1), "");
  EXPECT_EQ(s.drained(kX1), "");
  EXPECT_EQ(s.wait(250us), "step 2@1 e1 times 16");
  EXPECT_EQ(s.stepped(kX1, 16), "");
  EXPECT_EQ(s.drained(kX0), "") << "the collective: both finish";
  EXPECT_EQ(s.drained(kX1), "grant 5@0 e2 exclusive");
}

// Lets X's rank 1 through until four submissions are out.
void step_by_four(Revoked& s) {
  s.drained(kX1);
  EXPECT_EQ(s.wait(2ms), "step 2@1 e1");
  s.stepped(kX1);
  s.drained(kX1);
  EXPECT_EQ(s.wait(250us), "step 2@1 e1 times 4");
}

TEST(Stall, UnusedStepIsTakenBackBeforeOthersStart) {
  Revoked s;
  step_by_four(s);
  EXPECT_EQ(s.drained(kX0), "revoke 2@1 e1 gang") << "it may still slip through: not done yet";
  EXPECT_EQ(s.seen(kX1), "");
  EXPECT_EQ(s.closed(kX1), "");
  EXPECT_EQ(s.drained(kX1), "grant 5@0 e2 exclusive");
}

TEST(Stall, WhatIsLeftOfAStepIsTakenBackAsSoonAsNobodyNeedsIt) {
  Revoked s;
  step_by_four(s);
  EXPECT_EQ(s.stepped(kX1, 2), "");
  EXPECT_EQ(s.drained(kX0), "revoke 2@1 e1 gang") << "rank 1 has caught up, and goes on";
  s.seen(kX1);
  EXPECT_EQ(s.closed(kX1), "");
  EXPECT_EQ(s.drained(kX1), "grant 5@0 e2 exclusive");
}

// Messages cross: what was said before the Revoke was seen was said while submissions could still be made.
TEST(Stall, DrainSaidBeforeTheStepWasTakenBackDoesNotCount) {
  Revoked s;
  step_by_four(s);
  s.stepped(kX1, 2);
  EXPECT_EQ(s.drained(kX0), "revoke 2@1 e1 gang");
  EXPECT_EQ(s.drained(kX1), "") << "of the two; the third may have been made since";
  EXPECT_EQ(s.stepped(kX1), "");
  EXPECT_EQ(s.drained(kX1), "");
  EXPECT_EQ(s.closed(kX1), "") << "not of this Revoke";
  EXPECT_EQ(s.seen(kX1), "");
  EXPECT_EQ(s.drained(kX1), "");
  EXPECT_EQ(s.closed(kX1), "");
  EXPECT_EQ(s.drained(kX1), "grant 5@0 e2 exclusive");
}

TEST(Stall, StepsThatWereNotGivenAreNotCounted) {
  Revoked s;
  EXPECT_EQ(s.stepped(kX0, 7), "") << "none was given";
  step_by_four(s);
  EXPECT_EQ(s.stepped(kX1, 0), "");
  EXPECT_EQ(s.phase(kX1), SeatPhase::kDraining);
  EXPECT_EQ(s.stepped(kX1, 1'000'000), "");
  EXPECT_EQ(s.drained(kX1), "");
  EXPECT_EQ(s.wait(250us), "step 2@1 e1 times 16") << "all four were used";
}

// Both ranks of X drain, the second after the first has been let through by some steps, and S after them.
std::string revoke_with_steps(TwoGangs& s, Duration pause) {
  s.request(kX0);
  s.wait(10ms);
  s.request(kS0);
  for (const SeatId one : {kX0, kX1}) {
    s.seen(one);
    s.closed(one);
  }
  s.drained(kX1);
  std::string text = s.wait(pause - 1us);
  text += text.empty() ? s.wait(1us) : " too early";
  s.stepped(kX1);
  s.drained(kX0);
  s.drained(kX1);
  s.drained(kS0);
  return text;
}

TEST(Stall, ThatStepsResolveAtOnceIsSteppedEarlierTheNextTime) {
  TwoGangs s;
  EXPECT_EQ(revoke_with_steps(s, 2ms), "step 2@1 e1");
  EXPECT_EQ(revoke_with_steps(s, 1ms), "step 2@1 e2");
  EXPECT_EQ(revoke_with_steps(s, 500us), "step 2@1 e3");
  EXPECT_EQ(revoke_with_steps(s, 250us), "step 2@1 e4");
  EXPECT_EQ(revoke_with_steps(s, 250us), "step 2@1 e5");
}

TEST(Stall, OfAGangWithASilentMemberLeavesNoStepsBehind) {
  Revoked s;
  s.drained(kX1);
  EXPECT_EQ(s.wait(2ms), "step 2@1 e1");
  const std::string text = s.wait(600ms);  // 1 is stopped
  EXPECT_TRUE(says(text, "revoke 2@1 e1 gang; silent 1@0"));
}

// It was silent, or came back with its claim when its GPU had been given away: it has work there, and gets no more in.
TEST(Stall, NobodyIsLetThroughBesideAnotherHolder) {
  Script s(2, fifo());
  s.tell(GrantsHeld{s.now() + 1s});
  for (const std::uint64_t id : {1u, 2u, 3u}) s.tenant(id, {id == 2 ? 1u : 0u});
  for (const std::uint64_t id : {1u, 2u}) s.tell(GangJoined{TenantId{id}, "x", 2});
  s.tell(SeatClaimed{seat(3, 0), Claim::kHolding, LeaseKind::kExclusive, LeaseEpoch{9}});
  s.tell(SeatClaimed{kX0, Claim::kDraining, LeaseKind::kExclusive, LeaseEpoch{5}});
  s.tell(SeatClaimed{kX1, Claim::kDraining, LeaseKind::kExclusive, LeaseEpoch{6}});
  s.closed(kX0);
  s.closed(kX1);
  s.drained(kX0);
  std::string text;
  for (int i = 0; i < 20; ++i) {
    text += s.wait(10ms);
    s.seen(kX1);
  }
  EXPECT_FALSE(says(text, "step"));
}

TEST(Stall, MemberThatRestedIsToldOfTheRevocationBeforeItSteps) {
  TwoGangs s;
  s.request(kX0);
  s.drained(kX1);  // of its own accord
  s.wait(10ms);
  EXPECT_EQ(s.request(kS0), "revoke 1@0 e1 quantum");
  EXPECT_EQ(s.closed(kX0), "");
  EXPECT_EQ(s.wait(2ms), "revoke 2@1 e1 gang");
  s.closed(kX1);
  EXPECT_EQ(s.drained(kX1), "");
  EXPECT_EQ(s.wait(2ms), "step 2@1 e1");
  s.stepped(kX1);
  s.drained(kX0);
  EXPECT_EQ(s.drained(kX1), "grant 5@0 e2 exclusive");
}

TEST(Stall, LongKernelsDoNotLeadEachOtherOn) {
  Revoked s;
  // Each submission takes 5 ms, longer than the pause before a step, and none waits for another rank.
  s.drained(kX1);
  EXPECT_EQ(s.wait(2ms), "step 2@1 e1") << "it only seems to be behind";
  s.stepped(kX1);
  s.wait(3ms);
  s.drained(kX0);
  EXPECT_EQ(s.wait(1249us), "") << "now 0 seems to be behind: the pause grows instead";
  EXPECT_EQ(s.wait(1us), "step 1@0 e1");
  s.stepped(kX0);
  s.wait(750us);
  s.drained(kX1);
  EXPECT_EQ(s.wait(4250us), "") << "longer than a kernel takes";
  EXPECT_EQ(s.drained(kX0), "grant 5@0 e2 exclusive");
}

TEST(Stall, OfAGangIsTakenBackForAllMembersAndTriedAgain) {
  Revoked s;
  s.drained(kX1);
  s.wait(2ms);  // a step is out
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += s.wait(100ms);
    s.seen(kX0);
  }
  EXPECT_EQ(text,
            "stall 1@0 e1 waited 10000000000ns undrained 1@0; reopen 1@0 e2 exclusive; reopen 2@1 e2 exclusive; "
            "contention 1@0 yes 200000ns; contention 2@1 yes 200000ns")
      << text;
  EXPECT_EQ(s.tell(Drained{kX0, LeaseEpoch{1}}), "") << "of the lease before: ignored";
  EXPECT_EQ(s.wait(197ms), "");
  EXPECT_EQ(s.wait(2ms), "revoke 1@0 e2 quantum; revoke 2@1 e2 quantum");
}

// Lets a stuck seat answer, but never drain, until it is reopened; returns the pause until it is revoked again.
Duration pause_after_stall(Script& s, SeatId stuck) {
  for (int i = 0; i < 500 && s.phase(stuck) != SeatPhase::kHolding; ++i) {
    s.closed(stuck);
    s.wait(100ms);
  }
  const TimePoint reopened = s.view(stuck).since;
  for (int i = 0; i < 5000 && s.phase(stuck) == SeatPhase::kHolding; ++i) s.wait(10ms);
  return s.view(stuck).since - reopened;
}

// From then on its gates are not looked at, and others that cannot be drained may go on.
TEST(Stall, OfAGangThatReturnsLeavesNoStepsBehind) {
  GpuSettings settings = fifo();
  settings.stall_timeout = 1s;
  settings.silence_limit = 1h;
  Script s(3, settings);
  for (std::uint64_t id = 1; id <= 4; ++id)
    s.tenant(id, {static_cast<std::uint32_t>(std::min(id - 1, std::uint64_t{2}))});
  for (const std::uint64_t id : {1u, 2u}) s.tell(GangJoined{TenantId{id}, "x", 3});
  s.request(seat(1, 0));
  s.request(seat(4, 2));
  // The third one's GPU is another's, so the gang has to start anew; the second one's work does not end before that.
  s.tell(GangJoined{TenantId{3}, "x", 3});
  for (const SeatId one : {seat(1, 0), seat(2, 1)}) s.closed(one);
  s.drained(seat(1, 0));
  EXPECT_EQ(s.wait(10ms), "step 1@0 e1");
  const std::string then = s.wait(1s);
  const std::size_t stalled = then.find("stall 2@1");
  ASSERT_NE(stalled, std::string::npos) << then;
  EXPECT_NE(then.find("revoke 1@0 e1", stalled), std::string::npos) << then;
  s.seen(seat(1, 0));
  s.closed(seat(1, 0));
  s.drained(seat(1, 0));
  EXPECT_FALSE(says(s.wait(100ms), "step")) << "nobody waits for its drain any more";
}

TEST(Stall, OfASingleSeatIsTriedAgainEverMoreRarely) {
  GpuSettings settings = fifo();
  settings.overlap = false;
  Script s(1, settings);
  s.tenant(1, {0});
  s.tenant(2, {0});
  s.request(seat(1, 0));
  s.request(seat(2, 0));
  s.wait(10ms);
  Duration expected = 200ms;
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(pause_after_stall(s, seat(1, 0)), expected) << i;
    if (expected < 200ms * 64) expected *= 2;
  }
  EXPECT_EQ(s.drained(seat(1, 0)), "grant 2@0 e11 exclusive");
  s.request(seat(1, 0));
  s.drained(seat(2, 0));
  s.request(seat(2, 0));
  s.wait(10ms);
  EXPECT_EQ(pause_after_stall(s, seat(1, 0)), 200ms) << "a success starts anew";
}

// A seat's work waits for its own process, behind the closed gate, while its successor runs already.
TEST(Stall, BesideASuccessorGetsTheGpuBackAfterItsQuantum) {
  Script s(1, fifo());
  for (const std::uint64_t id : {1u, 2u, 3u}) s.tenant(id, {0});
  s.request(seat(1, 0));
  s.request(seat(2, 0));
  s.wait(10ms);
  EXPECT_EQ(s.closed(seat(1, 0)), "grant 2@0 e2 exclusive");
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += s.wait(100ms);
    s.seen(seat(1, 0));
  }
  EXPECT_EQ(text, "stall 1@0 e1 waited 10000000000ns undrained 1@0; revoke 2@0 e2 quantum");
  EXPECT_EQ(s.request(seat(3, 0)), "");
  EXPECT_EQ(s.closed(seat(2, 0)), "reopen 1@0 e3 exclusive; contention 1@0 yes 200000ns") << "before 3";
  EXPECT_EQ(s.drained(seat(2, 0)), "");
  EXPECT_EQ(s.drained(seat(1, 0)), "grant 3@0 e4 exclusive") << "it released";
}

// Two gangs hold half of each other's GPUs and spin for members that joined too late: the older stall is helped first.
TEST(Stall, OfTwoHalfGangsIsResolved) {
  Script s(2, fifo());
  for (const std::uint64_t id : {1u, 2u, 3u, 4u}) {
    s.tell(TenantConnected{TenantId{id}, 0});
    s.tell(GangJoined{TenantId{id}, id <= 2 ? "x" : "y", 2});
  }
  s.tell(SeatOpened{kX0});
  s.tell(SeatOpened{kY1});
  s.request(kX0);
  s.request(kY1);
  s.tell(SeatOpened{kX1});  // revokes X on GPU 0, where it spins for this member
  s.wait(1ms);
  s.tell(SeatOpened{kY0});
  s.request(kX1);
  s.request(kY0);
  std::string text;
  for (int i = 0; i < 101; ++i) {
    s.closed(kX0);
    s.closed(kY1);
    text += s.wait(100ms);
  }
  EXPECT_TRUE(says(text, "stall 1@0 e1"));
  EXPECT_TRUE(says(text, "reopen 1@0 e2 exclusive; grant 2@1 e2 exclusive contended"))
      << "whole, beside the other one's spinning kernel: " << text;
}

// Neither of two seats can be drained. They take turns, each while the other's stuck work is there, and neither is
// forgotten.
TEST(Stall, OfTwoSeatsLetsThemTakeTurns) {
  Script s(1, fifo());
  for (const std::uint64_t id : {1u, 2u}) s.tenant(id, {0});
  const SeatId seats[] = {seat(1, 0), seat(2, 0)};
  s.request(seats[0]);
  s.request(seats[1]);
  std::size_t holder = 0;
  int turns = 0;
  for (int i = 0; i < 2000; ++i) {
    s.wait(100ms);
    for (const SeatId one : seats) {
      if (s.phase(one) == SeatPhase::kRevoked) s.closed(one);
      if (s.phase(one) == SeatPhase::kDraining) s.seen(one);
    }
    if (s.phase(seats[1 - holder]) != SeatPhase::kHolding) continue;
    holder = 1 - holder;
    ++turns;
  }
  EXPECT_GE(turns, 6) << "in 200 s";
}

// 2 never closes its gate (a thread is inside, in a launch that waits for room), while 1 waits to have its lease back.
// That thread may submit, so 1 must not.
TEST(Stall, WithAnOpenGateKeepsItsGpu) {
  GpuSettings settings = fifo();
  settings.stall_timeout = 1s;
  Script s(1, settings);
  s.tenant(1, {0});
  s.tenant(2, {0});
  s.request(seat(1, 0));
  s.request(seat(2, 0));
  s.wait(10ms);
  EXPECT_EQ(s.closed(seat(1, 0)), "grant 2@0 e2 exclusive");
  std::string text;
  bool was_taken_back = false;
  for (int i = 0; i < 40; ++i) {
    text += s.wait(100ms) + "; ";
    for (const SeatId one : {seat(1, 0), seat(2, 0)}) s.seen(one);
    was_taken_back |= text.find("reopen 2@0") != std::string::npos;
    ASSERT_NE(s.phase(seat(1, 0)), SeatPhase::kHolding) << "beside the open gate of 2: " << text;
  }
  EXPECT_TRUE(was_taken_back) << text;
  while (s.phase(seat(2, 0)) != SeatPhase::kRevoked) s.wait(100ms);
  EXPECT_TRUE(says(s.closed(seat(2, 0)), "reopen 1@0")) << "its turn, once the gate is closed";
}

// A program that answers each Revoke, and whose work does not end until `end`. Returns the time of its lease until
// then.
Duration stall_until(OneGpu& s, SeatId stuck, Duration end) {
  s.request(kA);
  s.request(kB);
  s.wait(10ms);
  EXPECT_EQ(s.phase(stuck), SeatPhase::kRevoked);
  for (Duration past{}; past < end; past += 10ms) {
    s.wait(10ms);
    s.seen(stuck);
  }
  return s.view(stuck).held;
}

// The milliseconds that A and B hold in `time`, in which both always want more.
std::pair<double, double> race(OneGpu& s, Duration time) {
  const Duration before[] = {s.view(kA).held, s.view(kB).held};
  for (Duration past{}; past < time; past += 1ms) {
    for (const SeatId one : {kA, kB}) {
      if (s.phase(one) == SeatPhase::kRevoked) s.closed(one);
      if (s.phase(one) == SeatPhase::kDraining) s.drained(one);
      if (s.phase(one) == SeatPhase::kIdle) s.request(one);
    }
    s.wait(1ms);
  }
  return {(s.view(kA).held - before[0]) / 1ms, (s.view(kB).held - before[1]) / 1ms};
}

// The time from a Revoke to the drain is the stalled program's: others have that much more of the GPU afterwards.
TEST(Stall, IsPaidForByTheProgramThatStalls) {
  OneGpu s(fixed());
  EXPECT_EQ(stall_until(s, kA, 3s), 3010ms);
  const auto [a, b] = race(s, 2900ms);
  EXPECT_LE(a, 12) << "it owes three seconds";
  EXPECT_GE(b, 2880);
  const auto [later_a, later_b] = race(s, 2100ms);
  EXPECT_NEAR(later_a, later_b, 150) << "and no more than these";
}

// Each Reopen is another lease. The debt of before stays.
TEST(Stall, IsPaidForThoughItsLeaseWasGivenBack) {
  GpuSettings settings = fixed();
  settings.stall_timeout = 1s;
  OneGpu s(settings);
  const Duration had = stall_until(s, kA, 5s);
  EXPECT_EQ(had, 5010ms) << "through all of its leases";
  EXPECT_GE(s.epoch(kA).value, 4u);
  const auto [a, b] = race(s, 4900ms);
  EXPECT_LE(a, 12);
  EXPECT_GE(b, 4880);
}

TEST(Stall, IsNotPutOffByChangesOfOtherSettings) {
  GpuSettings settings = fifo();
  settings.stall_timeout = 1s;
  Script s(1, settings);
  s.tenant(1, {0});
  s.tenant(2, {0});
  s.request(seat(1, 0));
  s.request(seat(2, 0));
  s.wait(10ms);
  std::string text;
  for (int i = 0; i < 12; ++i) {
    text += s.wait(100ms);
    s.seen(seat(1, 0));
    settings.quantum = settings.quantum.value().value() + 1ms;
    s.settings(GpuIndex{0}, settings);
  }
  EXPECT_TRUE(says(text, "stall 1@0"));
}

}  // namespace
}  // namespace gpumux::sched
