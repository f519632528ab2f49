// SPDX-License-Identifier: Apache-2.0
// What moving memory changes about turns. Method: the lease core by script.
#include <gtest/gtest.h>

#include "sched/script.h"

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

const SeatId kA = seat(1, 0);
const SeatId kB = seat(2, 0);
const SeatId kC = seat(3, 0);

std::string pages(Script& script, SeatId seat, bool pages) { return script.tell(MemoryNeed{seat, pages}); }

// Nothing of the predecessor's can be evicted before its work is done.
TEST(Memory, WhoMustPageDoesNotOverlapADrain) {
  Script script(1, {});
  script.tenant(1, {0});
  script.tenant(2, {0});
  script.request(kA);
  pages(script, kB, true);
  script.request(kB);
  script.wait(100ms);
  EXPECT_EQ(script.phase(kA), SeatPhase::kRevoked);
  EXPECT_EQ(script.closed(kA).find("grant"), std::string::npos);
  EXPECT_EQ(script.phase(kB), SeatPhase::kWaiting);
  EXPECT_NE(script.drained(kA).find("grant 2@0"), std::string::npos);
}

// Memory that came while it waited makes it start beside the drain after all.
TEST(Memory, PrefetchedMemoryOverlapsAgain) {
  Script script(1, {});
  script.tenant(1, {0});
  script.tenant(2, {0});
  script.request(kA);
  pages(script, kB, true);
  script.request(kB);
  script.wait(100ms);
  script.closed(kA);
  EXPECT_NE(pages(script, kB, false).find("grant 2@0"), std::string::npos);
}

TEST(Memory, TheQuantumBeginsWhenTheMemoryIsThere) {
  GpuSettings settings;
  settings.quantum = 100ms;
  Script script(1, settings);
  script.tenant(1, {0});
  script.tenant(2, {0});
  pages(script, kA, true);
  script.request(kA);
  script.request(kB);
  script.wait(5s);
  EXPECT_EQ(script.phase(kA), SeatPhase::kHolding);
  pages(script, kA, false);
  script.wait(99ms);
  EXPECT_EQ(script.phase(kA), SeatPhase::kHolding);
  script.wait(2ms);
  EXPECT_EQ(script.phase(kA), SeatPhase::kRevoked);
}

// A holder is granted its lease while the others' memory is still there; what it restores then takes from them makes
// giving way dear.
TEST(Memory, TheIdleHoldFollowsWhatTheNextOneLacks) {
  Script script(1, {});
  script.tenant(1, {0});
  script.tenant(2, {0});
  pages(script, kA, true);
  script.request(kA);
  script.wait(300ms);
  pages(script, kA, false);
  const std::string short_hold = script.request(kB);
  EXPECT_NE(short_hold.find("contention 1@0 yes"), std::string::npos) << short_hold;
  const std::string long_hold = pages(script, kB, true);
  EXPECT_NE(long_hold.find("contention 1@0 yes"), std::string::npos) << long_hold;
  EXPECT_NE(long_hold, short_hold);
  EXPECT_EQ(pages(script, kB, false), short_hold);
}

// Whoever says that it lacks memory again later does not get another quantum for it.
TEST(Memory, ItBeginsOnce) {
  GpuSettings settings;
  settings.quantum = 100ms;
  Script script(1, settings);
  script.tenant(1, {0});
  script.tenant(2, {0});
  script.request(kA);
  script.request(kB);
  pages(script, kA, true);
  script.wait(101ms);
  EXPECT_EQ(script.phase(kA), SeatPhase::kRevoked);
}

TEST(Memory, MaxRuntimeCountsFromTheGrant) {
  GpuSettings settings;
  settings.max_runtime = 2s;
  Script script(1, settings);
  script.tenant(1, {0});
  script.tenant(2, {0});
  pages(script, kA, true);
  script.request(kA);
  script.request(kB);
  script.wait(2001ms);
  EXPECT_EQ(script.phase(kA), SeatPhase::kRevoked);
}

