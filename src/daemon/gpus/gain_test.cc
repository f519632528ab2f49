// SPDX-License-Identifier: Apache-2.0
// Goal: the way that gives more is found within seconds and kept, noise changes nothing, a changed load is followed,
// and trials cost little. Method: programs whose speed in either way is written down, for minutes of virtual time; they
// answer as seats do.
#include "daemon/gpus/gain.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;
using base::Duration;
using base::GpuIndex;
using base::SeatId;
using base::TenantId;
using base::TimePoint;
using sched::SeatUse;
using sched::Way;
using settings::kUnlimited;
using settings::Limit;

constexpr Duration kTick = 5ms;
// Of loads that differ by chance. Each is minutes of virtual time, a second of real time under a sanitizer.
constexpr std::uint32_t kSeeds = 6;

// Submissions in a tick of each program.
using Speeds = std::function<std::vector<std::uint64_t>(TimePoint now, Way way)>;

struct Programs {
  Gain gain;
  TimePoint now{100s};
  Way way = Way::kAtOnce;
  Duration by_turns{};
  Duration tried{};
  int changes = 0;
  Duration drains{};           // until turns begin
  std::uint64_t wants = 1000;  // the part of the time, in thousandths, that each wants the GPU
  std::function<bool(std::size_t)> answers = [](std::size_t) { return true; };
  Gain::Situation situation{.is_open = true, .turn = 9ms, .seats = {}};
  std::vector<std::uint64_t> submitted;
  TimePoint turns_since{};

  static SeatId seat(std::size_t i) { return {TenantId{i + 1}, GpuIndex{0}}; }

  void look() {
    for (SeatUse& use : situation.seats) use.has_turn = way == Way::kByTurns && now - turns_since >= drains;
    const Way chosen = gain.choose(now, situation);
    if (chosen != way) {
      ++changes;
      if (chosen == Way::kByTurns) turns_since = now;
    }
    way = chosen;
    if (const auto question = gain.take_question()) {
      for (std::size_t i = 0; i < submitted.size(); ++i) {
        if (answers(i)) gain.told(seat(i), *question, submitted[i]);
      }
    }
  }

  void go(Duration time, const Speeds& speeds) {
    for (const TimePoint end = now + time; now < end; now += kTick) {
      const std::vector<std::uint64_t> done = speeds(now, way);
      submitted.resize(done.size());
      while (situation.seats.size() > done.size()) situation.seats.pop_back();
      while (situation.seats.size() < done.size()) situation.seats.push_back({.seat = seat(situation.seats.size())});
      look();
      if (way == Way::kByTurns) by_turns += kTick;
      if (gain.is_trying()) tried += kTick;
      for (std::size_t i = 0; i < done.size(); ++i) {
        submitted[i] += done[i];
        situation.seats[i].wanted += kTick * static_cast<std::int64_t>(wants) / 1000;
      }
    }
  }
};

Speeds steady(std::size_t programs, std::uint64_t at_once, std::uint64_t by_turns) {
  return [=](TimePoint, Way way) {
    return std::vector<std::uint64_t>(programs, way == Way::kAtOnce ? at_once : by_turns);
  };
}
// Small kernels, that lose half of their speed next to each other, and such as lose by turns.
const Speeds kSmall = steady(4, 50, 90);
const Speeds kOthers = steady(4, 95, 80);

TEST(Gain, FindsWithinSecondsThatTurnsGiveMore) {
  Programs run;
  run.go(8s, kSmall);
  EXPECT_EQ(run.way, Way::kByTurns);
  ASSERT_TRUE(run.gain.finding());
  EXPECT_NEAR(static_cast<double>(run.gain.finding()->by_turns), 1800, 2);
  EXPECT_NE(run.gain.finding()->why.find("% of the speed that they have at once"), std::string::npos);
  run.go(60s, kSmall);
  EXPECT_EQ(run.way, Way::kByTurns);
}

