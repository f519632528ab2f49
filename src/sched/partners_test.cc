// SPDX-License-Identifier: Apache-2.0
// Goal: a stall names who is likely to belong to it; where so configured they are one unit from then on, until that
// turns out not to help; and what never drains is killed for others' sake, where so configured. Method: small scripts.
#include <gtest/gtest.h>

#include "sched/two_gangs.h"

namespace gpumux::sched {
namespace {

GpuSettings stalling(OnStall on_stall = OnStall::kWait) {
  GpuSettings settings = fifo();
  settings.overlap = false;
  settings.stall_timeout = 1s;
  settings.stall_retry = 100ms;
  settings.silence_limit = 1h;
  settings.on_stall = on_stall;
  return settings;
}

// Two programs of one rank on each of two GPUs, nobody knows of which: 1 and 2 wait for each other, and 3 and 4. Each
// has got one GPU, where its kernel spins: 1 on GPU 0, 4 on GPU 1.
struct Deadlock : Script {
  explicit Deadlock(const GpuSettings& settings) : Script(2, settings) {
    for (std::uint64_t id = 1; id <= 4; ++id) tenant(id, {id % 2 == 1 ? 0u : 1u});
    for (const SeatId one : {k1, k4, k2, k3}) request(one);
    wait(10ms);
    for (const SeatId one : {k1, k4}) closed(one);
  }
  static inline const SeatId k1 = seat(1, 0), k2 = seat(2, 1), k3 = seat(3, 0), k4 = seat(4, 1);
};

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

// ---- likely partners ----------------------------------------------------------------------------

TEST(Partners, AreWhoWaitedForOtherGpusAllTheTime) {
  Deadlock s(stalling());
  const std::string text = s.wait(1s);
  EXPECT_NE(text.find("stall 1@0 e1 waited 1000000000ns undrained 1@0 partners 2@1;"), std::string::npos) << text;
  EXPECT_NE(text.find("stall 4@1 e1 waited 1000000000ns undrained 4@1 partners 3@0;"), std::string::npos) << text;
  EXPECT_EQ(text.find("taken_for_gang"), std::string::npos) << "not configured";
}

TEST(Partners, AreNamedLongestWaitFirst) {
  Script s(3, stalling());
  for (std::uint64_t id = 1; id <= 6; ++id) s.tenant(id, {id == 1 || id == 2 ? 0u : id < 5 ? 1u : 2u});
  for (const SeatId one : {seat(1, 0), seat(3, 1), seat(5, 2)}) s.request(one);
  s.request(seat(6, 2));
  s.wait(1ms);
  s.request(seat(4, 1));
  s.request(seat(2, 0));
  s.wait(10ms);
  for (const SeatId one : {seat(1, 0), seat(3, 1), seat(5, 2)}) s.closed(one);
  const std::string text = s.wait(1s);
  EXPECT_NE(text.find("stall 1@0 e1 waited 1000000000ns undrained 1@0 partners 6@2 4@1;"), std::string::npos) << text;
}

TEST(Partners, AreNotThoseOfOtherUsers) {
  Script s(2, stalling());
  for (std::uint64_t id = 1; id <= 4; ++id) s.tenant(id, {id % 2 == 1 ? 0u : 1u}, 1, id == 2 ? 1000 : 2000);
  for (const SeatId one : {seat(1, 0), seat(4, 1), seat(2, 1), seat(3, 0)}) s.request(one);
  s.wait(10ms);
  for (const SeatId one : {seat(1, 0), seat(4, 1)}) s.closed(one);
  const std::string text = s.wait(1s);
  EXPECT_NE(text.find("undrained 1@0;"), std::string::npos) << text;
  EXPECT_NE(text.find("undrained 4@1 partners 3@0;"), std::string::npos) << text;
}

// Who had a lease meanwhile could have done what the kernel waits for.
TEST(Partners, AreNotThoseWhoTakeTurns) {
  Deadlock s(stalling(OnStall::kGang));
  s.wait(500ms);
  s.drained(Deadlock::k4);  // and 2 has GPU 1
  s.request(Deadlock::k4);
  EXPECT_EQ(s.wait(100ms), "revoke 2@1 e2 quantum");
  s.drained(Deadlock::k2);
  s.request(Deadlock::k2);
  const std::string text = s.wait(1s);
  EXPECT_NE(text.find("undrained 1@0;"), std::string::npos) << text;
  EXPECT_EQ(text.find("partners"), std::string::npos) << text;
}

// They wait because of the stall itself.
TEST(Partners, AreNotThoseWhoNeedTheStalledGpu) {
  Script s(2, stalling(OnStall::kGang));
  s.tenant(1, {0});
  s.tenant(2, {0, 1});
  s.tell(GangJoined{TenantId{2}, "", 0});
  s.request(seat(1, 0));
  s.request(seat(2, 1));
  s.wait(10ms);
  s.closed(seat(1, 0));
  EXPECT_EQ(s.wait(1s),
            "stall 1@0 e1 waited 1000000000ns undrained 1@0; reopen 1@0 e2 exclusive; contention 1@0 yes 200000ns");
}

TEST(Partners, AreNotSuspended) {
  Deadlock s(stalling(OnStall::kGang));
  s.tell(SeatsSuspended{{Deadlock::k2}});
  const std::string text = s.wait(1s);
  EXPECT_NE(text.find("undrained 1@0;"), std::string::npos) << text;
}

// After a restart everybody waits for a while.
TEST(Partners, AreNotKnownWhileGrantsAreHeld) {
  GpuSettings settings = stalling();
  settings.stall_timeout = 100ms;
  Script s(2, settings);
  s.tell(GrantsHeld{s.now() + 1s});
  s.tenant(2, {1});
  s.request(seat(2, 1));
  s.tenant(1, {0});
  s.tell(SeatClaimed{seat(1, 0), Claim::kDraining, LeaseKind::kExclusive, LeaseEpoch{5}});
  const std::string text = s.wait(200ms);
  EXPECT_NE(text.find("stall 1@0"), std::string::npos) << text;
  EXPECT_EQ(text.find("partners"), std::string::npos) << text;
}

// ---- taken for one gang -------------------------------------------------------------------------

// Each pair becomes one unit, and both get all that they need, one after the other.
TEST(Guess, EndsADeadlockOfProgramsThatNobodyKnows) {
  Deadlock s(stalling(OnStall::kGang));
  const std::string text = s.wait(1s);
  EXPECT_NE(text.find("taken_for_gang 1@0 2@1"), std::string::npos) << text;
  EXPECT_NE(text.find("taken_for_gang 4@1 3@0"), std::string::npos) << text;
  EXPECT_NE(text.find("reopen 4@1 e2 exclusive; grant 3@0 e2 exclusive"), std::string::npos)
      << "beside the other one's kernel, whose gate is closed: " << text;
  EXPECT_EQ(s.view(Deadlock::k1).gang, "taken for one");
  // The kernels of the pair end, and the other pair follows.
  EXPECT_EQ(s.wait(200ms), "revoke 3@0 e2 quantum; revoke 4@1 e2 quantum");
  s.drained(Deadlock::k3);
  s.request(Deadlock::k3);
  EXPECT_EQ(s.drained(Deadlock::k4).substr(0, 51), "reopen 1@0 e3 exclusive; grant 2@1 e3 exclusive con");
  // From now on they are granted and revoked together.
  EXPECT_EQ(s.wait(200ms), "revoke 1@0 e3 quantum; revoke 2@1 e3 quantum");
  s.drained(Deadlock::k2);
  EXPECT_EQ(s.drained(Deadlock::k1), "grant 3@0 e4 exclusive; grant 4@1 e4 exclusive");
}

// What has never been said to belong together is not brought together on one GPU.
TEST(Guess, TakesOneOfEachGpu) {
  Script s(2, stalling(OnStall::kGang));
  for (std::uint64_t id = 1; id <= 5; ++id) s.tenant(id, {id <= 2 ? 0u : 1u});
  for (const SeatId one : {seat(1, 0), seat(3, 1), seat(5, 1), seat(4, 1), seat(2, 0)}) {
    s.request(one);
    s.wait(1ms);
  }
  s.wait(10ms);
  s.closed(seat(1, 0));
  s.closed(seat(3, 1));
  const std::string text = s.wait(1s);
  EXPECT_NE(text.find("partners 5@1 4@1; taken_for_gang 1@0 5@1;"), std::string::npos) << text;
}

// The one that was taken first has had its lease meanwhile: it does not count as one who has waited.
TEST(Guess, ThatDoesNotHelpIsFollowedByAnother) {
  Script s(2, stalling(OnStall::kGang));
  s.tenant(1, {0});
  s.tenant(2, {0}, 1, 2000);
  s.tenant(3, {1}, 1, 2000);
  for (const std::uint64_t id : {4u, 5u}) s.tenant(id, {1});
  const std::vector<SeatId> others{seat(2, 0), seat(3, 1), seat(4, 1), seat(5, 1)};
  s.request(seat(1, 0));
  s.request(seat(3, 1));
  for (const SeatId one : others) s.request(one);
  s.wait(10ms);
  for (const SeatId one : {seat(1, 0), seat(3, 1)}) s.closed(one);
  std::string text = s.wait(1s);
  EXPECT_NE(text.find("partners 4@1 5@1; taken_for_gang 1@0 4@1;"), std::string::npos) << text;
  // Now all but 1 drain: what it waits for is not 4's.
  text.clear();
  for (int i = 0; i < 100 && text.find("taken_for_gang") == std::string::npos; ++i) {
    text += s.wait(50ms) + "\n";
    if (s.phase(seat(1, 0)) == SeatPhase::kRevoked) s.closed(seat(1, 0));
    for (const SeatId one : others) {
      if (s.phase(one) != SeatPhase::kRevoked && s.phase(one) != SeatPhase::kDraining) continue;
      s.stepped(one);
      s.closed(one);
      s.drained(one);
      s.request(one);
    }
  }
  EXPECT_NE(text.find("revoke 1@0 e3 quantum; revoke 4@1 e3 quantum"), std::string::npos)
      << "it had its turn: " << text;
  EXPECT_NE(text.find("partners 5@1; taken_for_gang 1@0 5@1"), std::string::npos) << text;
}

// Whoever waits as a part of a guess, which needs the stalled GPU too, is a candidate all the same.
TEST(Guess, IsTakenApartWhereItMayKeepWhoeverIsMissing) {
  Deadlock s(stalling(OnStall::kGang));
  s.wait(1200ms);
  for (const SeatId one : {Deadlock::k3, Deadlock::k4}) {
    s.drained(one);
    s.request(one);
  }
  s.tell(TenantGone{TenantId{2}});
  EXPECT_EQ(s.phase(Deadlock::k1), SeatPhase::kHolding);
  EXPECT_EQ(s.view(Deadlock::k4).gang, "taken for one");
  EXPECT_EQ(s.phase(Deadlock::k4), SeatPhase::kWaiting);
  for (int i = 0; i < 100 && s.phase(Deadlock::k1) == SeatPhase::kHolding; ++i) s.wait(10ms);
  s.closed(Deadlock::k1);
  const std::string text = s.wait(1s);
  EXPECT_NE(text.find("undrained 1@0 partners 4@1; taken_for_gang 1@0 4@1;"), std::string::npos) << text;
}

TEST(Guess, IsOnlyMadeWhereAllGpusAllowIt) {
  GpuSettings settings = stalling(OnStall::kGang);
  Deadlock s(settings);
  settings.on_stall = OnStall::kWait;
  s.settings(GpuIndex{1}, settings);
  EXPECT_EQ(s.wait(1s).find("taken_for_gang"), std::string::npos);
}

// It would suspend the others with it.
TEST(Guess, IsNotMadeForWhatIsSuspended) {
  Deadlock s(stalling(OnStall::kGang));
  s.tell(SeatsSuspended{{Deadlock::k1}});
  const std::string text = s.wait(1s);
  EXPECT_NE(text.find("undrained 1@0 partners 2@1;"), std::string::npos) << text;
  EXPECT_EQ(text.find("taken_for_gang 1@0"), std::string::npos) << text;
}

// A pair that holds both GPUs.
struct Guessed : Deadlock {
  Guessed() : Deadlock(stalling(OnStall::kGang)) {
    wait(1s);
    EXPECT_EQ(phase(k3), SeatPhase::kHolding);
    EXPECT_EQ(phase(k4), SeatPhase::kHolding);
    EXPECT_EQ(view(k3).gang, "taken for one");
  }
  bool is_apart() const { return view(k3).gang.empty() && view(k4).gang.empty(); }
};

TEST(Guess, EndsWhenAMemberLeaves) {
  Guessed s;
  s.tell(TenantGone{TenantId{3}});
  EXPECT_TRUE(s.is_apart());
  EXPECT_EQ(s.phase(Deadlock::k4), SeatPhase::kHolding);
}

TEST(Guess, EndsWhenAMemberSaysWhereItBelongs) {
  Guessed s;
  s.tell(GangJoined{TenantId{3}, "x", 2});
  EXPECT_EQ(s.view(Deadlock::k3).gang, "x (1 of 2)");
  EXPECT_EQ(s.view(Deadlock::k4).gang, "");
  EXPECT_EQ(s.phase(Deadlock::k3), SeatPhase::kHolding) << "it keeps what it has";
}

// Those who may have nothing to do with it go on.
TEST(Guess, EndsWhenAMemberIsSuspended) {
  Guessed s;
  s.wait(50ms);
  s.tell(SeatsSuspended{{Deadlock::k3}});
  EXPECT_TRUE(s.is_apart());
  EXPECT_EQ(s.phase(Deadlock::k4), SeatPhase::kHolding);
  EXPECT_NE(s.wait(100ms).find("revoke 3@0 e2 suspended"), std::string::npos);
}

TEST(Guess, EndsWhenAMemberFallsSilent) {
  Guessed s;
  GpuSettings settings = stalling(OnStall::kGang);
  settings.silence_limit = 500ms;
  s.wait(200ms);
  s.settings(GpuIndex{0}, settings);
  const std::string text = s.wait(600ms);
  EXPECT_NE(text.find("silent 3@0"), std::string::npos) << text;
  EXPECT_TRUE(s.is_apart());
  EXPECT_EQ(s.phase(Deadlock::k4), SeatPhase::kRevoked) << "it has not been passed over with it";
}

TEST(Guess, EndsWhenItIsNoLongerConfigured) {
  Guessed s;
  s.settings(GpuIndex{0}, stalling());
  EXPECT_TRUE(s.is_apart());
}

// A declared gang comes out of a guess as it went in.
TEST(Guess, LeavesGangsAsTheyWere) {
  Script s(3, stalling(OnStall::kGang));
  s.tenant(1, {0});
  s.tenant(2, {1});
  s.tenant(3, {2});
  for (const std::uint64_t id : {2u, 3u}) s.tell(GangJoined{TenantId{id}, "x", 2});
  for (std::uint32_t id = 4; id <= 6; ++id) s.tenant(id, {id - 4}, 1, 1000 + id);
  for (const SeatId one : {seat(1, 0), seat(5, 1), seat(6, 2), seat(2, 1), seat(4, 0)}) s.request(one);
  s.wait(10ms);
  s.closed(seat(1, 0));
  std::string text = s.wait(1s);
  EXPECT_NE(text.find("taken_for_gang 1@0 2@1 3@2"), std::string::npos) << text;
  EXPECT_EQ(s.view(seat(3, 2)).gang, "taken for one");
  s.tell(TenantGone{TenantId{1}});
  EXPECT_EQ(s.view(seat(2, 1)).gang, "x (2 of 2)");
  EXPECT_EQ(s.view(seat(3, 2)).gang, "x (2 of 2)");
  s.drained(seat(5, 1));
  text = s.drained(seat(6, 2));
  EXPECT_NE(text.find("grant 2@1 e3 exclusive; grant 3@2 e3 exclusive"), std::string::npos) << text;
}

// ---- what never drains --------------------------------------------------------------------------

// Lets it answer and never drain.
std::string spin(Script& s, SeatId stuck, Duration duration) {
  std::string text;
  for (const TimePoint end = s.now() + duration; s.now() < end;) {
    text += s.wait(100ms) + "; ";
    s.closed(stuck);
  }
  return text;
}

struct Spinning : OneGpu {
  explicit Spinning(Limit<Duration> kill_stalled_after) : OneGpu(with(kill_stalled_after)) {
    request(kA);
    request(kB);
    wait(10ms);
  }
  static GpuSettings with(Limit<Duration> kill_stalled_after) {
    GpuSettings settings = stalling();
    settings.kill_stalled_after = kill_stalled_after;
    return settings;
  }
};

TEST(KillStalled, IsNotTheDefault) {
  Spinning s(kUnlimited);
  EXPECT_EQ(spin(s, kA, 600s).find("kill"), std::string::npos);
}

TEST(KillStalled, ComesAtTheStallAfterThatTimeAndOnce) {
  Spinning s(5s);
  EXPECT_EQ(spin(s, kA, 4900ms).find("kill"), std::string::npos) << "stalls alone are no reason";
  const std::string text = spin(s, kA, 20s);
  EXPECT_EQ(count(text, "kill 1 stalled"), 1u) << text;
  EXPECT_LT(text.find("stall 1@0"), text.find("kill 1 stalled")) << text;
  EXPECT_EQ(s.tell(TenantGone{TenantId{1}}).substr(0, 9), "grant 2@0");
}

TEST(KillStalled, CountsFromTheLastDrain) {
  Spinning s(5s);
  spin(s, kA, 4s);
  for (int i = 0; i < 100 && s.phase(kA) == SeatPhase::kHolding; ++i) s.wait(100ms);
  s.closed(kA);
  s.drained(kA);
  s.request(kA);
  s.wait(10ms);
  s.drained(kB);
  s.request(kB);
  s.wait(10ms);
  EXPECT_EQ(spin(s, kA, 4s).find("kill"), std::string::npos) << "it has drained in between";
  EXPECT_NE(spin(s, kA, 5s).find("kill 1 stalled"), std::string::npos);
}

// It gives its lease up by itself between two revocations: that is a drain, too.
TEST(KillStalled, CountsFromTheLastRelease) {
  Spinning s(5s);
  spin(s, kA, 4s);
  for (int i = 0; i < 100 && s.phase(kA) != SeatPhase::kHolding; ++i) {
    s.closed(kA);
    s.wait(10ms);
  }
  s.drained(kA);
  s.request(kA);
  s.drained(kB);
  s.request(kB);
  EXPECT_EQ(spin(s, kA, 4s).find("kill"), std::string::npos);
}

TEST(KillStalled, IsOnlyForSomebodysSake) {
  Spinning s(5s);
  spin(s, kA, 4s);
  s.tell(TenantGone{TenantId{2}});
  EXPECT_EQ(spin(s, kA, 60s).find("kill"), std::string::npos);
}

TEST(KillStalled, SparesMembersThatHaveDrained) {
  GpuSettings settings = Spinning::with(3s);
  TwoGangs s(settings);
  s.request(kX0);
  s.request(kS0);
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += s.wait(100ms) + "; ";
    s.closed(kX0);
    s.seen(kX1);
    s.closed(kX1);
    s.stepped(kX1);
    s.drained(kX1);
  }
  EXPECT_EQ(count(text, "kill 1 stalled"), 1u) << text;
  EXPECT_EQ(text.find("kill 2"), std::string::npos) << text;
}

// Whoever suspends it goes on waiting, or gives it up.
TEST(KillStalled, IsNotForWhatIsSuspended) {
  Spinning s(5s);
  s.tell(SeatsSuspended{{kA}});
  EXPECT_EQ(spin(s, kA, 60s).find("kill"), std::string::npos);
  s.tell(SeatsResumed{{kA}});
  EXPECT_NE(spin(s, kA, 60s).find("kill 1 stalled"), std::string::npos);
}

}  // namespace
}  // namespace gpumux::sched
