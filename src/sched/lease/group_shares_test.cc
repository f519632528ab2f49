// SPDX-License-Identifier: Apache-2.0
// Shares that several seats have together. Method: loads that always want more, for seconds of the core's time; and
// scripts for what happens at one moment.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "sched/testing/one_gpu.h"

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

// A machine whose tenants are in claims.
struct Claims : Script {
  explicit Claims(std::uint32_t gpus = 1, const GpuSettings& settings = fixed()) : Script(gpus, settings) {}

  void program(std::uint64_t id, const std::string& claim, std::uint32_t weight = 1,
               const std::vector<std::uint32_t>& gpus = {0}) {
    tell(TenantConnected{TenantId{id}, 0});
    for (const std::uint32_t gpu : gpus)
      tell(SeatOpened{.seat = seat(id, gpu), .weight = weight, .share_group = claim});
  }

  // Seats that are told to go close, drain and ask again.
  void step(const std::vector<SeatId>& busy) {
    for (const SeatId one : busy) {
      if (phase(one) == SeatPhase::kRevoked) closed(one);
      if (phase(one) == SeatPhase::kDraining) drained(one);
      if (phase(one) == SeatPhase::kIdle) request(one);
    }
    wait(1ms);
  }
  double held(SeatId one) const { return static_cast<double>(view(one).held / 1ms); }
  // The milliseconds that each of them holds in that time.
  std::vector<double> run(const std::vector<SeatId>& busy, Duration time) {
    std::vector<double> had;
    for (const SeatId one : busy) had.push_back(-held(one));
    for (Duration past{}; past < time; past += 1ms) step(busy);
    for (std::size_t i = 0; i < busy.size(); ++i) had[i] += held(busy[i]);
    return had;
  }
};

// One turn, and what its drain takes.
constexpr double kTurn = 12;

TEST(ShareGroup, HasWhatOneSeatOfItsWeightHas) {
  Claims script;
  script.program(1, "x");
  script.program(2, "x");
  script.program(3, "y");
  const auto had = script.run({kA, kB, kC}, 4s);
  EXPECT_NEAR(had[0], 1000, kTurn);
  EXPECT_NEAR(had[1], 1000, kTurn);
  EXPECT_NEAR(had[2], 2000, kTurn);
}

TEST(ShareGroup, HasItsWeightHoweverManySeatsItHas) {
  Claims script;
  script.program(1, "x", 75);
  script.program(2, "x", 75);
  script.program(3, "y", 25);
  script.program(4, "", 100);  // without a claim
  const auto had = script.run({kA, kB, kC, kD}, 8s);
  EXPECT_NEAR(had[0], 1500, kTurn);
  EXPECT_NEAR(had[1], 1500, kTurn);
  EXPECT_NEAR(had[2], 1000, 2 * kTurn);
  EXPECT_NEAR(had[3], 4000, 2 * kTurn);
}

TEST(ShareGroup, IsOfOneGpu) {
  Claims script(2);
  script.program(1, "x", 1, {0});
  script.program(2, "y", 1, {0});
  script.program(3, "x", 1, {1});
  const auto had = script.run({kA, kB, seat(3, 1)}, 1s);
  EXPECT_NEAR(had[0], 500, kTurn);
  EXPECT_NEAR(had[2], 1000, kTurn);
}

TEST(ShareGroup, GivesASeatThatComesLaterNoTimeOfItsOwn) {
  Claims script;
  script.program(1, "x");
  script.program(3, "y");
  script.run({kA, kC}, 1s);
  script.program(2, "x");
  const auto had = script.run({kA, kB, kC}, 2s);
  EXPECT_NEAR(had[0], 500, kTurn);
  EXPECT_NEAR(had[1], 500, kTurn);
  EXPECT_NEAR(had[2], 1000, kTurn);
}

// While one of its seats holds, a group is not idle.
TEST(ShareGroup, GivesASeatNoTimeForAnotherOnesLongTurn) {
  Claims script;
  script.program(1, "x");
  script.program(2, "x");
  script.program(3, "y");
  script.request(kA);
  script.wait(500ms);  // no other seat wants it
  script.request(kB);
  script.request(kC);
  const auto had = script.run({kA, kB, kC}, 2s);
  EXPECT_NEAR(had[0] + had[1], 1000, 2 * kTurn);
  EXPECT_NEAR(had[2], 1000, 2 * kTurn);
}

TEST(ShareGroup, TakesTurnsWithinItself) {
  Claims script;
  for (std::uint64_t id = 1; id <= 3; ++id) script.program(id, "x");
  script.program(4, "y", 2);
  script.run({kA, kB, kC, kD}, 2s);
  const std::uint64_t grants = script.view(kA).grants;
  EXPECT_NEAR(static_cast<double>(script.view(kB).grants), static_cast<double>(grants), 1);
  EXPECT_NEAR(static_cast<double>(script.view(kC).grants), static_cast<double>(grants), 1);
}

// A seat's turn puts its group's others behind, those too that have asked before.
TEST(ShareGroup, IsBehindAfterATurnOfAnyOfItsSeats) {
  Claims script;
  script.program(1, "x");
  script.program(2, "x");
  script.program(3, "y");
  script.request(kA);
  script.request(kB);
  script.wait(5ms);
  script.request(kC);
  EXPECT_EQ(script.view(kC).queue_place, 2u);
  script.wait(5ms);
  EXPECT_EQ(script.view(kC).queue_place, 1u);
  EXPECT_TRUE(says(script.closed(kA), "grant 3@0"));
}

