// SPDX-License-Identifier: Apache-2.0
// Goal: under thousands of random workloads the core's invariants hold, no seat starves, gangs never deadlock, shares
// are fair, and a seed is a run. Method: simulations by seed; a failing one says how to replay it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "sim/sched/seeds.h"

namespace gpumux::simsched {
namespace {

using base::Duration;
using namespace std::chrono_literals;

TEST(Simulation, OfRandomWorkloadsWithFaultsKeepsTheInvariants) { run_seeds(1, 1200, {.steps = 600, .duration = 30s}); }

TEST(Simulation, OfRandomWorkloadsWithoutFaultsStarvesNobody) {
  run_seeds(100'000, 500, {.steps = 1000, .duration = 30s, .faults = false});
}

TEST(Simulation, OfLongRunsKeepsTheInvariants) { run_seeds(200'000, 20, {.steps = 10'000, .duration = 120s}); }

// Messages cross leases that are long over, gates close after the stall timeout, agents count as silent and are not.
TEST(Simulation, OfAnOverloadedMachineKeepsTheInvariants) {
  run_seeds(400'000, 400, {.steps = 1000, .duration = 30s, .overloaded = true});
  run_seeds(500'000, 200, {.steps = 2500, .duration = 60s, .gpus = 2, .jobs = 3, .overloaded = true});
  run_seeds(600'000, 200, {.steps = 1000, .duration = 30s, .eager = true, .overloaded = true});
}

// Ranks that wait for each other, of which the core does not know that they belong together. The daemon kills some that
// never drain.
TEST(Strangers, OfRandomWorkloadsKeepTheInvariants) {
  std::uint64_t stalls = 0, killed = 0;
  const auto run = [&](std::uint64_t first, std::uint64_t count, Options options) {
    for (options.seed = first; options.seed < first + count / kFewer; ++options.seed) {
      const Outcome outcome = simulate(options);
      ASSERT_EQ(outcome.wrong, "") << "seed " << options.seed;
      stalls += outcome.stalls;
      killed += outcome.killed_stalled;
    }
  };
  run(900'000, 200, {.steps = 2000, .duration = 60s, .strangers = true});
  run(910'000, 150, {.steps = 4000, .duration = 60s, .collectives = true, .strangers = true, .overloaded = true});
  run(920'000, 80, {.steps = 4000, .duration = 60s, .strangers = true, .overloaded = true, .suspensions = true});
  run(930'000, 10, {.steps = 6000, .duration = 60s, .strangers = true, .memory = true, .suspensions = true});
  if (kFewer > 1) return;
  EXPECT_GT(stalls, 50u);
  EXPECT_GT(killed, 5u);
}

// Seats that have memory, under a planner that says how much of it is on the GPU.
TEST(Memory, OfRandomProgramsKeepsTheInvariants) {
  run_seeds(700'000, 120, {.steps = 4000, .duration = 20s, .memory = true});
  run_seeds(710'000, 60, {.steps = 4000, .duration = 20s, .overloaded = true, .memory = true});
}

// Each of these has found a fault once.
TEST(Memory, OfSeedsThatFoundFaultsKeepsTheInvariants) {
  for (const std::uint64_t seed : {1001569u, 1003131u, 1003202u, 1002958u, 1004699u, 1007963u})
    run_seeds(seed, kFewer, {.steps = 3000, .duration = 20s, .memory = true});
  for (const std::uint64_t seed : {700114u, 2101884u, 2104867u, 2105120u})
    run_seeds(seed, kFewer, {.steps = 4000, .duration = 20s, .overloaded = true, .memory = true});
  for (const std::uint64_t seed : {445692324u, 2011000020u, 3011000000u})
    run_seeds(seed, kFewer, {.steps = 20'000, .duration = 60s, .memory = true, .calm_after = 8s});
  run_seeds(5007000875, kFewer, {.steps = 4000, .duration = 20s, .memory = true});
  run_seeds(6010000257, kFewer,
            {.steps = 4000, .duration = 30s, .claims = true, .overloaded = true, .memory = true, .hostile = true});
  run_seeds(50057, kFewer, {.steps = 2000, .duration = 20s, .faults = false, .memory = true});
  run_seeds(10055, kFewer, {.steps = 15'000, .duration = 60s, .faults = false, .memory = true});
  run_seeds(445726965, kFewer, {.steps = 15'000, .duration = 60s, .faults = false, .memory = true});
  for (const std::uint64_t seed : {445726998u, 445742146u})
    run_seeds(seed, kFewer, {.steps = 15'000, .duration = 20s, .faults = false, .memory = true});
}

// Jobs of one account lie about their memory, and keep what they were lent: all others' memory comes all the same.
TEST(Memory, OfOneAccountThatLiesAndKeepsStopsNobody) {
  run_seeds(740'000, 40, {.steps = 4000, .duration = 20s, .memory = true, .hostile = true});
  run_seeds(750'000, 10, {.steps = 15'000, .duration = 20s, .faults = false, .memory = true, .hostile = true});
}

// Big ones next to small ones, gangs next to single seats: every seat gets its memory, and every wish its answer.
TEST(Memory, OfRandomProgramsWithoutFaultsStarvesNobody) {
  run_seeds(720'000, 20, {.steps = 15'000, .duration = 20s, .faults = false, .memory = true});
}

// After stops, deaths, restarts, other programs that come and go: once nothing happens any more, all seats go on.
TEST(Memory, ComesBackToRestAfterFaults) {
  run_seeds(730'000, 15, {.steps = 20'000, .duration = 60s, .memory = true, .calm_after = 8s});
}

// Jobs that stand still, frozen or not: they are in no other job's way, and go on as if nothing had been.
TEST(Suspensions, OfRandomWorkloadsKeepTheInvariants) {
  run_seeds(800'000, 250, {.steps = 1000, .duration = 30s, .suspensions = true});
  run_seeds(810'000, 100, {.steps = 1000, .duration = 30s, .eager = true, .overloaded = true, .suspensions = true});
  run_seeds(820'000, 100, {.steps = 1500, .duration = 30s, .faults = false, .suspensions = true});
}

TEST(Suspensions, OfRandomProgramsTakeTheirMemoryAndGiveItBack) {
  run_seeds(830'000, 30, {.steps = 4000, .duration = 20s, .memory = true, .suspensions = true});
  run_seeds(840'000, 15, {.steps = 4000, .duration = 20s, .overloaded = true, .memory = true, .suspensions = true});
  run_seeds(850'000, 4, {.steps = 15'000, .duration = 20s, .faults = false, .memory = true, .suspensions = true});
  run_seeds(860'000, 4, {.steps = 20'000, .duration = 60s, .memory = true, .suspensions = true, .calm_after = 8s});
}

TEST(Suspensions, OfSeedsThatFoundFaultsKeepTheInvariants) {
  for (const std::uint64_t seed : {142u, 40243u})
    run_seeds(seed, kFewer, {.steps = 4000, .duration = 30s, .memory = true, .suspensions = true});
  for (const std::uint64_t seed : {103u, 50096u})
    run_seeds(seed, kFewer, {.steps = 4000, .duration = 30s, .overloaded = true, .memory = true, .suspensions = true});
  run_seeds(70025, kFewer, {.steps = 20'000, .duration = 60s, .memory = true, .suspensions = true, .calm_after = 8s});
  run_seeds(
      445703855, kFewer,
      {.steps = 20'000, .duration = 60s, .overloaded = true, .memory = true, .suspensions = true, .calm_after = 8s});
  for (const std::uint64_t seed : {445687396u, 445687447u, 445713936u})
    run_seeds(seed, kFewer, {.steps = 15'000, .duration = 20s, .faults = false, .memory = true, .suspensions = true});
}

TEST(Suspensions, ReachEveryRule) {
  Outcome all;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    const Outcome one = simulate({.seed = seed, .steps = 4000, .duration = 20s, .memory = true, .suspensions = true});
    all.suspensions += one.suspensions;
    all.freezes += one.freezes;
    all.not_frozen += one.not_frozen;
    all.bytes_out += one.bytes_out;
    all.restarts += one.restarts;
  }
  EXPECT_GT(all.suspensions, 150u);
  EXPECT_GT(all.freezes, 50u);
  EXPECT_GT(all.not_frozen, 10u);
  EXPECT_GT(all.bytes_out >> 30, 50u);
  EXPECT_GT(all.restarts, 5u);
}

TEST(Memory, HappensTheSameWayAgain) {
  for (std::uint64_t seed = 740'000; seed < 740'005; ++seed) {
    const Options options{.seed = seed, .steps = 3000, .duration = 20s, .memory = true, .keep_log = true};
    const Outcome first = simulate(options), second = simulate(options);
    ASSERT_NE(first.log.find("memory"), std::string::npos);
    EXPECT_EQ(first.log, second.log) << "seed " << seed;
    EXPECT_EQ(first.log_hash, second.log_hash);
  }
}

TEST(Memory, ReachesEveryRule) {
  Outcome all;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const Outcome one = simulate({.seed = seed, .steps = 4000, .duration = 20s, .memory = true});
    all.bytes_out += one.bytes_out;
    all.bytes_in += one.bytes_in;
    all.wishes += one.wishes;
    all.wishes_refused += one.wishes_refused;
    all.refused_by_driver += one.refused_by_driver;
    all.mode_changes += one.mode_changes;
    all.returned_late += one.returned_late;
    all.restarts += one.restarts;
    all.silences += one.silences;
  }
  EXPECT_GT(all.bytes_out >> 30, 100u);
  EXPECT_GT(all.bytes_in >> 30, 100u);
  EXPECT_GT(all.wishes, 500u);
  EXPECT_GT(all.wishes_refused, 50u);
  EXPECT_LT(all.wishes_refused, all.wishes);
  EXPECT_GT(all.refused_by_driver, 20u);
  EXPECT_GT(all.mode_changes, 100u);
  EXPECT_GT(all.returned_late, 5u);
  EXPECT_GT(all.restarts, 20u);
  EXPECT_GT(all.silences, 20u);
}

TEST(Simulation, HappensTheSameWayAgain) {
  for (std::uint64_t seed = 300'000; seed < 300'010; ++seed) {
    const Options options{.seed = seed, .steps = 1500, .duration = 30s, .keep_log = true};
    const Outcome first = simulate(options), second = simulate(options);
    ASSERT_FALSE(first.log.empty());
    EXPECT_EQ(first.log, second.log) << "seed " << seed;
    EXPECT_EQ(first.log_hash, second.log_hash);
    EXPECT_NE(first.log_hash, simulate({.seed = seed + 1, .steps = 1500, .duration = 30s}).log_hash);
  }
}

// Something of everything must happen in the runs above, or they show nothing.
TEST(Simulation, ReachesEveryRule) {
  Outcome all;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const Outcome one = simulate({.seed = seed, .steps = 600, .duration = 30s});
    all.grants += one.grants;
    all.revocations += one.revocations;
    all.let_through += one.let_through;
    all.stalls += one.stalls;
    all.silences += one.silences;
    all.restarts += one.restarts;
    all.urgent += one.urgent;
    all.capped += one.capped;
  }
  EXPECT_GT(all.urgent, 500u);
  EXPECT_GT(all.capped, 10u);
  EXPECT_GT(all.grants, 1000u);
  EXPECT_GT(all.revocations, 1000u);
  EXPECT_GT(all.let_through, 50u);
  EXPECT_GT(all.stalls, 5u);
  EXPECT_GT(all.silences, 20u);
  EXPECT_GT(all.restarts, 20u);
}

// Two programs with collectives on the same two GPUs.
Options two_programs(std::uint64_t seed, bool gangs) {
  settings::GpuSettings settings;
  settings.mode = settings::Mode::kSerial;
  settings.in_flight = sched::kUnlimited;
  settings.quantum = 5ms;
  settings.stall_timeout = 1s;
  settings.overlap = false;
  return {.seed = seed,
          .steps = 1'000'000,
          .duration = 20s,
          .gpus = 2,
          .jobs = 2,
          .gangs = gangs,
          .faults = false,
          .collectives = true,
          .settings = settings};
}

std::uint64_t collectives_of_the_slower(const Outcome& outcome) {
  std::uint64_t least = ~std::uint64_t{0};
  for (const JobOutcome& job : outcome.jobs) least = std::min(least, job.collectives);
  return least;
}

// Each rank that has a turn spins for one that has none. Both programs go on all the same, a little with each turn.
TEST(TwoProgramsOnTwoGpus, CrawlWithoutGangs) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Options options = two_programs(seed, false);
    const Outcome whole = simulate(options);
    options.duration = 10s;
    const Outcome half = simulate(options);
    ASSERT_EQ(whole.wrong, "");
    EXPECT_GT(whole.stalls, 0u) << "seed " << seed;
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_GT(whole.jobs[i].collectives, half.jobs[i].collectives) << "seed " << seed << " program " << i;
  }
}

TEST(TwoProgramsOnTwoGpus, BothGoOnAsGangs) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome outcome = simulate(two_programs(seed, true));
    ASSERT_EQ(outcome.wrong, "");
    EXPECT_EQ(outcome.stalls, 0u) << "seed " << seed;
    EXPECT_GT(outcome.let_through, 0u) << "seed " << seed << ": no revocation came between the ranks' submissions";
    EXPECT_GT(collectives_of_the_slower(outcome), 250u) << "seed " << seed;
  }
}

// Ranks that spin for members which have not joined yet: each program holds half of what the other needs, and only the
// stall rule helps.
TEST(TwoProgramsOnTwoGpus, GoOnEvenIfTheyStartBeforeTheyAreWhole) {
  std::uint64_t stalls = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Options options = two_programs(seed, true);
    options.eager = true;
    const Outcome outcome = simulate(options);
    ASSERT_EQ(outcome.wrong, "");
    stalls += outcome.stalls;
    EXPECT_GT(collectives_of_the_slower(outcome), 200u) << "seed " << seed;
  }
  EXPECT_GT(stalls, 0u);
}

// Always busy jobs of different weights on one GPU get time by weight.
TEST(Fairness, HoldsOverAWindow) {
  settings::GpuSettings settings;
  settings.mode = settings::Mode::kSerial;
  settings.in_flight = sched::kUnlimited;
  settings.quantum = 5ms;
  settings.overlap = false;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome outcome = simulate({.seed = seed,
                                      .steps = 1'000'000,
                                      .duration = 10s,
                                      .gpus = 1,
                                      .jobs = 4,
                                      .faults = false,
                                      .busy_singles = true,
                                      .settings = settings});
    ASSERT_EQ(outcome.wrong, "");
    Duration all{};
    std::uint32_t weights = 0;
    for (const JobOutcome& job : outcome.jobs) {
      all += job.busy;
      weights += job.weight;
    }
    for (const JobOutcome& job : outcome.jobs) {
      const double share = static_cast<double>(job.busy.count()) / static_cast<double>(all.count());
      EXPECT_NEAR(share, 1.0 * job.weight / weights, 0.03) << "seed " << seed << " weight " << job.weight;
    }
  }
}

TEST(Claims, OfRandomWorkloadsKeepTheInvariants) {
  run_seeds(1'100'000, 200, {.steps = 1000, .duration = 30s, .claims = true});
  run_seeds(1'110'000, 60, {.steps = 1000, .duration = 30s, .claims = true, .overloaded = true, .suspensions = true});
  run_seeds(1'120'000, 15, {.steps = 4000, .duration = 20s, .claims = true, .memory = true});
}

TEST(Claims, OfBusyJobsAreNoMoreThanTwoTurnsApart) {
  for (const std::uint64_t first : {50'212u, 1'130'000u})
    run_seeds(first, 20, {.steps = 5000, .duration = 60s, .faults = false, .claims = true, .busy_singles = true});
}

// Always busy jobs, most of them in claims. Each claim has what its weight says, however many jobs it has, at the end
// and at any moment before (World::check_shares).
TEST(Claims, HaveTheirSharesOverAWindow) {
  settings::GpuSettings settings;
  settings.mode = settings::Mode::kSerial;
  settings.in_flight = sched::kUnlimited;
  settings.quantum = 5ms;
  settings.overlap = false;
  std::size_t shared = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Outcome outcome = simulate({.seed = seed,
                                      .steps = 1'000'000,
                                      .duration = 10s,
                                      .gpus = 1,
                                      .jobs = 6,
                                      .faults = false,
                                      .claims = true,
                                      .busy_singles = true,
                                      .settings = settings});
    ASSERT_EQ(outcome.wrong, "");
    std::map<std::string, std::vector<const JobOutcome*>> claims;
    for (std::size_t i = 0; i < outcome.jobs.size(); ++i) {
      const JobOutcome& job = outcome.jobs[i];
      claims[job.claim.empty() ? std::to_string(i) : job.claim].push_back(&job);
    }
    double all = 0;
    std::uint32_t weights = 0;
    for (const JobOutcome& job : outcome.jobs) all += static_cast<double>(job.busy.count());
    for (const auto& [name, jobs] : claims) weights += jobs.front()->weight;
    for (const auto& [name, jobs] : claims) {
      shared += jobs.size() > 1 ? 1u : 0u;
      double busy = 0;
      for (const JobOutcome* job : jobs) busy += static_cast<double>(job->busy.count());
      EXPECT_NEAR(busy / all, 1.0 * jobs.front()->weight / weights, 0.03) << "seed " << seed << " " << name;
    }
  }
  EXPECT_GT(shared, 15u);
}

}  // namespace
}  // namespace gpumux::simsched
