// SPDX-License-Identifier: Apache-2.0
// The order of units: priorities, shares, caps. Method: the lease core by script, and loads that always want more, for
// seconds of its time.
#include <gtest/gtest.h>

#include <map>

#include "sched/testing/one_gpu.h"
#include "sched/testing/residency_desk.h"

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

void stand(Script& script, SeatId seat, std::int32_t priority, std::uint32_t weight = 1, std::uint32_t cap = kNoCap) {
  script.tell(StandingChanged{seat, priority, weight, cap});
}

// Tenants that always have work: a seat that is told to go closes, drains and asks again. In steps of `step`.
void run(Script& script, const std::vector<SeatId>& busy, Duration time, Duration step = 1ms) {
  for (Duration past{}; past < time; past += step) {
    for (const SeatId seat : busy) {
      if (script.phase(seat) == SeatPhase::kRevoked) script.closed(seat);
      if (script.phase(seat) == SeatPhase::kDraining) script.drained(seat);
      if (script.phase(seat) == SeatPhase::kIdle) script.request(seat);
    }
    script.wait(step);
  }
}

TEST(Priority, TakesTheGpuAtOnceAndBesideTheDrain) {
  OneGpu script(fixed(10s));
  stand(script, kB, 5);
  script.request(kA);
  EXPECT_EQ(script.request(kB), "revoke 1@0 e1 urgent");
  EXPECT_TRUE(says(script.closed(kA), "grant 2@0"));
}

TEST(Priority, KeepsItWhileItHasWork) {
  OneGpu script(fixed(10ms));
  stand(script, kA, 1);
  script.request(kA);
  script.request(kB);
  EXPECT_EQ(script.wait(250s), "");
  EXPECT_TRUE(says(script.drained(kA), "grant 2@0"));
  EXPECT_TRUE(says(script.request(kA), "revoke 2@0"));
}

TEST(Priority, IsWhatOthersAreSaidToWaitFor) {
  GpuSettings settings = fixed(10ms);
  settings.priority_ageing = 1s;
  OneGpu script(settings, 3);
  stand(script, kA, 1);
  stand(script, kB, 1);
  script.request(kA);
  script.request(kB);
  script.request(kC);
  EXPECT_EQ(script.view(kB).waits_for, "quantum of tenant 1");
  EXPECT_EQ(script.view(kC).waits_for, "higher priority of tenant 1");
  script.wait(2s);  // by then C has waited so long that it goes first
  EXPECT_FALSE(says(script.view(kC).waits_for, "higher priority"));
}

TEST(Priority, EqualOnesTakeTurns) {
  OneGpu script(fixed(10ms), 3);
  for (const SeatId seat : {kA, kB}) stand(script, seat, 3);
  run(script, {kA, kB, kC}, 5s);
  EXPECT_NEAR(static_cast<double>(script.view(kA).held.count()), 2.5e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(script.view(kB).held.count()), 2.5e9, 0.1e9);
  EXPECT_EQ(script.view(kC).grants, 0u);
}

TEST(Priority, NegativeOnesGetWhatNobodyWants) {
  OneGpu script(fixed(10ms));
  stand(script, kA, -1);
  script.request(kA);
  EXPECT_TRUE(says(script.request(kB), "revoke 1@0 e1 urgent"));
}

// A seat that holds for max_runtime gives the others a quantum, though it asks again at once.
TEST(Priority, MaxRuntimeBoundsIt) {
  for (const bool pages : {false, true}) {
    GpuSettings settings = fixed(100ms);
    settings.max_runtime = 1s;
    OneGpu script(settings, 3);
    stand(script, kA, 9);
    // A seat that has to page is granted only when A has drained, and A has asked again by then.
    const auto page = [&](bool away) {
      for (const SeatId seat : {kB, kC}) {
        if (pages) script.tell(MemoryNeed{seat, away});
      }
    };
    page(true);
    run(script, {kA, kB, kC}, 5ms);
    ASSERT_EQ(script.phase(kA), SeatPhase::kHolding);
    for (int i = 0; i < 1100; ++i) {
      run(script, {kA, kB, kC}, 10ms, 5ms);
      page(script.phase(kA) == SeatPhase::kHolding);
    }
    const Duration others = script.view(kB).held + script.view(kC).held;
    EXPECT_GE(others, 950ms) << pages;
    EXPECT_LE(others, 1300ms) << pages;
    EXPECT_GT(script.view(kB).grants, 1u);
    EXPECT_GT(script.view(kC).grants, 1u);
  }
}

