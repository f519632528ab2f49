// SPDX-License-Identifier: Apache-2.0
// How moving memory changes turns. Method: the lease core by script.
#include <gtest/gtest.h>

#include <algorithm>

#include "sched/testing/one_gpu.h"

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

std::string pages(Script& script, SeatId seat, bool pages) { return script.tell(MemoryNeed{seat, pages}); }

// Nothing of the predecessor's can be evicted before its work is done.
TEST(Memory, WhoMustPageDoesNotOverlapADrain) {
  OneGpu script;
  script.request(kA);
  pages(script, kB, true);
  script.request(kB);
  script.wait(100ms);
  EXPECT_EQ(script.phase(kA), SeatPhase::kRevoked);
  EXPECT_FALSE(says(script.closed(kA), "grant"));
  EXPECT_EQ(script.phase(kB), SeatPhase::kWaiting);
  EXPECT_TRUE(says(script.drained(kA), "grant 2@0"));
}

// Memory that came while it waited lets it start during the drain after all.
TEST(Memory, PrefetchedMemoryOverlapsAgain) {
  OneGpu script;
  script.request(kA);
  pages(script, kB, true);
  script.request(kB);
  script.wait(100ms);
  script.closed(kA);
  EXPECT_TRUE(says(pages(script, kB, false), "grant 2@0"));
}

