// SPDX-License-Identifier: Apache-2.0
// Goal: a stall names its likely partners. If so configured, they are one unit from then on, until that turns out not
// to help. If so configured, a seat that never drains while others wait is killed. Method: small scripts.
#include <gtest/gtest.h>

#include "sched/testing/two_gangs.h"

namespace gpumux::sched {
namespace {

GpuSettings stalling() {
  GpuSettings settings = fifo();
  settings.overlap = false;
  settings.stall_timeout = 1s;
  settings.silence_limit = 1h;
  return settings;
}

// Two programs of one rank on each of two GPUs: 1 and 2 wait for each other, and 3 and 4. The core does not know that.
// Each has got one GPU, where its kernel spins: 1 on GPU 0, 4 on GPU 1.
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
  EXPECT_TRUE(says(text, "stall 1@0 e1 waited 1000000000ns partners 2@1;"));
  EXPECT_TRUE(says(text, "stall 4@1 e1 waited 1000000000ns partners 3@0;"));
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
  EXPECT_TRUE(says(text, "stall 1@0 e1 waited 1000000000ns partners 6@2 4@1;"));
}

TEST(Partners, AreNotThoseOfOtherUsers) {
  Script s(2, stalling());
  for (std::uint64_t id = 1; id <= 4; ++id) s.tenant(id, {id % 2 == 1 ? 0u : 1u}, 1, id == 2 ? 1000 : 2000);
  for (const SeatId one : {seat(1, 0), seat(4, 1), seat(2, 1), seat(3, 0)}) s.request(one);
  s.wait(10ms);
  for (const SeatId one : {seat(1, 0), seat(4, 1)}) s.closed(one);
  const std::string text = s.wait(1s);
  EXPECT_TRUE(says(text, "stall 1@0 e1 waited 1000000000ns;"));
  EXPECT_TRUE(says(text, "stall 4@1 e1 waited 1000000000ns partners 3@0;"));
}

// A seat that had a lease during the stall could have done what the kernel waits for.
TEST(Partners, AreNotThoseWhoTakeTurns) {
  Deadlock s(stalling());
  s.wait(500ms);
  s.drained(Deadlock::k4);  // and 2 has GPU 1
  s.request(Deadlock::k4);
  EXPECT_EQ(s.wait(100ms), "revoke 2@1 e2 quantum");
  s.drained(Deadlock::k2);
  s.request(Deadlock::k2);
  const std::string text = s.wait(1s);
  EXPECT_TRUE(says(text, "stall 1@0 e1 waited 1000000000ns;"));
  EXPECT_FALSE(says(text, "partners"));
}

// They wait because of the stall itself.
TEST(Partners, AreNotThoseWhoNeedTheStalledGpu) {
  Script s(2, stalling());
  s.tenant(1, {0});
  s.tenant(2, {0, 1});
  s.tell(GangJoined{TenantId{2}, "", 0});
  s.request(seat(1, 0));
  s.request(seat(2, 1));
  s.wait(10ms);
  s.closed(seat(1, 0));
  EXPECT_EQ(s.wait(1s), "stall 1@0 e1 waited 1000000000ns; grant 2@0 e2 exclusive; grant 2@1 e1 exclusive");
}

TEST(Partners, AreNotSuspended) {
  Deadlock s(stalling());
  s.tell(SeatsSuspended{{Deadlock::k2}});
  const std::string text = s.wait(1s);
  EXPECT_TRUE(says(text, "stall 1@0 e1 waited 1000000000ns;"));
}

// After a restart every unit waits for a while.
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
  EXPECT_TRUE(says(text, "stall 1@0"));
  EXPECT_FALSE(says(text, "partners"));
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
  EXPECT_FALSE(says(spin(s, kA, 600s), "kill"));
}

TEST(KillStalled, ComesAfterThatTimeAndOnce) {
  Spinning s(5s);
  const std::string before = spin(s, kA, 4900ms);
  EXPECT_TRUE(says(before, "stall 1@0"));
  EXPECT_FALSE(says(before, "kill")) << "a stall alone is no reason";
  EXPECT_EQ(count(spin(s, kA, 20s), "kill 1 stalled"), 1u);
}

TEST(KillStalled, ComesAfterTheStallAtTheEarliest) {
  GpuSettings settings = Spinning::with(1s);
  settings.stall_timeout = 5s;
  OneGpu s(settings);
  s.request(kA);
  s.request(kB);
  s.wait(10ms);
  EXPECT_FALSE(says(spin(s, kA, 4900ms), "kill"));
  const std::string text = spin(s, kA, 200ms);
  EXPECT_LT(text.find("stall 1@0"), text.find("kill 1 stalled")) << text;
}

// In its own turn a seat does not overrun.
TEST(KillStalled, SparesASeatInItsNextTurn) {
  Spinning s(5s);
  spin(s, kA, 1s);
  s.request(kA);
  s.wait(10ms);
  s.drained(kB);
  EXPECT_EQ(s.phase(kA), SeatPhase::kHolding);
  EXPECT_FALSE(says(spin(s, kA, 60s), "kill"));
  s.request(kB);
  EXPECT_TRUE(says(spin(s, kA, 2s), "kill 1 stalled")) << "it has not drained in between";
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
  EXPECT_FALSE(says(spin(s, kA, 4s), "kill")) << "it has drained in between";
  EXPECT_TRUE(says(spin(s, kA, 5s), "kill 1 stalled"));
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
  EXPECT_FALSE(says(spin(s, kA, 4s), "kill"));
}

TEST(KillStalled, IsOnlyForSomebodysSake) {
  Spinning s(5s);
  spin(s, kA, 4s);
  s.tell(TenantGone{TenantId{2}});
  EXPECT_FALSE(says(spin(s, kA, 60s), "kill"));
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
    s.drained(kX1);
  }
  EXPECT_EQ(count(text, "kill 1 stalled"), 1u) << text;
  EXPECT_FALSE(says(text, "kill 2"));
}

// The queue that suspends the seat goes on waiting, or gives it up.
TEST(KillStalled, IsNotForWhatIsSuspended) {
  Spinning s(5s);
  s.tell(SeatsSuspended{{kA}});
  EXPECT_FALSE(says(spin(s, kA, 60s), "kill"));
  s.tell(SeatsSuspended{{kA}, false});
  EXPECT_TRUE(says(spin(s, kA, 60s), "kill 1 stalled"));
}

}  // namespace
}  // namespace gpumux::sched
