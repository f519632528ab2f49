// SPDX-License-Identifier: Apache-2.0
// Goal: a deadline that is not there never comes, and hides none that is.
#include "base/deadline.h"

#include <gtest/gtest.h>

namespace gpumux::base {
namespace {

constexpr std::optional<TimePoint> kNone;
constexpr TimePoint kEarly{Duration(1)};
constexpr TimePoint kLate{Duration(2)};

TEST(Deadline, TheEarliestIsOneThatIsThere) {
  EXPECT_EQ(earliest(kEarly, kLate), kEarly);
  EXPECT_EQ(earliest(kLate, kEarly), kEarly);
  EXPECT_EQ(earliest(kNone, kLate), kLate);
  EXPECT_EQ(earliest(kLate, kNone), kLate);
  EXPECT_EQ(earliest(kNone, kNone), kNone);
}

TEST(Deadline, NoneIsNeverDue) {
  EXPECT_FALSE(is_due(kNone, kLate));
  EXPECT_FALSE(is_due(kLate, kEarly));
  EXPECT_TRUE(is_due(kLate, kLate));
  EXPECT_TRUE(is_due(kEarly, kLate));
}

}  // namespace
}  // namespace gpumux::base