TEST(Memory, TheQuantumBeginsWhenTheMemoryIsThere) {
  GpuSettings settings = plain();
  settings.quantum = 100ms;
  OneGpu script(settings);
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

// Others give up what it asks for: that is no time of its own, but what it had of it before is.
TEST(Memory, TheQuantumStandsStillWhileRoomIsAwaited) {
  GpuSettings settings = plain();
  settings.quantum = 100ms;
  settings.max_runtime = 10s;
  OneGpu script(settings);
  const auto awaits = [&script](SeatId seat, bool room) {
    return script.tell(MemoryExpected{seat, room ? MemoryOutlook::kComes : MemoryOutlook::kUnknown});
  };
  script.request(kA);
  script.request(kB);
  script.wait(60ms);
  awaits(kA, true);
  script.wait(5s);
  EXPECT_EQ(script.phase(kA), SeatPhase::kHolding);
  awaits(kA, false);
  script.wait(30ms);
  awaits(kA, true);
  script.wait(1s);
  awaits(kA, false);
  script.wait(9ms);
  EXPECT_EQ(script.phase(kA), SeatPhase::kHolding);
  script.wait(2ms);
  EXPECT_EQ(script.phase(kA), SeatPhase::kRevoked);
  // Not for ever.
  script.closed(kA);
  script.drained(kA);
  EXPECT_EQ(script.phase(kB), SeatPhase::kHolding);
  awaits(kB, true);
  script.request(kA);
  script.wait(10s - 1ms);
  EXPECT_EQ(script.phase(kB), SeatPhase::kHolding);
  script.wait(2ms);
  EXPECT_EQ(script.phase(kB), SeatPhase::kRevoked);
}

// A holder is granted its lease while the others' memory is still there; what it restores then takes from them makes
// giving way dear.
TEST(Memory, TheIdleHoldFollowsWhatTheNextOneLacks) {
  OneGpu script(automatic_hold());
  pages(script, kA, true);
  script.request(kA);
  script.wait(300ms);
  pages(script, kA, false);
  const std::string short_hold = script.request(kB);
  EXPECT_TRUE(says(short_hold, "contention 1@0 yes"));
  const std::string long_hold = pages(script, kB, true);
  EXPECT_TRUE(says(long_hold, "contention 1@0 yes"));
  EXPECT_NE(long_hold, short_hold);
  EXPECT_EQ(pages(script, kB, false), short_hold);
  // If memory came for a turn that ends early, its cost is that of a whole turn.
  script.tell(MemoryNeed{kB, true});
  script.tell(MemoryExpected{kB, MemoryOutlook::kComes, std::uint64_t{32} << 30});
  EXPECT_EQ(pages(script, kB, false), long_hold);
}

// A seat that says that it lacks memory again later does not get another quantum for it.
TEST(Memory, ItBeginsOnce) {
  GpuSettings settings = plain();
  settings.quantum = 100ms;
  OneGpu script(settings);
  script.request(kA);
  script.request(kB);
  pages(script, kA, true);
  script.wait(101ms);
  EXPECT_EQ(script.phase(kA), SeatPhase::kRevoked);
}

TEST(Memory, MaxRuntimeCountsFromTheGrant) {
  GpuSettings settings = plain();
  settings.max_runtime = 2s;
  OneGpu script(settings);
  pages(script, kA, true);
  script.request(kA);
  script.request(kB);
  script.wait(2001ms);
  EXPECT_EQ(script.phase(kA), SeatPhase::kRevoked);
}

// Long where much moves, next to nothing where nothing does.
TEST(Memory, QuantumAndIdleHoldFollowTheMeasuredCost) {
  OneGpu script(automatic_hold());
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
  for (int i = 0; i < 12; ++i) hand_over(500ms);
  EXPECT_GT(script.gpu(0).quantum, 10s);
  EXPECT_GE(script.gpu(0).switch_cost, 450ms);
  pages(script, other, true);
  const auto hold_of = [&](const std::string& hold) {
    return "contention " + std::to_string(holder.tenant.value) + "@0 yes " + hold;
  };
  EXPECT_TRUE(says(script.request(other), hold_of(std::to_string(script.gpu(0).switch_cost.count()) + "ns")));
  pages(script, other, false);
  for (int i = 0; i < 6; ++i) hand_over(3s);
  EXPECT_GE(script.gpu(0).switch_cost, 2s);
  pages(script, other, true);
  EXPECT_TRUE(says(script.request(other), hold_of("1000000000ns"))) << "no idle hold is longer";
  pages(script, other, false);
  for (int i = 0; i < 50; ++i) hand_over(0ms);
  EXPECT_EQ(script.gpu(0).quantum, 40ms);  // the least
}

// After a restart the first memory to move waits for the mover to start.
TEST(Memory, TheFirstSwitchThatMovesSomeAfterARestartIsNoMeasure) {
  OneGpu script(automatic_hold(), 0);
  script.tell(GrantsHeld{script.now() + 1s});
  script.tenant(1, {0});
  script.tenant(2, {0});
  script.tell(SeatClaimed{kA, Claim::kHolding, LeaseKind::kExclusive, LeaseEpoch{7}});
  pages(script, kB, true);
  script.tell(SeatClaimed{kB, Claim::kWaiting, LeaseKind::kExclusive, LeaseEpoch{}});
  script.wait(1s);
  const auto hand_over = [&script](SeatId from, SeatId to, Duration paging) {
    script.closed(from);
    script.drained(from);
    ASSERT_EQ(script.phase(to), SeatPhase::kHolding);
    script.wait(paging);
    pages(script, to, false);
  };
  hand_over(kA, kB, 1900ms);
  EXPECT_EQ(script.gpu(0).quantum, 40ms);
  pages(script, kA, true);
  script.request(kA);
  script.wait(40ms);
  hand_over(kB, kA, 80ms);
  EXPECT_EQ(script.gpu(0).switch_cost, 80ms / 4);
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

// Each GPU's next seat waits for the drain there, and a gang of both waits behind them. No unit can start, and looking
// from one GPU at the other one changes nothing.
TEST(Memory, AGangBehindSeatsThatWaitForDrainsComesToRest) {
  Script script(2, fifo());
  const SeatId holders[] = {seat(1, 0), seat(2, 1)}, waiters[] = {seat(3, 0), seat(4, 1)};
  for (std::uint64_t tenant = 1; tenant <= 4; ++tenant) script.tenant(tenant, {tenant % 2 == 1 ? 0u : 1u});
  script.tenant(5, {0, 1});
  script.tell(GangJoined{TenantId{5}, "", 0});
  for (const SeatId one : holders) script.request(one);
  for (const SeatId one : waiters) {
    pages(script, one, true);
    script.request(one);
  }
  script.request(seat(5, 0));
  script.wait(10ms);
  for (const SeatId one : holders) script.closed(one);
  for (const SeatId one : waiters) EXPECT_EQ(script.phase(one), SeatPhase::kWaiting);
  for (const SeatId one : holders) script.drained(one);
  for (const SeatId one : waiters) EXPECT_EQ(script.phase(one), SeatPhase::kHolding);
}

// A gang is next on a free GPU and waits for a drain on another one. That GPU then goes to another unit. The unit
// behind the gang on the free GPU must not wait any longer.
TEST(Memory, WhoIsBehindAGangThatDoesNotGetItsOtherGpuStarts) {
  GpuSettings settings = plain();
  settings.quantum = 10ms;
  settings.gang_ageing = 1ms;
  Script script(3, settings);
  script.tenant(1, {0});
  for (const std::uint64_t gang : {2u, 3u, 5u}) {
    script.tenant(gang, gang == 3 ? std::vector<std::uint32_t>{0, 1} : std::vector<std::uint32_t>{0, 2});
    script.tell(GangJoined{TenantId{gang}, "", 0});
  }
  script.tenant(4, {1});
  for (const std::uint64_t gang : {2u, 3u}) pages(script, seat(gang, 0), true);
  // Gang 5 has waited longest, so its two GPUs are kept for it. It has also used them most, so it goes last.
  script.request(seat(5, 0));
  script.wait(1s);
  for (const std::uint32_t gpu : {0u, 2u}) script.drained(seat(5, gpu));
  script.request(seat(1, 0));
  script.request(seat(5, 0));
  script.wait(1ms);
  script.request(seat(2, 0));
  script.request(seat(3, 0));
  script.wait(10ms);
  ASSERT_EQ(script.phase(seat(1, 0)), SeatPhase::kRevoked);
  script.closed(seat(1, 0));
  EXPECT_EQ(script.request(seat(4, 1)), "");  // behind the gang of tenant 3
  script.drained(seat(1, 0));
  EXPECT_EQ(script.phase(seat(2, 0)), SeatPhase::kHolding);
  EXPECT_EQ(script.phase(seat(4, 1)), SeatPhase::kHolding);
}

// The seat holds its GPU, is revoked for a tenant that goes away again, and drains.
void leave_draining(Script& script, SeatId one) {
  const SeatId other = seat(one.tenant.value + 10, one.gpu.value);
  script.request(one);
  script.tenant(other.tenant.value, {one.gpu.value});
  script.request(other);
  script.wait(10ms);
  ASSERT_EQ(script.phase(one), SeatPhase::kRevoked);
  script.tell(TenantGone{other.tenant});
  script.closed(one);
}

// On each of its two GPUs a gang gives way to a single seat that is ahead of it on the other one. Neither of those
// starts: each is behind a unit that waits for a drain elsewhere. The two GPUs must not look at each other for ever.
TEST(Memory, AGangThatGivesWayOnTwoGpusToSeatsThatDoNotStartComesToRest) {
  Script script(4, fifo());
  const SeatId drains[] = {seat(1, 2), seat(2, 3)}, singles[] = {seat(5, 0), seat(6, 1)};
  const SeatId ahead[] = {seat(3, 0), seat(4, 1)};
  for (const SeatId one : {drains[0], drains[1], singles[0], singles[1]})
    script.tenant(one.tenant.value, {one.gpu.value});
  const std::vector<std::uint32_t> gpus[] = {{0, 2}, {1, 3}, {0, 1}};
  for (std::size_t i = 0; i < 3; ++i) {
    const TenantId gang = i < 2 ? ahead[i].tenant : TenantId{7};
    script.tenant(gang.value, gpus[i]);
    script.tell(GangJoined{gang, "", 0});
  }
  for (const SeatId one : drains) leave_draining(script, one);
  for (const SeatId one : ahead) {
    pages(script, one, true);
    script.request(one);
  }
  for (const SeatId one : singles) script.request(one);
  script.request(seat(7, 0));
  for (const SeatId one : {ahead[0], ahead[1], singles[0], singles[1], seat(7, 0)})
    EXPECT_EQ(script.phase(one), SeatPhase::kWaiting);
  for (const SeatId one : drains) script.drained(one);
  for (const SeatId one : ahead) EXPECT_EQ(script.phase(one), SeatPhase::kHolding);
  for (const SeatId one : ahead) {
    for (const std::uint32_t gpu : {one.gpu.value, one.gpu.value + 2}) script.drained(seat(one.tenant.value, gpu));
  }
  for (const SeatId one : singles) EXPECT_EQ(script.phase(one), SeatPhase::kHolding);
  for (const SeatId one : singles) script.drained(one);
  EXPECT_EQ(script.phase(seat(7, 0)), SeatPhase::kHolding);
}

// A unit behind a gang that waits for a drain elsewhere starts when another gang's reservation keeps that gang off. It
// starts on a GPU that nothing is reserved on, too.
TEST(Memory, WhoIsBehindAGangThatIsKeptOffStarts) {
  GpuSettings settings = fifo();
  settings.gang_ageing = 50ms;
  Script script(3, settings);
  script.tenant(1, {1});
  leave_draining(script, seat(1, 1));
  script.tenant(2, {0, 1});
  script.tenant(3, {0, 1, 2});
  script.tenant(4, {2});
  for (const std::uint64_t gang : {2u, 3u}) {
    script.tell(GangJoined{TenantId{gang}, "", 0});
    pages(script, seat(gang, 0), true);
    script.request(seat(gang, 0));
    script.wait(1ms);
  }
  EXPECT_EQ(script.request(seat(4, 2)), "") << "behind the gang of tenant 3";
  EXPECT_TRUE(says(script.wait(48ms), "grant 4@2")) << "that of tenant 2 has its GPUs kept free";
  script.drained(seat(1, 1));
  EXPECT_EQ(script.phase(seat(2, 0)), SeatPhase::kHolding);
}

// The same, but it is kept off because the gang that has the reservation comes to stand before it.
TEST(Memory, WhoIsBehindAGangThatIsOutrankedByAReservationStarts) {
  GpuSettings settings = plain();
  settings.quantum = 10ms;
  settings.gang_ageing = 1ms;
  Script script(3, settings);
  script.tenant(2, {0, 1});
  script.tenant(3, {0, 1, 2});
  for (const std::uint64_t gang : {2u, 3u}) script.tell(GangJoined{TenantId{gang}, "", 0});
  // It has used its GPUs most.
  script.request(seat(2, 0));
  script.wait(1s);
  for (const std::uint32_t gpu : {0u, 1u}) script.drained(seat(2, gpu));
  script.tenant(1, {1});
  script.tenant(4, {2});
  leave_draining(script, seat(1, 1));
  for (const std::uint64_t gang : {2u, 3u}) {
    pages(script, seat(gang, 0), true);
    script.request(seat(gang, 0));
    script.wait(2ms);
  }
  EXPECT_EQ(script.request(seat(4, 2)), "")
      << "behind the gang of tenant 3, which is ahead of the one with a reservation";
  EXPECT_TRUE(says(script.tell(StandingChanged{seat(2, 0), 1}), "grant 4@2"));
}

// It may have to be let through, and cannot be without its memory.
TEST(Memory, AMemberWhoseGangHasNotDrainedIsHeldBack) {
  Script script(2, fifo());
  script.tenant(1, {0, 1});
  script.tenant(2, {0});
  script.tell(GangJoined{TenantId{1}, "", 0});
  script.request(seat(1, 0));
  script.request(seat(2, 0));
  script.wait(10ms);
  const auto kind_of = [&script](SeatId seat) {
    std::vector<Turn> turns;
    script.core().turns(seat.gpu, turns);
    return std::find_if(turns.begin(), turns.end(), [seat](const Turn& turn) { return turn.seat == seat; })->kind;
  };
  for (const SeatId one : {seat(1, 0), seat(1, 1)}) script.closed(one);
  script.drained(seat(1, 0));
  EXPECT_EQ(kind_of(seat(1, 0)), TurnKind::kHeldBack);
  EXPECT_EQ(kind_of(seat(1, 1)), TurnKind::kHeldBack);
  script.drained(seat(1, 1));
  EXPECT_EQ(kind_of(seat(1, 0)), TurnKind::kIdle);
}

// Three seats of one GPU: A lacks memory, B and C do not.
struct Lacking : OneGpu {
  explicit Lacking(const GpuSettings& settings = fifo()) : OneGpu(settings, 3) { pages(*this, kA, true); }
  std::string expect(SeatId seat, MemoryOutlook outlook) { return tell(MemoryExpected{seat, outlook}); }
  void give_up(SeatId seat) {
    closed(seat);
    drained(seat);
    request(seat);
  }
};

TEST(Obstacle, WhoCannotHaveItsMemoryMakesWayForWhoCanRun) {
  Lacking s;
  s.request(kA);
  s.request(kB);
  EXPECT_EQ(s.wait(5s), "");
  EXPECT_TRUE(says(s.expect(kA, MemoryOutlook::kNothingMoves), "revoke 1@0 e1 memory"));
  s.give_up(kA);
  EXPECT_EQ(s.phase(kB), SeatPhase::kHolding);
  EXPECT_TRUE(says(s.view(kA).waits_for, "of which nothing moves"));
  EXPECT_EQ(s.wait(1min), "") << "nobody goes for who could not run";
  EXPECT_EQ(s.expect(kA, MemoryOutlook::kUnknown).find("revoke 2@0 e2"), 0u);
  s.closed(kB);
  s.drained(kB);
  EXPECT_EQ(s.phase(kA), SeatPhase::kHolding);
}

// Its useless turn counts neither as one nor as time.
TEST(Obstacle, ItKeepsItsPlace) {
  for (const PolicyKind policy : {PolicyKind::kFifo, PolicyKind::kFair}) {
    GpuSettings settings = fifo();
    settings.policy = policy;
    Lacking s(settings);
    s.request(kA);
    s.wait(1ms);
    s.request(kB);
    s.wait(1ms);
    s.request(kC);
    s.wait(3s);
    s.expect(kA, MemoryOutlook::kOtherPrograms);
    s.give_up(kA);
    EXPECT_EQ(s.phase(kB), SeatPhase::kHolding);
    EXPECT_EQ(s.view(kC).queue_place, 1u);
    s.expect(kA, MemoryOutlook::kUnknown);
    EXPECT_EQ(s.view(kA).queue_place, 1u);
    EXPECT_EQ(s.view(kC).queue_place, 2u);
  }
}

TEST(Obstacle, WhereNobodyElseCanRunTheLeaseStays) {
  Lacking s;
  s.request(kA);
  EXPECT_EQ(s.expect(kA, MemoryOutlook::kOtherTenants), "");
  pages(s, kB, true);
  s.expect(kB, MemoryOutlook::kOtherTenants);
  s.request(kB);
  EXPECT_EQ(s.wait(1min), "");
  EXPECT_EQ(s.phase(kA), SeatPhase::kHolding);
  EXPECT_TRUE(says(s.request(kC), "revoke 1@0 e1 memory"));
}

// A seat whose memory arrives after all stands as if it had never been obstructed.
TEST(Obstacle, IsOverWhenTheMemoryIsThere) {
  Lacking s;
  s.request(kB);
  s.request(kA);
  s.request(kC);
  s.expect(kA, MemoryOutlook::kNothingMoves);
  EXPECT_EQ(s.view(kA).queue_place, 2u);
  pages(s, kA, false);
  EXPECT_EQ(s.view(kA).queue_place, 1u);
}

}  // namespace
}  // namespace gpumux::sched