// A program that has only just come up to speed is no reason.
TEST(Gain, ALoadThatBeginsSlowlyIsNotTakenForAGain) {
  for (Duration begins = 0s; begins < 4s; begins += 50ms) {
    Programs run;
    const TimePoint at = run.now + begins;
    run.go(6s, [at](TimePoint now, Way) { return std::vector<std::uint64_t>(4, now < at ? 20 : 100); });
    EXPECT_EQ(run.gain.way(), Way::kAtOnce) << begins.count();
  }
}

// A program that has just come may still be starting up. Then one trial is enough, also with long rounds.
TEST(Gain, JudgesANewLoadAfterItsFirstSecondAndSoon) {
  for (const std::size_t programs : {2u, 4u, 8u}) {
    Programs run;
    run.situation.turn = 44ms;
    run.go(1s, steady(programs, 50, 90));
    EXPECT_EQ(run.tried, Duration::zero());
    run.go(2500ms, steady(programs, 50, 90));
    EXPECT_EQ(run.gain.way(), Way::kByTurns);
  }
}

// Large kernels lose a few percent at once: a trial shows that, too, if nothing else makes the speeds differ.
TEST(Gain, FindsAFewPercent) {
  Programs run;
  run.go(60s, steady(2, 95, 99));
  EXPECT_EQ(run.way, Way::kByTurns);
  run.go(60s, steady(2, 100, 100));  // no better any more
  EXPECT_EQ(run.way, Way::kAtOnce);
}

// Each submits in bursts, which windows cut anywhere. A tenth is found within seconds, and where there is nothing to
// find nothing is.
TEST(Gain, FindsATenthInBursts) {
  constexpr std::uint64_t kBurst = 400;
  for (const std::uint64_t by_turns : {110u, 100u}) {
    int found = 0;
    for (std::uint32_t seed = 1; seed <= 4 * kSeeds; ++seed) {
      std::mt19937 random(seed);
      std::vector<std::uint64_t> left{random() % kBurst, random() % kBurst};
      Programs run;
      run.situation.turn = 40ms;
      run.go(40s, [&](TimePoint, Way way) {
        std::vector<std::uint64_t> done(2, 0);
        for (std::size_t i = 0; i < 2; ++i) {
          left[i] += (way == Way::kAtOnce ? 100 : by_turns) * (950 + random() % 100) / 1000;
          if (left[i] < kBurst) continue;
          left[i] -= kBurst;
          done[i] = kBurst;
        }
        return done;
      });
      found += run.gain.way() == Way::kByTurns ? 1 : 0;
    }
    if (by_turns > 100)
      EXPECT_GE(found, 3 * 4 * static_cast<int>(kSeeds) / 4);
    else
      EXPECT_LE(found, 4 * static_cast<int>(kSeeds) / 8);
  }
}

TEST(Gain, StaysWhereTurnsGiveLessAndTriesSeldom) {
  Programs run;
  run.go(600s, kOthers);
  EXPECT_EQ(run.way, Way::kAtOnce);
  EXPECT_GT(run.by_turns, 0s);
  EXPECT_LT(run.by_turns, 600s / 200);
}

// A program with pauses waits longer for the GPU by turns, which its speed alone does not tell.
TEST(Gain, ProgramsWithPausesNeedAClearReason) {
  Programs run;
  run.wants = 500;
  run.go(100s, steady(3, 100, 107));
  EXPECT_EQ(run.way, Way::kAtOnce);
  EXPECT_NE(run.gain.finding()->why.find(", and turns ask for 1"), std::string::npos) << run.gain.finding()->why;
  run.go(400s, steady(3, 100, 130));
  EXPECT_EQ(run.way, Way::kByTurns);
  EXPECT_TRUE(run.gain.finding()->has_pauses);
}

// By turns, a program with pauses waits: a trial that finds that out is not repeated soon.
TEST(Gain, ProgramsWithPausesAreSeldomTried) {
  Programs run;
  run.wants = 500;
  run.go(600s, steady(2, 100, 100));
  EXPECT_EQ(run.way, Way::kAtOnce);
  EXPECT_GT(run.tried, Duration::zero());
  EXPECT_LE(run.tried, 600s / 200);
}