// A gang has the highest priority of its members, and a new one is a member as soon as it is there.
TEST(Priority, OfAGangIsNotAnotherForTheMomentInWhichAMemberComes) {
  Script script(2, fixed(10s));
  script.tenant(1, {0});
  stand(script, kA, -1);
  for (const std::uint64_t member : {2u, 3u}) {
    script.tell(TenantConnected{TenantId{member}, 0});
    script.tell(GangJoined{TenantId{member}, "x", 2});
  }
  script.tell(SeatOpened{kB, 1, false, -2});
  script.request(kA);
  script.request(kB);
  EXPECT_EQ(script.tell(SeatOpened{seat(3, 1), 1, false, -2}), "contention 3@1 no 200000ns");
  EXPECT_EQ(script.phase(kA), SeatPhase::kHolding);
  EXPECT_EQ(script.view(seat(3, 1)).priority, -2);
}

TEST(Priority, AgeingGivesAQuantum) {
  GpuSettings settings = fixed(50ms);
  settings.priority_ageing = 500ms;
  OneGpu script(settings);
  stand(script, kA, 9);
  script.request(kA);
  script.request(kB);
  run(script, {kA, kB}, 20s);
  const double held = static_cast<double>(script.view(kB).held.count());
  EXPECT_GT(held, 1.2e9);
  EXPECT_LT(held, 2.5e9);
}

// One of the many others has always waited long enough: the high one waits among them.
TEST(Priority, AgeingOfManyDoesNotShutAHigherOneOut) {
  GpuSettings settings = fixed(50ms);
  settings.priority_ageing = 100ms;
  Script script(1, settings);
  std::vector<SeatId> seats;
  for (std::uint64_t tenant = 1; tenant <= 7; ++tenant) {
    script.tenant(tenant, {0});
    seats.push_back(seat(tenant, 0));
  }
  stand(script, kA, 9);
  run(script, seats, 20s);
  EXPECT_GT(script.view(kA).held, 2500ms);
  for (const SeatId one : seats) EXPECT_GT(script.view(one).held, 1s) << one.tenant.value;
}

// Gangs age by what holds on the other one of their GPUs. Here units age only because of the gangs.
TEST(Priority, AgeingGangsDoNotShutAHigherOneOutWhereNobodyAges) {
  GpuSettings settings = fixed(50ms);
  Script script(2, settings);
  settings.priority_ageing = 100ms;
  script.settings(GpuIndex{1}, settings);
  std::vector<SeatId> seats{kA};
  script.tenant(1, {0});
  stand(script, kA, 9);
  for (std::uint64_t tenant = 2; tenant <= 4; ++tenant) {
    script.tenant(tenant, {0, 1});
    script.tell(GangJoined{TenantId{tenant}, "", 0});
    for (const std::uint32_t gpu : {0u, 1u}) seats.push_back(seat(tenant, gpu));
  }
  run(script, seats, 20s);
  EXPECT_GT(script.view(kA).held, 3s);
  for (const SeatId one : seats) EXPECT_GT(script.view(one).held, 1s) << one.tenant.value;
}

// Among equals shares decide, however long a unit waits.
TEST(Priority, AgeingChangesNothingAmongEquals) {
  GpuSettings settings = fixed(50ms);
  settings.priority_ageing = 100ms;
  Script script(1, settings);
  script.tenant(1, {0}, 400);
  script.tenant(2, {0}, 100);
  run(script, {kA, kB}, 20s);
  EXPECT_NEAR(static_cast<double>(script.view(kB).held.count()), 4e9, 0.2e9);
}

// A seat that waits behind others goes by the time that it has had among them, not by the time before.
TEST(Priority, OnesChangedWhileItWaitsCountsAtOnce) {
  Script script(1, fixed(10ms));
  for (const std::uint64_t tenant : {1u, 2u}) script.tenant(tenant, {0});
  stand(script, kA, 9);
  run(script, {kA, kB}, 20s);
  stand(script, kB, 9);
  run(script, {kA, kB}, 100ms);
  stand(script, kA, 0);
  ASSERT_EQ(script.phase(kB), SeatPhase::kHolding);
  const Duration had = script.view(kA).held;
  stand(script, kB, 0);
  run(script, {kA, kB}, 1s);
  EXPECT_NEAR(static_cast<double>((script.view(kA).held - had).count()), 0.5e9, 0.1e9);
}

