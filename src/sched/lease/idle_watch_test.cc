// SPDX-License-Identifier: Apache-2.0
#include "sched/lease/idle_watch.h"

#include <gtest/gtest.h>

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

class Idles {
 public:
  void for_(Duration gap) {
    watch.begin_gap(now_);
    now_ += gap;
    watch.end_gap(now_);
  }
  IdleWatch watch;

 private:
  TimePoint now_{};
};

TEST(IdleWatch, LongGapsAreBelievedAfterSome) {
  Idles idles;
  EXPECT_EQ(idles.watch.gap(), kIdleHoldInLongGaps);
  int gaps = 0;
  for (; idles.watch.gap() < 200us; ++gaps) idles.for_(10ms);
  EXPECT_GE(gaps, 8) << "a few long gaps are no habit";
  EXPECT_LE(gaps, 12);
}

TEST(IdleWatch, NoGapIsBelievedToBeLongerThanTheLastOne) {
  Idles idles;
  for (int i = 0; i < 50; ++i) idles.for_(300us);
  EXPECT_EQ(idles.watch.gap(), 300us);
  idles.for_(10ms);
  EXPECT_EQ(idles.watch.gap(), 375us) << "a quarter longer at most";
  idles.for_(80us);
  EXPECT_EQ(idles.watch.gap(), 80us) << "a short one counts at once";
  idles.for_(Duration(1));
  EXPECT_EQ(idles.watch.gap(), kIdleHoldInLongGaps);
}

TEST(IdleWatch, ARequestWithoutAGapIsNone) {
  Idles idles;
  for (int i = 0; i < 50; ++i) idles.for_(300us);
  idles.watch.end_gap(TimePoint::max());
  EXPECT_EQ(idles.watch.gap(), 300us);
}

TEST(IdleWatch, PatienceDoublesUpToEightAndEndsWithASwitchThatPays) {
  IdleWatch watch;
  EXPECT_EQ(watch.patience(), 1);
  for (const int times : {2, 4, 8, 8}) {
    watch.took_back(true);
    EXPECT_EQ(watch.patience(), times);
  }
  watch.took_back(false);
  EXPECT_EQ(watch.patience(), 1);
}

}  // namespace
}  // namespace gpumux::sched