TEST(Gain, FollowsTheLoad) {
  Programs run;
  run.go(20s, kSmall);
  ASSERT_EQ(run.way, Way::kByTurns);
  run.go(20s, steady(4, 45, 40));
  EXPECT_EQ(run.way, Way::kAtOnce);
  run.go(300s, steady(4, 45, 40));  // nothing changes for long, and then all of it
  run.go(20s, steady(4, 20, 36));
  EXPECT_EQ(run.way, Way::kByTurns);
  // In the end the change is found, too, although only a trial can show it.
  run.go(300s, steady(4, 20, 36));
  run.go(120s, steady(4, 42, 36));
  EXPECT_EQ(run.way, Way::kAtOnce);
}

// A program comes, or goes, in the middle of a trial: the trial says nothing.
TEST(Gain, SeatsComeAndGo) {
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Programs run;
    const auto several = [&] { return 2 + random() % 6; };
    for (int i = 0; i < 300; ++i) run.go(std::chrono::milliseconds(random() % 3000), steady(several(), 95, 80));
    EXPECT_EQ(run.gain.way(), Way::kAtOnce);
    EXPECT_LE(run.tried, (run.now - TimePoint(100s)) / kTrialsPart);
    run.go(60s, kSmall);  // all trials that it can afford were made
    EXPECT_EQ(run.gain.way(), Way::kByTurns);
    for (int i = 0; i < 300; ++i) run.go(std::chrono::milliseconds(random() % 3000), steady(several(), 50, 90));
    EXPECT_EQ(run.gain.way(), Way::kByTurns) << "what was found is kept as long as there are several";
  }
}

// Programs that are as fast in either way, but for a quarter of their speed from moment to moment.
TEST(Gain, NoiseChangesNothing) {
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Programs run;
    std::vector<std::uint64_t> speeds(3, 100);
    run.go(600s, [&](TimePoint now, Way) {
      if (now.time_since_epoch() % 20ms == 0s) {
        for (std::uint64_t& speed : speeds) speed = 75 + random() % 50;
      }
      return speeds;
    });
    EXPECT_EQ(run.gain.way(), Way::kAtOnce);
    EXPECT_LE(run.by_turns, 600s / 20) << "trials, and what chance chose for a moment between equals";
  }
}

// Pauses that fall in with turns for a moment, and then do not.
TEST(Gain, NoiseIsNoReasonToStayByTurns) {
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Programs run;
    run.go(30s, [](TimePoint, Way way) { return std::vector<std::uint64_t>(3, way == Way::kAtOnce ? 100 : 160); });
    ASSERT_EQ(run.gain.way(), Way::kByTurns);
    run.wants = 300;
    std::uint64_t by_turns = 70;
    run.go(90s, [&](TimePoint now, Way way) {
      if (now.time_since_epoch() % 400ms == 0s) by_turns = random() % 2 == 0 ? 50 : 130;
      return std::vector<std::uint64_t>(3, way == Way::kAtOnce ? 100 : by_turns);
    });
    EXPECT_EQ(run.gain.way(), Way::kAtOnce) << run.gain.finding()->why;
  }
}

// Steps of a third of a second, each of a part of many submissions and one of few: windows see them cut anywhere.
TEST(Gain, FindsWhatIsClearInAnUnsteadyLoad) {
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<Duration> shifts;
    for (int i = 0; i < 3; ++i) shifts.push_back(std::chrono::milliseconds(random() % 330));
    const auto load = [&](std::uint64_t at_once, std::uint64_t by_turns) {
      return [=](TimePoint now, Way way) {
        std::vector<std::uint64_t> done;
        for (const Duration shift : shifts) {
          const bool is_many = (now.time_since_epoch() + shift) % 330ms < 110ms;
          done.push_back((way == Way::kAtOnce ? at_once : by_turns) * (is_many ? 4 : 1));
        }
        return done;
      };
    };
    Programs run;
    run.go(180s, load(50, 90));
    EXPECT_EQ(run.gain.way(), Way::kByTurns);
    run.go(180s, load(95, 60));
    EXPECT_EQ(run.gain.way(), Way::kAtOnce);
  }
}

