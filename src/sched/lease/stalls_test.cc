// SPDX-License-Identifier: Apache-2.0
// Goal: what does not drain, a gang or a single seat, drains when it is opened again, or counts as drained.
// Method: small scripts, and a few programs with collectives whose kernels spin until all ranks have submitted them.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "sched/testing/two_gangs.h"

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

// X's rank 1 has drained, and is behind.
void open_again(Revoked& s) {
  EXPECT_EQ(s.drained(kX1), "");
  EXPECT_EQ(s.wait(1999us), "");
  EXPECT_EQ(s.wait(1us), "grant 2@1 e2 exclusive again");
}

void close_again(Revoked& s, SeatId seat) {
  EXPECT_EQ(s.seen(seat), "");
  EXPECT_EQ(s.closed(seat), "");
}

TEST(Stall, MemberBehindIsOpenedAgainForEverLongerMoments) {
  Revoked s;
  open_again(s);
  EXPECT_EQ(s.wait(249us), "");
  EXPECT_EQ(s.wait(1us), "revoke 2@1 e2 gang");
  close_again(s, kX1);
  EXPECT_EQ(s.drained(kX1), "") << "plain kernels: still behind";
  EXPECT_EQ(s.wait(249us), "");
  EXPECT_EQ(s.wait(1us), "grant 2@1 e3 exclusive again") << "it is known to be behind now";
  EXPECT_EQ(s.wait(499us), "");
  EXPECT_EQ(s.drained(kX0), "revoke 2@1 e3 gang") << "the collective: no member needs the rest of the moment";
  close_again(s, kX1);
  EXPECT_EQ(s.drained(kX1), "grant 5@0 e2 exclusive");
}

TEST(Stall, AllAreOpenedAgainAfterOneHasGoneTooFar) {
  Revoked s;
  open_again(s);
  EXPECT_EQ(s.drained(kX0), "revoke 2@1 e2 gang");
  close_again(s, kX1);
  EXPECT_EQ(s.wait(249us), "") << "rank 1 spins now";
  EXPECT_EQ(s.wait(1us), "grant 1@0 e2 exclusive again; grant 2@1 e3 exclusive again");
  EXPECT_EQ(s.wait(125us), "revoke 1@0 e2 gang; revoke 2@1 e3 gang") << "for a shorter moment";
  for (const SeatId one : {kX0, kX1}) close_again(s, one);
  EXPECT_EQ(s.drained(kX0), "");
  EXPECT_EQ(s.wait(499us), "") << "and after a longer pause";
  EXPECT_EQ(s.wait(1us), "grant 1@0 e3 exclusive again");
}

// Messages cross: what was said of the lease before says nothing.
TEST(Stall, DrainSaidBeforeTheGateWasOpenedAgainDoesNotCount) {
  Revoked s;
  const LeaseEpoch before = s.epoch(kX1);
  open_again(s);
  EXPECT_EQ(s.tell(Drained{kX1, before}), "");
  EXPECT_EQ(s.tell(GateClosed{kX1, before}), "");
  EXPECT_EQ(s.phase(kX1), SeatPhase::kRevoked);
}

// A member that finds nothing more to do gives up what it was given for a moment.
TEST(Stall, MemberThatGivesUpItsMomentHasDrained) {
  Revoked s;
  open_again(s);
  EXPECT_EQ(s.drained(kX1), "");
  EXPECT_EQ(s.drained(kX0), "grant 5@0 e2 exclusive");
  EXPECT_EQ(s.wait(2ms), "");
}

TEST(Stall, OfAGangWithASilentMemberLeavesNoGateOpen) {
  Revoked s;
  open_again(s);
  const std::string text = s.wait(600ms);  // both are stopped
  EXPECT_TRUE(says(text, "revoke 2@1 e2 gang")) << text;
  EXPECT_TRUE(says(text, "silent 1@0")) << text;
}

// It was silent, or came back with its claim when its GPU had been given away: it has work there, and gets no more in.
TEST(Stall, NoMemberIsOpenedAgainBesideAnotherHolder) {
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
  EXPECT_FALSE(says(text, "again"));
}

TEST(Stall, MemberThatRestedIsOpenedAgain) {
  TwoGangs s;
  s.request(kX0);
  s.drained(kX1);  // of its own accord
  s.wait(10ms);
  EXPECT_EQ(s.request(kS0), "revoke 1@0 e1 quantum");
  EXPECT_EQ(s.closed(kX0), "");
  EXPECT_EQ(s.wait(2ms), "grant 2@1 e2 exclusive again");
  EXPECT_EQ(s.drained(kX0), "revoke 2@1 e2 gang");
  s.closed(kX1);
  EXPECT_EQ(s.drained(kX1), "grant 5@0 e2 exclusive");
}

// Each moment lets another kernel of 50 ms in, of either rank. The pauses grow until they have drained in one.
TEST(Stall, LongKernelsDrainInALongPause) {
  Revoked s;
  Duration waited{};
  for (; s.phase(kS0) != SeatPhase::kHolding && waited < 2s; waited += 1ms) {
    for (const SeatId one : {kX0, kX1}) {
      const Duration past = s.now() - s.view(one).since;
      if (s.phase(one) == SeatPhase::kRevoked && past >= 1ms) s.closed(one);
      if (s.phase(one) == SeatPhase::kDraining && past >= (one == kX0 ? 50ms : 30ms)) s.drained(one);
    }
    s.wait(1ms);
  }
  EXPECT_GT(waited, 50ms);
  EXPECT_LT(waited, 1s);
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

// X's rank 1 drains each time, and rank 0 never does.
std::string stay_half_drained(Revoked& s, Duration duration) {
  std::string text;
  for (Duration past{}; past < duration; past += 1ms) {
    for (const SeatId one : {kX0, kX1}) {
      if (s.phase(one) != SeatPhase::kRevoked) continue;
      s.seen(one);
      s.closed(one);
      s.request(kX1);
    }
    s.seen(kX0);
    if (s.phase(kX1) == SeatPhase::kDraining) s.drained(kX1);
    text += s.wait(1ms) + "; ";
  }
  return text;
}

TEST(Stall, OfAGangEndsItsTurn) {
  Revoked s;
  EXPECT_FALSE(says(stay_half_drained(s, 9990ms), "grant 5@0"));
  const std::string text = stay_half_drained(s, 20ms);
  EXPECT_TRUE(says(text, "stall 1@0")) << text;
  EXPECT_TRUE(says(text, "waited 10000000000ns")) << text;
  EXPECT_TRUE(says(text, "grant 5@0")) << text;
}

// The one that is behind waits at its gate. It makes the missing submission in the gang's next turn.
TEST(Stall, OfAGangIsOverWithItsNextTurn) {
  Revoked s;
  stay_half_drained(s, 10s);
  EXPECT_EQ(s.phase(kS0), SeatPhase::kHolding);
  EXPECT_EQ(s.phase(kX0), SeatPhase::kWaiting);
  s.wait(10ms);
  EXPECT_TRUE(says(s.closed(kS0), "grant 1@0"));
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