// Long where much moves, next to nothing where nothing does.
TEST(Memory, QuantumAndIdleHoldFollowTheMeasuredCost) {
  Script script(1, {});
  script.tenant(1, {0});
  script.tenant(2, {0});
  SeatId holder = kA;
  SeatId other = kB;
  script.request(holder);
  const auto hand_over = [&](Duration paging) {
    if (paging > Duration::zero()) pages(script, other, true);
    script.request(other);
    for (int i = 0; i < 40'000 && script.phase(holder) == SeatPhase::kHolding; ++i) script.wait(1ms);
    ASSERT_EQ(script.phase(holder), SeatPhase::kRevoked);
    script.closed(holder);
    script.drained(holder);
    ASSERT_EQ(script.phase(other), SeatPhase::kHolding);
    if (paging > Duration::zero()) {
      script.wait(paging);
      pages(script, other, false);
    }
    std::swap(holder, other);
  };
  for (int i = 0; i < 4; ++i) hand_over(500ms);
  EXPECT_GT(script.gpu(0).quantum, 10s);
  EXPECT_GE(script.gpu(0).switch_cost, 450ms);
  pages(script, other, true);
  EXPECT_NE(script.request(other).find("contention " + std::to_string(holder.tenant.value) + "@0 yes 5"),
            std::string::npos);  // half a second and a little
  pages(script, other, false);
  for (int i = 0; i < 50; ++i) hand_over(0ms);
  EXPECT_LT(script.gpu(0).quantum, 20ms);  // what the drains cost, in steps of this script
}

TEST(Memory, TurnsAreTheOrderInWhichSeatsComeNearest) {
  Script script(1, {});
  for (std::uint64_t tenant = 1; tenant <= 5; ++tenant) script.tenant(tenant, {0});
  script.wait(1ms);
  script.request(seat(4, 0));
  script.drained(seat(4, 0));
  script.wait(1ms);
  script.request(kB);
  script.request(kC);
  script.wait(1ms);
  script.request(kA);
  std::vector<Turn> turns;
  script.core().turns(GpuIndex{0}, turns);
  ASSERT_EQ(turns.size(), 5u);
  EXPECT_EQ(turns[0].seat, kB);
  EXPECT_EQ(turns[0].kind, TurnKind::kHolding);
  EXPECT_NE(turns[0].ends, TimePoint::max());
  EXPECT_EQ(turns[1].kind, TurnKind::kNext);
  EXPECT_EQ(turns[2].kind, TurnKind::kWaiting);
  EXPECT_EQ(turns[3].seat, seat(4, 0));  // was here a moment ago
  EXPECT_EQ(turns[4].seat, seat(5, 0));
  script.wait(100ms);
  script.core().turns(GpuIndex{0}, turns);
  EXPECT_EQ(turns[2].seat, kB);
  EXPECT_EQ(turns[2].kind, TurnKind::kLeaving);
}

// The others may wait for it on their GPUs, and can be waited for only with its memory there.
TEST(Memory, AGangsMemberKeepsItsMemoryUntilAllHaveDrained) {
  Script script(2, {});
  script.tenant(1, {0, 1});
  script.tenant(2, {0, 1});
  const auto turn_of = [&](SeatId seat) {
    std::vector<Turn> turns;
    script.core().turns(seat.gpu, turns);
    for (const Turn& turn : turns) {
      if (turn.seat == seat) return turn.kind;
    }
    return TurnKind::kIdle;
  };
  for (const std::uint64_t tenant : {1u, 2u}) script.tell(GangJoined{TenantId{tenant}, "", 0});
  for (const std::uint64_t tenant : {1u, 2u}) {
    for (const std::uint32_t gpu : {0u, 1u}) script.request(seat(tenant, gpu));
  }
  script.wait(100ms);
  ASSERT_EQ(script.phase(kA), SeatPhase::kRevoked);
  script.closed(kA);
  script.drained(kA);
  EXPECT_EQ(turn_of(kA), TurnKind::kHolding) << "the other one has not drained";
  script.closed(seat(1, 1));
  EXPECT_EQ(turn_of(seat(1, 1)), TurnKind::kHolding);
  script.drained(seat(1, 1));
  EXPECT_EQ(turn_of(kB), TurnKind::kHolding);
  EXPECT_NE(turn_of(kA), TurnKind::kHolding);
  EXPECT_NE(turn_of(seat(1, 1)), TurnKind::kHolding);
}

}  // namespace
}  // namespace gpumux::sched
