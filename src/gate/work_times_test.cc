// SPDX-License-Identifier: Apache-2.0
// Goal: the times of kinds of work are found from groups of them, in any company.
#include "gate/work_times.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace gpumux::gate {
namespace {

// After nothing in particular.
Work work(WorkKind kind) { return {.kind = kind, .in_context = kind + 1'000'000}; }

TEST(WorkTimesTest, KnowsNothingAtFirst) {
  const WorkTimes times;
  EXPECT_EQ(times.of(work(0)), 0);
  EXPECT_EQ(times.of(work(17)), 0);
}

TEST(WorkTimesTest, WhatIsLeftBelongsToWhoIsNotKnown) {
  WorkTimes times;
  times.learn(std::array{work(1)}, 100);
  times.learn(std::array{work(1), work(2), work(1)}, 5200);
  EXPECT_DOUBLE_EQ(times.of(work(1)), 100);
  EXPECT_DOUBLE_EQ(times.of(work(2)), 5000);
  // Even where nothing is left it is not for nothing.
  times.learn(std::array{work(1), work(3)}, 80);
  EXPECT_DOUBLE_EQ(times.of(work(3)), 10);
}

TEST(WorkTimesTest, FindsTheTimesInRandomGroups) {
  WorkTimes times;
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto true_ns = [](WorkKind kind) { return kind % 10 == 0 ? 2e6 : 1e4 + 100.0 * static_cast<double>(kind); };
  for (int i = 0; i < 20'000; ++i) {
    std::array<Work, 8> group;
    double elapsed = 0;
    for (Work& one : group) {
      one = work(random() % 50 + 1);
      elapsed += true_ns(one.kind);
    }
    times.learn(group, elapsed);
  }
  for (WorkKind kind = 1; kind <= 50; ++kind) {
    if (kind % 10 == 0) {
      EXPECT_NEAR(times.of(work(kind)), 2e6, 1e5) << kind;
    } else {
      EXPECT_LT(times.of(work(kind)), 1e5) << kind;
    }
  }
}

TEST(WorkTimesTest, FollowsWhatChanges) {
  WorkTimes times;
  times.learn(std::array{work(1)}, 100);
  for (int i = 0; i < 30; ++i) times.learn(std::array{work(1), work(1)}, 2e6);
  EXPECT_NEAR(times.of(work(1)), 1e6, 1);
}

// One kernel on the same number of threads, for different matrices.
TEST(WorkTimesTest, TheSameIsAnotherAfterOtherWork) {
  WorkTimes times;
  const Work after_short{.kind = 1, .in_context = 10};
  const Work after_long{.kind = 1, .in_context = 11};
  for (int i = 0; i < 20; ++i) {
    times.learn(std::array{after_short}, 50e3);
    times.learn(std::array{after_long}, 1e6);
  }
  EXPECT_NEAR(times.of(after_short), 50e3, 1e3);
  EXPECT_NEAR(times.of(after_long), 1e6, 1e4);
  // Where it has not been yet it takes what it takes elsewhere, and is no stranger.
  const double elsewhere = times.of({.kind = 1, .in_context = 12});
  EXPECT_GT(elsewhere, 50e3);
  EXPECT_LT(elsewhere, 1e6);
}

TEST(WorkTimesTest, AnUpperLimitOnlyLowers) {
  WorkTimes times;
  times.learn_at_most(std::array{work(1)}, 1e9, 2e6);
  EXPECT_DOUBLE_EQ(times.of(work(1)), 2e6);
  for (int i = 0; i < 20; ++i) times.learn_at_most(std::array{work(1)}, 1e6, 2e6);
  EXPECT_NEAR(times.of(work(1)), 1e6, 10);
  times.learn_at_most(std::array{work(1)}, 1e9, 2e6);
  EXPECT_NEAR(times.of(work(1)), 1e6, 10);
}

// Far more kinds than places: what was forgotten is learned again.
TEST(WorkTimesTest, HoldsAsManyAsItCan) {
  WorkTimes times;
  for (WorkKind kind = 1; kind <= 100'000; ++kind) {
    times.learn(std::array{work(kind)}, 500);
    EXPECT_NEAR(times.of(work(kind)), 500, 1);
  }
}

}  // namespace
}  // namespace gpumux::gate
