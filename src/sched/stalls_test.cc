// SPDX-License-Identifier: Apache-2.0
// Goal: what does not drain, a gang or a single seat, drains by steps or counts as drained.
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

// Lets the seats answer for so long, and never drain.
std::string go_on_spinning(Script& s, const std::vector<SeatId>& seats, Duration duration) {
  std::string text;
  for (Duration past{}; past < duration; past += 100ms) {
    for (const SeatId one : seats) {
      s.seen(one);
      s.closed(one);
    }
    const std::string said = s.wait(std::min(duration - past, Duration(100ms)));
    if (!said.empty()) text += (text.empty() ? "" : "; ") + said;
  }
  return text;
}

TEST(Stall, OfAGangEndsItsTurn) {
  Revoked s;
  s.drained(kX1);
  s.wait(2ms);  // a step is out
  EXPECT_EQ(go_on_spinning(s, {kX0}, 9998ms),
            "stall 1@0 e1 waited 10000000000ns; revoke 2@1 e1 gang; grant 5@0 e2 exclusive")
      << "and it leaves no step behind";
  EXPECT_EQ(s.phase(kX0), SeatPhase::kDraining);
  s.seen(kX1);
  s.drained(kX1);
  EXPECT_EQ(s.phase(kX1), SeatPhase::kIdle);
}

// The one that is behind waits at its gate. It makes the missing submission in the gang's next turn.
TEST(Stall, OfAGangIsOverWithItsNextTurn) {
  Revoked s;
  s.drained(kX1);
  s.wait(1ms);
  s.request(kX1);
  EXPECT_TRUE(says(go_on_spinning(s, {kX0}, 9999ms), "grant 5@0 e2 exclusive contended"));
  EXPECT_EQ(s.phase(kX0), SeatPhase::kWaiting);
  EXPECT_EQ(s.wait(10ms), "revoke 5@0 e2 quantum");
  EXPECT_EQ(s.closed(kS0), "grant 1@0 e3 exclusive; grant 2@1 e2 exclusive");
  EXPECT_EQ(s.tell(Drained{kX0, LeaseEpoch{1}}), "") << "of the lease before: ignored";
  EXPECT_EQ(s.phase(kX0), SeatPhase::kHolding);
}

// Each of its turns ends like that.
TEST(Stall, OfASingleSeatGivesOthersTheirTurns) {
  GpuSettings settings = fifo();
  settings.overlap = false;
  OneGpu s(settings);
  s.request(kA);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(s.phase(kA), SeatPhase::kHolding) << i;
    s.request(kB);
    s.request(kA);
    s.wait(10ms);
    EXPECT_EQ(s.phase(kA), SeatPhase::kRevoked);
    go_on_spinning(s, {kA}, 9900ms);
    EXPECT_NE(s.phase(kB), SeatPhase::kHolding);
    go_on_spinning(s, {kA}, 100ms);
    EXPECT_EQ(s.phase(kB), SeatPhase::kHolding) << i;
    s.request(kA);
    s.drained(kB);
  }
}

TEST(Stall, BesideASuccessorLetsAThirdStart) {
  Script s(1, fifo());
  for (const std::uint64_t id : {1u, 2u, 3u}) s.tenant(id, {0});
  s.request(seat(1, 0));
  s.request(seat(2, 0));
  s.wait(10ms);
  EXPECT_EQ(s.closed(seat(1, 0)), "grant 2@0 e2 exclusive");
  EXPECT_EQ(s.request(seat(3, 0)), "contention 2@0 yes 200000ns");
  EXPECT_EQ(s.wait(10ms), "revoke 2@0 e2 quantum");
  EXPECT_EQ(s.closed(seat(2, 0)), "") << "two would drain at once";
  EXPECT_EQ(go_on_spinning(s, {seat(1, 0), seat(2, 0)}, 10s),
            "stall 1@0 e1 waited 10000000000ns; grant 3@0 e3 exclusive; "
            "stall 2@0 e2 waited 10000000000ns");
}

// Two gangs hold half of each other's GPUs and spin for members that joined too late.
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
  const std::string text = go_on_spinning(s, {kX0, kY1}, 10100ms);
  EXPECT_TRUE(says(text, "stall 1@0 e1"));
  EXPECT_TRUE(says(text, "stall 4@1 e1"));
  EXPECT_TRUE(says(text, "grant 1@0 e2 exclusive contended; grant 2@1 e2 exclusive contended"))
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
      if (s.phase(one) != SeatPhase::kHolding) s.request(one);
    }
    if (s.phase(seats[1 - holder]) != SeatPhase::kHolding) continue;
    holder = 1 - holder;
    ++turns;
  }
  EXPECT_GE(turns, 6) << "in 200 s";
}