// A newcomer is the equal of the units that wait, not of the unit that has had all the time.
TEST(Priority, ANewcomerDoesNotPayForWhoWentBefore) {
  Script script(1, fixed(10ms));
  for (const std::uint64_t tenant : {1u, 2u}) script.tenant(tenant, {0});
  stand(script, kA, 9);
  run(script, {kA, kB}, 20s);
  script.tenant(3, {0});
  script.drained(kA);
  run(script, {kB, kC}, 1s);
  EXPECT_NEAR(static_cast<double>(script.view(kC).held.count()), 0.5e9, 0.1e9);
  stand(script, kA, 0);
  const Duration had = script.view(kA).held;
  run(script, {kA, kB, kC}, 3s);
  EXPECT_NEAR(static_cast<double>((script.view(kA).held - had).count()), 1e9, 0.15e9);
}

TEST(Priority, AGangHasTheHighestOfItsMembers) {
  Script script(2, fixed(10s));
  for (const std::uint64_t tenant : {1u, 2u}) script.tenant(tenant, {0, 1});
  for (const std::uint64_t tenant : {1u, 2u}) script.tell(GangJoined{TenantId{tenant}, "", 0});
  stand(script, seat(2, 1), 4);
  for (const std::uint32_t gpu : {0u, 1u}) script.request(seat(1, gpu));
  ASSERT_EQ(script.phase(seat(1, 1)), SeatPhase::kHolding);
  const std::string told = script.request(seat(2, 0));
  EXPECT_TRUE(says(told, "revoke 1@0 e1 urgent"));
  EXPECT_TRUE(says(told, "revoke 1@1 e1 urgent"));
}

TEST(Priority, ASingleSeatTakesOneGpuOfAGang) {
  Script script(2, fixed(10s));
  script.tenant(1, {0, 1});
  script.tell(GangJoined{TenantId{1}, "", 0});
  script.tenant(2, {0});
  stand(script, kB, 1);
  for (const std::uint32_t gpu : {0u, 1u}) script.request(seat(1, gpu));
  script.request(kB);
  for (const std::uint32_t gpu : {0u, 1u}) {
    EXPECT_EQ(script.phase(seat(1, gpu)), SeatPhase::kRevoked) << "never left half revoked";
    script.closed(seat(1, gpu));
    script.drained(seat(1, gpu));
  }
  EXPECT_EQ(script.phase(kB), SeatPhase::kHolding);
}

// A gang that waits behind a higher priority on one GPU keeps no other one free.
TEST(Priority, AGangBehindAHigherOneReservesNothing) {
  GpuSettings settings = fixed(10ms);
  settings.max_runtime = 1s;
  Script script(2, settings);
  script.tenant(1, {0, 1});
  script.tell(GangJoined{TenantId{1}, "", 0});
  script.tenant(2, {1});
  script.tenant(3, {0});
  stand(script, seat(2, 1), 1);
  script.request(seat(2, 1));
  script.request(seat(1, 0));
  script.wait(900ms);
  EXPECT_EQ(script.request(kC).substr(0, 9), "grant 3@0") << "and did not wait until the gang could run";
  // When max_runtime has ended the higher one's turn the gang is next, and gets both.
  const std::string told = script.wait(150ms);
  EXPECT_TRUE(says(told, "revoke 2@1 e1 max_runtime"));
  EXPECT_TRUE(says(told, "revoke 3@0"));
  for (const SeatId one : {seat(2, 1), kC}) {
    script.closed(one);
    script.drained(one);
    script.request(one);
  }
  EXPECT_EQ(script.phase(seat(1, 0)), SeatPhase::kHolding);
  EXPECT_EQ(script.phase(seat(1, 1)), SeatPhase::kHolding);
}

TEST(Priority, ItsMemoryIsTheLastToGo) {
  Script script(1, {});
  for (const std::uint64_t tenant : {1u, 2u, 3u, 4u}) script.tenant(tenant, {0});
  stand(script, seat(4, 0), 2);
  script.request(kA);
  script.request(kB);
  script.request(kC);
  std::vector<Turn> turns;
  script.core().turns(GpuIndex{0}, turns);
  ASSERT_EQ(turns.size(), 4u);
  EXPECT_EQ(turns[0].seat, kA);
  EXPECT_EQ(turns[1].seat, kB);
  EXPECT_EQ(turns[2].seat, seat(4, 0)) << "idle, and before one that waits";
  EXPECT_EQ(turns[3].seat, kC);
}

