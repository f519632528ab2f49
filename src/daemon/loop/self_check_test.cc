// SPDX-License-Identifier: Apache-2.0
#include "daemon/loop/self_check.h"

#include <gtest/gtest.h>

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

struct FakeClock : base::Clock {
  base::TimePoint now() const override { return time; }
  base::TimePoint time = base::TimePoint() + 1h;
};

TEST(SelfCheck, CountsWhatIsBroken) {
  FakeClock clock;
  std::string broken;
  SelfCheck check(clock, {{"good", [] { return std::string(); }}, {"bad", [&] { return broken; }}});
  check.look();
  EXPECT_EQ(check.found(), 0u);
  broken = "one is two";
  for (int i = 0; i < 3; ++i) {
    clock.time += 1s;
    check.look();
  }
  EXPECT_EQ(check.found(), 3u);
}

TEST(SelfCheck, IsRarerTheLongerItTakes) {
  FakeClock clock;
  int short_ones = 0, long_ones = 0;
  SelfCheck check(clock, {{"short", [&] { return clock.time += 100us, ++short_ones, std::string(); }},
                          {"long", [&] { return clock.time += 10ms, ++long_ones, std::string(); }}});
  for (int i = 0; i < 100; ++i) {
    check.look();
    clock.time += 1s;
  }
  EXPECT_EQ(short_ones, 100);
  EXPECT_NEAR(long_ones, 10, 1);
}

}  // namespace
}  // namespace gpumux::daemon