TEST(ShareGroup, IsAheadByAQuantumAtMostWhenItComesBack) {
  Claims script;
  script.program(1, "x");
  script.program(2, "x");
  script.program(3, "y");
  script.program(4, "z");
  script.run({kA, kC, kD}, 100ms);
  script.closed(kA);
  script.drained(kA);
  script.run({kC, kD}, 10s);
  const auto had = script.run({kA, kB, kC, kD}, 600ms);
  EXPECT_NEAR(had[0] + had[1], 200, 2 * kTurn);
}

// Programs that end after each turn, each one followed by the next one.
double with_short_programs(const std::string& claim) {
  Claims script;
  script.program(1, "y", 3);
  std::uint64_t next = 2;
  script.program(next, claim, 1);
  for (Duration past{}; past < 4s; past += 1ms) {
    const SeatId now = seat(next, 0);
    if (script.phase(now) == SeatPhase::kRevoked) {
      script.tell(TenantGone{now.tenant});
      script.program(++next, claim, 1);
    }
    script.step({kA, seat(next, 0)});
  }
  return 4000 - script.held(kA);
}

TEST(ShareGroup, RemembersWhatItOwesWhenItsLastSeatHasGone) {
  EXPECT_NEAR(with_short_programs("x"), 1000, 2 * kTurn);
  EXPECT_GT(with_short_programs(""), 1500);  // the core does not know that these belong together
}

// The core's invariants bound what is remembered. Without another tenant no group is ever caught up with.
TEST(ShareGroup, IsForgottenInTime) {
  for (const bool is_alone : {false, true}) {
    Claims script;
    script.program(1, "y");
    for (std::uint64_t id = 2; id < 200; ++id) {
      script.program(id, std::to_string(id));
      script.run(is_alone ? std::vector{seat(id, 0)} : std::vector{kA, seat(id, 0)}, 25ms);
      script.tell(TenantGone{TenantId{id}});
    }
  }
}

TEST(ShareGroup, OfGangsHasOneShareOnEachGpu) {
  Claims script(2);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    script.tell(TenantConnected{TenantId{id}, 0});
    script.tell(GangJoined{TenantId{id}, "", 1});
    for (const std::uint32_t gpu : {0u, 1u})
      script.tell(SeatOpened{.seat = seat(id, gpu), .share_group = id < 3 ? "x" : "y"});
  }
  const auto had = script.run({kA, seat(1, 1), kB, seat(2, 1), kC, seat(3, 1)}, 4s);
  EXPECT_NEAR(had[0] + had[2], 2000, 2 * kTurn);
  EXPECT_NEAR(had[1] + had[3], 2000, 2 * kTurn);
  EXPECT_NEAR(had[0], had[2], 2 * kTurn);
  EXPECT_NEAR(had[5], 2000, 2 * kTurn);
}

// Two seats of one gang have the GPU at once, and their claim pays once.
TEST(ShareGroup, PaysOnceForAGang) {
  Claims script;
  for (std::uint64_t id = 1; id <= 2; ++id) {
    script.tell(TenantConnected{TenantId{id}, 0});
    script.tell(GangJoined{TenantId{id}, "gang", 2});
    script.tell(SeatOpened{.seat = seat(id, 0), .share_group = "x"});
  }
  script.program(3, "y");
  const auto had = script.run({kA, kB, kC}, 2s);
  EXPECT_NEAR(had[0], 1000, 2 * kTurn);
  EXPECT_NEAR(had[1], 1000, 2 * kTurn);
  EXPECT_NEAR(had[2], 1000, 2 * kTurn);
}

TEST(ShareGroup, LeavesPrioritiesAsTheyAre) {
  Claims script(1, fixed(10s));
  script.program(1, "x");
  script.program(2, "x");
  script.program(3, "y");
  script.request(kA);
  script.request(kC);
  script.tell(StandingChanged{kB, 5});
  EXPECT_EQ(script.request(kB), "revoke 1@0 e1 urgent");
  EXPECT_TRUE(says(script.closed(kA), "grant 2@0"));
}

TEST(ShareGroup, HasOneWeight) {
  Claims script;
  script.program(1, "x", 1);
  script.program(2, "x", 3);
  EXPECT_EQ(script.view(kA).weight, 3u);
  script.tell(StandingChanged{kA, 0, 2});
  EXPECT_EQ(script.view(kB).weight, 2u);
}

// The driver's slices are the same for each seat, and shares are not.
TEST(ShareGroup, WantsTurnsIfItHasSeveralSeatsBesideOthers) {
  Claims script;
  script.program(1, "x");
  script.program(2, "x");
  EXPECT_FALSE(script.core().wants_turns(GpuIndex{0}));
  script.program(3, "y");
  EXPECT_TRUE(script.core().wants_turns(GpuIndex{0}));
  script.tell(SeatsSuspended{{kB}});
  EXPECT_FALSE(script.core().wants_turns(GpuIndex{0}));
  script.tell(SeatsSuspended{{kB}, false});
  script.tell(SeatClosed{kC});
  EXPECT_FALSE(script.core().wants_turns(GpuIndex{0}));
}

TEST(ShareGroup, PaysOnceForATurnThatIsLentWithinIt) {
  Claims script(1, fixed(20ms));
  script.program(1, "x");
  script.program(2, "x");
  script.program(3, "y");
  script.tell(MemoryNeed{kA, true});
  script.request(kA);
  script.request(kB);
  script.tell(MemoryExpected{kB, MemoryOutlook::kStays});
  const std::string lent = script.tell(MemoryExpected{kA, MemoryOutlook::kComes});
  EXPECT_TRUE(says(lent, "grant 2@0 e2 exclusive contended borrowed"));
  script.wait(100ms);
  script.tell(MemoryNeed{kA, false});
  script.tell(MemoryExpected{kA});
  const auto had = script.run({kA, kB, kC}, 2s);
  EXPECT_NEAR(had[2], 1000, 2 * 20 + kTurn);
}

}  // namespace
}  // namespace gpumux::sched