// A newcomer of low priority takes what it lacks from its equals first. From a seat that stands higher, idle for longer
// than they, it takes only what they cannot give.
TEST(Priority, TakesNoMoreOfAHighOnesMemoryThanItMust) {
  for (const auto& [lacks, left_to_high] : {std::pair(30u, 40u), std::pair(50u, 30u)}) {
    Script script(1, {});
    Desk desk;
    for (std::uint64_t tenant = 1; tenant <= 4; ++tenant) {
      script.tenant(tenant, {0});
      desk.open(tenant);
      script.wait(1s);
    }
    stand(script, kA, 3);
    desk.has(1, 40);
    desk.has(2, 20);
    desk.has(3, 20);
    desk.has(4, 0, lacks);
    desk.settle();
    script.tell(MemoryNeed{seat(4, 0), true});
    script.request(seat(4, 0));
    script.core().turns(GpuIndex{0}, desk.turns);
    desk.plan();
    EXPECT_EQ(desk.room(1), left_to_high) << lacks;
    EXPECT_EQ(desk.room(2) + desk.room(3), lacks == 30 ? 10u : 0u);
  }
}

// Gangs by shares, as single seats: on both of their GPUs.
TEST(Share, OfGangsIsInProportion) {
  Script script(2, fixed(20ms));
  std::vector<SeatId> seats;
  for (const std::uint64_t tenant : {1u, 2u, 3u}) {
    script.tenant(tenant, {0, 1}, 100u << (tenant - 1));
    script.tell(GangJoined{TenantId{tenant}, "", 0});
    for (const std::uint32_t gpu : {0u, 1u}) seats.push_back(seat(tenant, gpu));
  }
  run(script, seats, 500ms);
  std::map<SeatId, Duration> before;
  for (const SeatId seat : seats) before[seat] = script.view(seat).held;
  run(script, seats, 10s);
  for (const std::uint32_t gpu : {0u, 1u}) {
    double all = 0;
    const auto held = [&](std::uint64_t tenant) {
      return static_cast<double>((script.view(seat(tenant, gpu)).held - before[seat(tenant, gpu)]).count());
    };
    for (const std::uint64_t tenant : {1u, 2u, 3u}) all += held(tenant);
    for (const std::uint64_t tenant : {1u, 2u, 3u}) {
      const double part = static_cast<double>(1 << (tenant - 1)) / 7;
      EXPECT_NEAR(held(tenant) / all, part, 0.03 * part) << tenant << "@" << gpu;
    }
  }
}

// If the higher one gave up its lease, it would come back to the work that the lower one has queued.
TEST(Priority, TheHigherOneKeepsAnIdleGpuForLonger) {
  OneGpu script(automatic_hold());
  script.request(kA);
  EXPECT_TRUE(says(script.request(kB), "contention 1@0 yes 200000ns"));
  EXPECT_TRUE(says(script.tell(StandingChanged{kA, 5}), "contention 1@0 yes 1000000ns"));
  EXPECT_TRUE(says(script.tell(StandingChanged{kA, 0}), "contention 1@0 yes 200000ns"));
}

