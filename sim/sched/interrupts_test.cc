// SPDX-License-Identifier: Apache-2.0
// Goal: work that is frozen in the middle harms no invariant, goes on, and lets others have the GPU in time, however
// long its kernels are. Method: simulations by seed; a failing one says how to replay it.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/sched/seeds.h"

namespace gpumux::simsched {
namespace {

using namespace std::chrono_literals;
constexpr auto kSome = Interrupts::kSome;
constexpr auto kAll = Interrupts::kAll;

// Some seats cannot be frozen, some drivers refuse at the first try, and the setting is switched on and off.
TEST(Interrupts, OfRandomWorkloadsKeepTheInvariants) {
  run_seeds(1'200'000, 400, {.steps = 1000, .duration = 30s, .interrupts = kSome});
  run_seeds(1'210'000, 200, {.steps = 1000, .duration = 30s, .faults = false, .interrupts = kSome});
  run_seeds(1'220'000, 150, {.steps = 1000, .duration = 30s, .eager = true, .overloaded = true, .interrupts = kSome});
  run_seeds(1'230'000, 100, {.steps = 2000, .duration = 60s, .strangers = true, .interrupts = kSome});
  run_seeds(1'240'000, 100, {.steps = 1000, .duration = 30s, .claims = true, .interrupts = kSome});
}

// Some kernels take seconds, or never end.
TEST(Interrupts, OfAllSeatsKeepNoSeatWaiting) {
  run_seeds(1'250'000, 300, {.steps = 1000, .duration = 30s, .faults = false, .interrupts = kAll});
  run_seeds(1'260'000, 100, {.steps = 1000, .duration = 30s, .faults = false, .collectives = true, .interrupts = kAll});
  run_seeds(1'270'000, 100, {.steps = 1000, .duration = 30s, .interrupts = kAll});
}

TEST(Interrupts, OfSuspendedJobsKeepTheInvariants) {
  run_seeds(1'280'000, 150, {.steps = 1000, .duration = 30s, .suspensions = true, .interrupts = kSome});
  run_seeds(1'290'000, 60, {.steps = 1000, .duration = 30s, .faults = false, .suspensions = true, .interrupts = kAll});
}

// Memory of frozen seats leaves, and is back before they go on.
TEST(Interrupts, OfRandomProgramsLetMemoryGo) {
  run_seeds(1'300'000, 40, {.steps = 4000, .duration = 20s, .memory = true, .interrupts = kSome});
  run_seeds(
      1'310'000, 20,
      {.steps = 4000, .duration = 20s, .overloaded = true, .memory = true, .suspensions = true, .interrupts = kSome});
  run_seeds(1'320'000, 6, {.steps = 15'000, .duration = 20s, .faults = false, .memory = true, .interrupts = kAll});
  run_seeds(
      1'330'000, 6,
      {.steps = 20'000, .duration = 60s, .memory = true, .suspensions = true, .interrupts = kSome, .calm_after = 8s});
  run_seeds(
      6003000026, kFewer,
      {.steps = 4000, .duration = 20s, .gpus = 1, .jobs = 8, .faults = false, .memory = true, .interrupts = kAll});
  run_seeds(6017000036, kFewer,
            {.steps = 20'000,
             .duration = 60s,
             .overloaded = true,
             .memory = true,
             .suspensions = true,
             .interrupts = kSome,
             .calm_after = 15s});
  run_seeds(
      4022000199, kFewer,
      {.steps = 4000, .duration = 20s, .overloaded = true, .memory = true, .suspensions = true, .interrupts = kSome});
  run_seeds(404148, kFewer, {.steps = 2000, .memory = true, .interrupts = kAll});
  // A frozen gang was suspended, and none of its ranks could drain.
  for (const std::uint64_t seed : {52u, 2023000247u})
    run_seeds(
        seed, kFewer,
        {.steps = 4000, .duration = 20s, .faults = false, .memory = true, .suspensions = true, .interrupts = kAll});
}

// If all seats can be frozen, kernels of programs with memory may be endless.
TEST(Interrupts, OfProgramsWhoseKernelsMayBeEndless) {
  run_seeds(1'340'000, 40, {.steps = 4000, .duration = 20s, .memory = true, .interrupts = kSome});
  run_seeds(1'350'000, 40, {.steps = 4000, .duration = 20s, .faults = false, .memory = true, .interrupts = kAll});
  run_seeds(
      1'360'000, 20,
      {.steps = 4000, .duration = 20s, .overloaded = true, .memory = true, .suspensions = true, .interrupts = kSome});
  // A gang of which one member cannot be frozen is suspended.
  run_seeds(
      80013, 1,
      {.steps = 6000, .duration = 20s, .overloaded = true, .memory = true, .suspensions = true, .interrupts = kSome});
}

TEST(Interrupts, HappenTheSameWayAgain) {
  const Options options{.seed = 1'200'001, .steps = 3000, .duration = 30s, .interrupts = kSome, .keep_log = true};
  const Outcome first = simulate(options), second = simulate(options);
  EXPECT_NE(first.log.find("frozen"), std::string::npos);
  EXPECT_EQ(first.log, second.log);
}

TEST(Interrupts, ReachEveryRule) {
  Outcome all;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    for (const bool memory : {false, true}) {
      const Outcome one =
          simulate({.seed = seed, .steps = 2000, .duration = 20s, .memory = memory, .interrupts = kSome});
      all.interruptions += one.interruptions;
      all.refused_interruptions += one.refused_interruptions;
      all.drained_later += one.drained_later;
      all.let_through += one.let_through;
      all.restarts += one.restarts;
    }
  }
  EXPECT_GT(all.interruptions, 1000u);
  EXPECT_GT(all.refused_interruptions, 20u);
  EXPECT_GT(all.drained_later, 10u);
  EXPECT_GT(all.let_through, 50u) << "some gangs drain";
  EXPECT_GT(all.restarts, 20u);
}

}  // namespace
}  // namespace gpumux::simsched
