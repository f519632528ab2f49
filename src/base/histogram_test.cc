// SPDX-License-Identifier: Apache-2.0
// Goal: percentiles are at most a quarter above the truth and never below it, at every magnitude. Method: against
// sorted lists, by seed.
#include "base/histogram.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace gpumux::base {
namespace {

using namespace std::chrono_literals;

TEST(DurationHistogram, OfNothingIsZero) { EXPECT_EQ(DurationHistogram().percentile(990), 0ns); }

TEST(DurationHistogram, OfOneIsThatOne) {
  for (const Duration one : {Duration(0ns), Duration(900ns), Duration(7us), Duration(1s), Duration(100h)}) {
    DurationHistogram histogram;
    histogram.add(one);
    for (const std::uint32_t thousandths : {0u, 500u, 1000u}) EXPECT_EQ(histogram.percentile(thousandths), one);
  }
}

TEST(DurationHistogram, IsNearTheTruth) {
  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    DurationHistogram histogram;
    std::vector<Duration> all(1 + random() % 2000);
    for (Duration& one : all) {
      // As likely a microsecond as an hour.
      one = Duration(static_cast<std::int64_t>((random() >> 1) >> (21 + random() % 32)));
      histogram.add(one);
    }
    std::sort(all.begin(), all.end());
    for (const std::size_t thousandths : {1u, 100u, 500u, 900u, 990u, 1000u}) {
      const std::size_t rank = std::max<std::size_t>((all.size() * thousandths + 999) / 1000, 1);
      const Duration truth = all[rank - 1];
      const Duration told = histogram.percentile(static_cast<std::uint32_t>(thousandths));
      EXPECT_GE(told, truth) << thousandths;
      EXPECT_LE(told, std::max<Duration>(truth + truth / 4, 1280ns)) << thousandths;
    }
  }
}

TEST(DurationHistogram, WhatIsNotADurationCountsAsNone) {
  DurationHistogram histogram;
  histogram.add(-5s);
  EXPECT_EQ(histogram.percentile(500), 0ns);
  histogram.add(Duration::max());
  EXPECT_EQ(histogram.percentile(1000), Duration::max());
}

}  // namespace
}  // namespace gpumux::base