// A low unit that always has work, and a high one that works for 10 ms each `period`. The memory of each is in the
// other's way, and takes 200 ms to come. How often the low one gets the GPU, and how long it runs.
struct Bursts {
  int switches = 0;
  Duration low_ran{};
};
Bursts run_bursts(Duration period, Duration time) {
  constexpr Duration kPaging = 200ms;
  LeaseCore core;
  TimePoint now{};
  Bursts bursts;
  struct Side {
    SeatId seat;
    bool holds = false;
    LeaseEpoch epoch;
    TimePoint ready_at = TimePoint::max();  // its memory is there then
    Limit<Duration> idle_hold = Duration::zero();
    TimePoint idle_since = TimePoint::max();
    Duration work{};
  };
  Side sides[2];  // high, low
  sides[0].seat = kA;
  sides[1].seat = kB;
  std::vector<Event> to_tell;
  const auto tell = [&](const Event& event) {
    std::vector<Command> commands;
    core.apply(now, event, commands);
    EXPECT_EQ(core.check_invariants(), "");
    for (const Command& command : commands) {
      for (Side& side : sides) {
        if (const auto* grant = std::get_if<Grant>(&command); grant != nullptr && grant->seat == side.seat) {
          side.holds = true;
          side.epoch = grant->epoch;
          side.idle_hold = grant->idle_hold;
          if (side.ready_at == TimePoint::max()) side.ready_at = now + kPaging;
          if (&side == &sides[1]) ++bursts.switches;
        }
        if (const auto* told = std::get_if<Contention>(&command); told != nullptr && told->seat == side.seat)
          side.idle_hold = told->idle_hold;
        if (const auto* revoke = std::get_if<Revoke>(&command); revoke != nullptr && revoke->seat == side.seat) {
          to_tell.emplace_back(GateClosed{side.seat, side.epoch});
          to_tell.emplace_back(Drained{side.seat, side.epoch});
          to_tell.emplace_back(Requested{side.seat});
        }
      }
    }
  };
  tell(GpuAdded{GpuIndex{0}, {}, LeaseEpoch{1}});
  for (const Side& side : sides) {
    tell(TenantConnected{side.seat.tenant, 0});
    tell(SeatOpened{side.seat});
  }
  tell(StandingChanged{kA, 5});
  for (; now < TimePoint(time); now += 1ms) {
    tell(TimePassed{});
    if (now.time_since_epoch() % period == 0ms) {
      sides[0].work += 10ms;
      tell(Requested{kA});
      tell(Requested{kB});
    }
    for (Side& side : sides) {
      if (side.holds && now == side.ready_at) tell(MemoryNeed{side.seat, false});
      const bool runs = side.holds && now >= side.ready_at;
      if (&side == &sides[1] && runs) bursts.low_ran += 1ms;
      if (&side == &sides[1] || !runs) continue;
      side.work -= std::min(side.work, Duration(1ms));
      side.idle_since = side.work > 0ms ? TimePoint::max() : std::min(side.idle_since, now);
      if (side.idle_since != TimePoint::max() && now - side.idle_since >= side.idle_hold) {
        side.idle_since = TimePoint::max();
        to_tell.emplace_back(Drained{side.seat, side.epoch});
      }
    }
    while (!to_tell.empty()) {
      const Event event = to_tell.front();
      to_tell.erase(to_tell.begin());
      if (const auto* drained = std::get_if<Drained>(&event)) {
        // Its memory goes when the other one comes.
        Side& side = drained->seat == kA ? sides[0] : sides[1];
        side.holds = false;
        side.ready_at = TimePoint::max();
        tell(MemoryNeed{side.seat, true});
      }
      tell(event);
    }
  }
  return bursts;
}

// The high one is back before the low one's memory is there, each time: a switch is of use to neither.
TEST(Priority, SwitchesThatCannotPayBackAreNotMade) {
  const Bursts often = run_bursts(600ms, 60s);
  EXPECT_LE(often.switches, 6) << "of 100 pauses";
  const Bursts seldom = run_bursts(5s, 60s);
  EXPECT_GE(seldom.switches, 10) << "of 12 pauses";
  EXPECT_GT(seldom.low_ran, 40s);
}

TEST(Share, TimeIsInProportion) {
  Script script(1, fixed(20ms));
  const std::vector<SeatId> seats{kA, kB, kC};
  for (const std::uint64_t tenant : {1u, 2u, 3u}) script.tenant(tenant, {0}, 100u << (tenant - 1));
  run(script, seats, 500ms);
  std::map<SeatId, Duration> before;
  for (const SeatId seat : seats) before[seat] = script.view(seat).held;
  run(script, seats, 10s);
  double all = 0;
  for (const SeatId seat : seats) all += static_cast<double>((script.view(seat).held - before[seat]).count());
  for (std::size_t i = 0; i < 3; ++i) {
    const double part = static_cast<double>((script.view(seats[i]).held - before[seats[i]]).count()) / all;
    EXPECT_NEAR(part, static_cast<double>(1 << i) / 7, 0.03 * static_cast<double>(1 << i) / 7) << i;
  }
}

// A seat cannot save up a share that it does not use, but for a quantum.
TEST(Share, AnIdleShareIsNotBanked) {
  Script script(1, fixed(20ms));
  script.tenant(1, {0}, 400);
  script.tenant(2, {0}, 100);
  script.request(kA);
  script.drained(kA);
  run(script, {kB}, 60s);
  const Duration had = script.view(kB).held;
  run(script, {kA, kB}, 1s);
  EXPECT_GE(script.view(kB).held - had, 150ms);
}