// Trials take no more than their part of the time, however the load changes.
TEST(Gain, TrialsCostLittle) {
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Programs run;
    std::uint64_t scale = 1;
    run.go(600s, [&](TimePoint now, Way way) {
      if (now.time_since_epoch() % 3s == 0s) scale = 1 + random() % 20;
      return std::vector<std::uint64_t>{50 * scale, (way == Way::kAtOnce ? 50u : 40u) * (1 + random() % 3)};
    });
    EXPECT_LE(run.tried, 600s / kTrialsPart);
  }
}

// One that has seconds of work queued: while it drained, all others would wait.
TEST(Gain, WhatDrainsForLongIsNotTried) {
  Programs run;
  run.drains = 5s;
  run.go(300s, kSmall);
  EXPECT_EQ(run.way, Way::kAtOnce);
  EXPECT_LE(run.by_turns, 6 * (kLongestDrain + kTick));
  EXPECT_NE(run.gain.finding()->why.find("to drain"), std::string::npos);
  Programs other;
  other.drains = 100ms;
  other.go(20s, kSmall);
  EXPECT_EQ(other.way, Way::kByTurns);
}

TEST(Gain, LongTurnsAreNotTried) {
  for (const Limit<Duration> turn : {Limit<Duration>(1s), Limit<Duration>(kUnlimited)}) {
    Programs run;
    run.situation.turn = turn;
    run.go(100s, kSmall);
    EXPECT_EQ(run.by_turns, 0s);
    EXPECT_NE(run.gain.finding()->why.find("too long"), std::string::npos);
  }
  Programs longer;
  longer.situation.turn = 90ms;
  longer.go(100s, kSmall);
  EXPECT_EQ(longer.way, Way::kByTurns);
}

TEST(Gain, OneProgramThatWorksAloneIsNoReason) {
  const auto alone = [](TimePoint, Way way) {
    return std::vector<std::uint64_t>{way == Way::kAtOnce ? 10u : 90u, 0, 0, 0};
  };
  Programs run;
  run.go(100s, alone);
  EXPECT_EQ(run.by_turns, 0s);
  run.go(20s, kSmall);
  ASSERT_EQ(run.way, Way::kByTurns);
  run.go(5s, alone);  // the others have nothing to do any more
  EXPECT_EQ(run.way, Way::kAtOnce);
}

TEST(Gain, ForgetsWhereThereIsNothingToChoose) {
  Programs run;
  run.go(20s, kSmall);
  ASSERT_EQ(run.way, Way::kByTurns);
  run.situation.is_open = false;
  EXPECT_EQ(run.gain.choose(run.now, run.situation), Way::kAtOnce);
  EXPECT_EQ(run.gain.look_again(), std::nullopt);
  EXPECT_FALSE(run.gain.finding());
}

// A seat that does not answer is left out, and a seat that lies has one voice.
TEST(Gain, HostileAnswersDoLittleHarm) {
  Programs silent;
  silent.answers = [](std::size_t i) { return i != 0; };
  silent.go(20s, kSmall);
  EXPECT_EQ(silent.way, Way::kByTurns);
  Programs nobody;
  nobody.answers = [](std::size_t) { return false; };
  nobody.go(100s, kSmall);
  EXPECT_EQ(nobody.by_turns, 0s);
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Programs run;
    run.go(200s, [&](TimePoint, Way way) {
      std::vector<std::uint64_t> done(6, way == Way::kAtOnce ? 100 : 60);
      done[0] = random() >> (random() % 64);
      return done;
    });
    EXPECT_EQ(run.gain.way(), Way::kAtOnce);
  }
  // An answer to no question, or from an unknown seat.
  Gain gain;
  EXPECT_FALSE(gain.told(Programs::seat(0), 0, 1));
  EXPECT_FALSE(gain.told(Programs::seat(99), 7, ~std::uint64_t{0}));
}

}  // namespace
}  // namespace gpumux::daemon