// A thread is inside, in a launch that waits for room. It may make that one submission.
TEST(Stall, WithAnOpenGateEndsTheTurn) {
  GpuSettings settings = fifo();
  settings.stall_timeout = 1s;
  OneGpu s(settings);
  s.request(kA);
  s.request(kB);
  s.wait(10ms);
  std::string text;
  for (int i = 0; i < 10; ++i) {
    s.seen(kA);
    text += s.wait(100ms);
  }
  EXPECT_EQ(text, "stall 1@0 e1 waited 1000000000ns; grant 2@0 e2 exclusive");
  EXPECT_EQ(s.closed(kA), "");
  EXPECT_EQ(s.drained(kA), "");
  EXPECT_EQ(s.phase(kA), SeatPhase::kIdle);
}

TEST(Stall, EndsWithADrainThatComesLate) {
  GpuSettings settings = fifo();
  settings.stall_timeout = 1s;
  OneGpu s(settings);
  s.request(kA);
  s.request(kB);
  s.wait(10ms);
  go_on_spinning(s, {kA}, 2s);
  EXPECT_EQ(s.phase(kA), SeatPhase::kDraining);
  EXPECT_TRUE(s.core().has_overruns(GpuIndex{0}));
  s.drained(kA);
  EXPECT_EQ(s.phase(kA), SeatPhase::kIdle);
  EXPECT_FALSE(s.core().has_overruns(GpuIndex{0}));
  EXPECT_EQ(s.view(kA).held, 2010ms) << "up to then";
  s.wait(1s);
  EXPECT_EQ(s.view(kA).held, 2010ms);
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

// A program whose kernel never ends, which asks for turns all the same. It pays for all the time.
TEST(Stall, IsPaidForWhileOthersHaveTheirTurns) {
  GpuSettings settings = fixed();
  settings.stall_timeout = 1s;
  OneGpu s(settings);
  s.request(kA);
  s.request(kB);
  Duration b_held{};
  for (Duration past{}; past < 200s; past += 10ms) {
    if (s.phase(kA) == SeatPhase::kRevoked) s.seen(kA);
    for (const SeatId one : {kA, kB}) {
      if (!s.view(one).queue_place && s.phase(one) != SeatPhase::kHolding) s.request(one);
    }
    if (s.phase(kB) == SeatPhase::kRevoked) {
      s.closed(kB);
      s.drained(kB);
      s.request(kB);
    }
    s.wait(10ms);
  }
  b_held = s.view(kB).held;
  EXPECT_GT(b_held, 130s) << "its own is the time that the other one used, and it never gave the GPU up";
}

// Lets A answer and never drain; the others take turns. Returns how long A held.
Duration take_turns_beside_a_stall(Script& s, const std::vector<SeatId>& others, Duration time, Duration asks_every) {
  const Duration before = s.view(kA).held;
  Duration held{};
  for (Duration past{}; past < time; past += 10ms) {
    if (asks_every != 0s && past % asks_every == 0s) s.request(kA);
    if (s.phase(kA) == SeatPhase::kRevoked) s.seen(kA);
    if (s.phase(kA) == SeatPhase::kHolding || s.phase(kA) == SeatPhase::kRevoked) held += 10ms;
    for (const SeatId one : others) {
      if (s.phase(one) == SeatPhase::kRevoked) {
        s.closed(one);
        s.drained(one);
      }
      if (s.phase(one) == SeatPhase::kIdle) s.request(one);
    }
    s.wait(10ms);
  }
  EXPECT_GE(s.view(kA).held, before);
  return held;
}

// A program that waits long before it asks for its next turn has no claim to the time in between: its work ran on.
TEST(Stall, SavesNoTimeUp) {
  OneGpu s(fixed(), 3);
  const SeatId c = seat(3, 0);
  for (const SeatId one : {kA, kB, c}) s.request(one);
  const Duration first = take_turns_beside_a_stall(s, {kB, c}, 120s, 0s);
  EXPECT_LE(first, 10100ms);
  const Duration then = take_turns_beside_a_stall(s, {kB, c}, 400s, 100s);
  EXPECT_LE(then, 4 * 10100ms) << "four turns";
}

TEST(Stall, SavesNoTimeUpUntilItDrains) {
  OneGpu s(fixed(), 3);
  const SeatId c = seat(3, 0);
  for (const SeatId one : {kA, kB, c}) s.request(one);
  take_turns_beside_a_stall(s, {kB, c}, 120s, 0s);
  s.drained(kA);
  s.request(kA);
  Duration held{};
  for (int i = 0; i < 1000 && s.phase(kA) == SeatPhase::kWaiting; ++i) take_turns_beside_a_stall(s, {kB, c}, 10ms, 0s);
  for (; s.phase(kA) == SeatPhase::kHolding; held += 1ms) s.wait(1ms);
  EXPECT_LE(held, 2 * 10ms);
}

// It owes more than one turn may cost.
TEST(Stall, OfOneOfTwoProgramsDoesNotLastForItsDebt) {
  GpuSettings settings = fixed();
  settings.max_runtime = kUnlimited;
  OneGpu s(settings);
  s.request(kA);
  s.request(kB);
  s.wait(10ms);
  go_on_spinning(s, {kA}, 15s);
  s.drained(kA);
  s.request(kA);
  Duration waited{};
  for (; waited < 100s && s.phase(kA) != SeatPhase::kHolding; waited += 10ms) {
    s.wait(10ms);
    if (s.phase(kB) == SeatPhase::kRevoked) {
      s.closed(kB);
      s.drained(kB);
      s.request(kB);
    }
  }
  EXPECT_LE(waited, 16s) << "as long as its work took";
}

// A member joins whose work runs on. The end of the others' turn says nothing of it.
TEST(Stall, OfAMemberThatJoinsGoesOn) {
  Script s(2, fifo());
  for (std::uint64_t id = 1; id <= 3; ++id) s.tenant(id, {id == 2 ? 1u : 0u});
  s.request(seat(1, 0));
  s.request(seat(3, 0));
  s.wait(10ms);
  go_on_spinning(s, {seat(1, 0)}, 10100ms);
  EXPECT_EQ(s.phase(seat(1, 0)), SeatPhase::kDraining);
  s.request(seat(2, 1));
  for (const std::uint64_t id : {1u, 2u}) s.tell(GangJoined{TenantId{id}, "x", 2});
  s.seen(seat(2, 1));
  s.closed(seat(2, 1));
  s.drained(seat(2, 1));
  EXPECT_EQ(s.phase(seat(1, 0)), SeatPhase::kDraining);
  const Duration before = s.view(seat(1, 0)).held;
  s.wait(1s);
  EXPECT_EQ(s.view(seat(1, 0)).held - before, 1s);
  s.tell(SeatsSuspended{{seat(1, 0), seat(2, 1)}});
  EXPECT_NE(s.phase(seat(1, 0)), SeatPhase::kSuspended);
}

// Two seats of a claim on one GPU cost it their time once, whichever drains first.
TEST(Stall, OfTwoSeatsOfAClaimIsPaidForOnce) {
  for (const bool lead_first : {true, false}) {
    Script s(1, fixed());
    for (std::uint64_t id = 1; id <= 3; ++id) {
      s.tell(TenantConnected{TenantId{id}, 0});
      SeatOpened opened{.seat = seat(id, 0)};
      if (id <= 2) opened.share_group = "claim";
      s.tell(opened);
    }
    for (const std::uint64_t id : {1u, 2u}) s.tell(GangJoined{TenantId{id}, "x", 2});
    s.request(seat(1, 0));
    s.request(seat(3, 0));
    s.wait(10ms);
    go_on_spinning(s, {seat(1, 0), seat(2, 0)}, 10s);
    s.wait(4s);
    s.drained(seat(lead_first ? 1 : 2, 0));
    s.wait(4s);
    s.drained(seat(lead_first ? 2 : 1, 0));
    s.request(seat(1, 0));
    Duration waited{};
    for (; waited < 100s && s.phase(seat(1, 0)) != SeatPhase::kHolding; waited += 10ms) {
      s.wait(10ms);
      if (s.phase(seat(3, 0)) == SeatPhase::kRevoked) {
        s.closed(seat(3, 0));
        s.drained(seat(3, 0));
        s.request(seat(3, 0));
      }
    }
    EXPECT_LE(waited, 10200ms) << lead_first;
  }
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
