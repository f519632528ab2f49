// SPDX-License-Identifier: Apache-2.0
// Goal: the way that gives more is found and kept, noise changes nothing, a changed load is followed, and trials cost
// little. Method: programs whose speed in either way is written down, for minutes of virtual time.
#include "sched/gain.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

// Submissions in 10 ms of each program.
using Speeds = std::function<std::vector<std::uint64_t>(TimePoint now, Way way)>;

struct Programs {
  Gain gain;
  TimePoint now{};
  Way way = Way::kAtOnce;
  Duration by_turns{};
  int changes = 0;

  void go(Duration time, const Speeds& speeds) {
    for (const TimePoint end = now + time; now < end; now += 10ms) {
      const Way chosen = gain.choose(now, true);
      changes += chosen != way ? 1 : 0;
      way = chosen;
      if (way == Way::kByTurns) by_turns += 10ms;
      const std::vector<std::uint64_t> done = speeds(now, way);
      for (std::size_t i = 0; i < done.size(); ++i) gain.progressed({TenantId{i + 1}, GpuIndex{0}}, done[i]);
    }
  }
};

// Small kernels, that lose half of their speed beside each other, and large ones, that lose by turns.
const Speeds kSmall = [](TimePoint, Way way) { return std::vector<std::uint64_t>(4, way == Way::kAtOnce ? 50 : 90); };
const Speeds kLarge = [](TimePoint, Way way) { return std::vector<std::uint64_t>(4, way == Way::kAtOnce ? 95 : 80); };

TEST(Gain, FindsThatTurnsGiveMore) {
  Programs run;
  run.go(60s, kSmall);
  EXPECT_EQ(run.way, Way::kByTurns);
  EXPECT_GT(run.by_turns, 30s) << "after two trials";
  EXPECT_NE(run.gain.why().find("% of the speed"), std::string::npos) << run.gain.why();
}

TEST(Gain, StaysWhereTurnsGiveLessAndTriesSeldom) {
  Programs run;
  run.go(600s, kLarge);
  EXPECT_EQ(run.way, Way::kAtOnce);
  EXPECT_GT(run.by_turns, 0s);
  EXPECT_LT(run.by_turns, 600s / 100);
}

TEST(Gain, FollowsTheLoad) {
  Programs run;
  run.go(60s, kSmall);
  ASSERT_EQ(run.way, Way::kByTurns);
  run.go(60s, kLarge);
  EXPECT_EQ(run.way, Way::kAtOnce);
  run.go(300s, kLarge);  // nothing changes for long, and then all of it
  run.go(60s, kSmall);
  EXPECT_EQ(run.way, Way::kByTurns);
}

// Programs that are as fast in either way, but by a quarter of their speed from moment to moment.
TEST(Gain, NoiseChangesNothing) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Programs run;
    run.go(600s, [&](TimePoint, Way) {
      std::vector<std::uint64_t> done;
      for (int i = 0; i < 3; ++i) done.push_back(75 + random() % 50);
      return done;
    });
    EXPECT_LE(run.by_turns, 600s / 40) << "trials only";
  }
}

// Whatever the load does, trials take a fiftieth of the time.
TEST(Gain, TrialsCostLittle) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Programs run;
    Duration tried{};
    std::uint64_t scale = 1;
    run.go(600s, [&](TimePoint now, Way way) {
      if (now.time_since_epoch() % 3s == 0s) scale = 1 + random() % 20;
      if (run.gain.is_trying()) tried += 10ms;
      return std::vector<std::uint64_t>{50 * scale, (way == Way::kAtOnce ? 50u : 40u) * (1 + random() % 3)};
    });
    EXPECT_LE(tried, 600s / 50 + kTrialWindow + kTrialSettles);
  }
}

TEST(Gain, OneProgramThatWorksAloneIsNoReason) {
  Programs run;
  run.go(100s, [](TimePoint, Way way) { return std::vector<std::uint64_t>{way == Way::kAtOnce ? 10u : 90u, 0}; });
  EXPECT_EQ(run.way, Way::kAtOnce);
}

TEST(Gain, ForgetsWhereThereIsNothingToChoose) {
  Programs run;
  run.go(60s, kSmall);
  ASSERT_EQ(run.way, Way::kByTurns);
  EXPECT_EQ(run.gain.choose(run.now, false), Way::kAtOnce);
  EXPECT_EQ(run.gain.look_again(), TimePoint::max());
  EXPECT_EQ(run.gain.why(), "");
}

TEST(Gain, HostileCountsDoNoHarm) {
  Programs run;
  run.go(100s, [](TimePoint, Way) { return std::vector<std::uint64_t>{~std::uint64_t{0}, 0, 1}; });
  run.gain.closed({TenantId{1}, GpuIndex{0}});
  run.go(100s, [](TimePoint, Way) { return std::vector<std::uint64_t>{}; });
}

}  // namespace
}  // namespace gpumux::sched