TEST(Cap, HoldsAlone) {
  Script script(1, fixed(20ms));
  script.tenant(1, {0});
  stand(script, kA, 0, 1, 300);
  run(script, {kA}, 500ms);
  const Duration had = script.view(kA).held;
  run(script, {kA}, 20s);
  EXPECT_NEAR(static_cast<double>((script.view(kA).held - had).count()), 6e9, 0.2e9);
  EXPECT_LT(script.view(kA).grants, 200u) << "a few times a second";
}

TEST(Cap, LeavesTheRestToOthers) {
  OneGpu script(fixed(20ms));
  stand(script, kA, 5, 1, 100);
  run(script, {kA, kB}, 20s);
  EXPECT_NEAR(static_cast<double>(script.view(kA).held.count()), 2e9, 0.2e9);
  EXPECT_GT(script.view(kB).held, 17s);
}

// The seat asks when a little of its allowance has come back.
TEST(Cap, IsNotGivenBackInLittles) {
  Script script(1, fixed(20ms));
  script.tenant(1, {0});
  stand(script, kA, 0, 1, 250);
  script.request(kA);
  EXPECT_EQ(script.wait(334ms), "revoke 1@0 e1 cap");
  script.closed(kA);
  script.drained(kA);
  script.wait(10ms);
  EXPECT_EQ(script.request(kA), "");
  EXPECT_EQ(script.wait(490ms), "");
  EXPECT_TRUE(says(script.wait(10ms), "grant 1@0 e2 exclusive"));
}

// It gives an idle lease up as if another seat waited, so that its allowance is for its work.
TEST(Cap, IsNotSpentIdle) {
  Script script(1, fixed(20ms));
  script.tenant(1, {0});
  stand(script, kA, 0, 1, 200);
  const std::string told = script.request(kA);
  EXPECT_TRUE(says(told, "grant 1@0 e1 exclusive contended"));
  for (int i = 0; i < 100; ++i) {
    script.wait(10ms);
    script.drained(kA);
    script.wait(90ms);
    script.request(kA);
  }
  EXPECT_GE(script.view(kA).held, 990ms) << "a tenth of the time is less than its cap";
}

// Its work runs on, which is no lease time. So it waits for its allowance, and no longer.
TEST(Cap, HoldsAfterAStall) {
  GpuSettings settings = fixed(20ms);
  settings.stall_timeout = 1s;
  Script script(1, settings);
  script.tenant(1, {0});
  stand(script, kA, 0, 1, 500);
  script.request(kA);
  std::string told;
  const auto wait = [&](Duration time) {
    for (; time > 0ms; time -= 100ms) {
      told += script.wait(100ms);
      script.seen(kA);
    }
    return std::exchange(told, {});
  };
  EXPECT_TRUE(says(wait(1100ms), "revoke 1@0 e1 cap"));
  script.closed(kA);
  script.request(kA);
  const std::string later = wait(4s);
  EXPECT_TRUE(says(later, "grant 1@0 e2"));
  EXPECT_TRUE(says(later, "revoke 1@0 e2 cap"));
}

TEST(Cap, CanBeTakenAway) {
  Script script(1, fixed(20ms));
  script.tenant(1, {0});
  stand(script, kA, 0, 1, 10);
  run(script, {kA}, 5s);
  EXPECT_LT(script.view(kA).held, 100ms);
  stand(script, kA, 0);
  run(script, {kA}, 5s);
  EXPECT_GT(script.view(kA).held, 4900ms);
}

TEST(Standing, SaysWhetherTheGpuNeedsTurns) {
  OneGpu script;
  EXPECT_FALSE(script.core().wants_turns(GpuIndex{0}));
  stand(script, kA, 1);
  EXPECT_TRUE(script.core().wants_turns(GpuIndex{0}));
  stand(script, kB, 1);
  EXPECT_FALSE(script.core().wants_turns(GpuIndex{0}));
  stand(script, kB, 1, 2);
  EXPECT_TRUE(script.core().wants_turns(GpuIndex{0}));
  stand(script, kB, 1, 1, 500);
  EXPECT_TRUE(script.core().wants_turns(GpuIndex{0}));
}

}  // namespace
}  // namespace gpumux::sched
