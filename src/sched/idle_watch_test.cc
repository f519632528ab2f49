// SPDX-License-Identifier: Apache-2.0
#include "sched/idle_watch.h"

#include <gtest/gtest.h>

namespace gpumux::sched {
namespace {

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

TEST(IdleWatch, EightLongGapsInARowTell) {
  Idles idles;
  for (int i = 0; i < 7; ++i) idles.for_(kMinIdleHold);
  EXPECT_FALSE(idles.watch.has_long_gaps());
  idles.for_(kMinIdleHold);
  EXPECT_TRUE(idles.watch.has_long_gaps());
  EXPECT_FALSE(idles.watch.has_longer_gaps()) << "none was as long as that";
  idles.for_(Duration(1));
  EXPECT_FALSE(idles.watch.has_long_gaps()) << "one short gap, and it begins anew";
}

TEST(IdleWatch, GapsThatAreLongerThanTheHoldOfOneThatIsBehindTellBoth) {
  Idles idles;
  for (int i = 0; i < 9; ++i) idles.for_(kIdleHoldBehind);
  EXPECT_TRUE(idles.watch.has_longer_gaps());
  EXPECT_TRUE(idles.watch.has_long_gaps());
}

TEST(IdleWatch, ARequestWithoutAGapIsNone) {
  Idles idles;
  for (int i = 0; i < 8; ++i) idles.for_(kMinIdleHold);
  idles.watch.end_gap(TimePoint::max());
  EXPECT_TRUE(idles.watch.has_long_gaps());
  EXPECT_FALSE(idles.watch.has_longer_gaps());
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
