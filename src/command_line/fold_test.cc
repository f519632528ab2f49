// SPDX-License-Identifier: Apache-2.0
#include "command_line/fold.h"

#include <gtest/gtest.h>

namespace gpumux::command_line {
namespace {

TEST(Fold, BreaksAtSpaces) {
  EXPECT_EQ(fold("one two three four", 9), "one two\n  three\n  four");
  EXPECT_EQ(fold("one two", 7), "one two");
  EXPECT_EQ(fold("", 9), "");
}

TEST(Fold, KeepsLinesIndentsAndGaps) {
  EXPECT_EQ(fold("a\n  b c d\ne\n", 5), "a\n  b c\n    d\ne\n");
  EXPECT_EQ(fold("NAME   VALUE", 20), "NAME   VALUE");
}

TEST(Fold, LeavesCommandsWhole) {
  EXPECT_EQ(fold("see `a b c` now", 9), "see\n  `a b c`\n  now");
  EXPECT_EQ(fold("an ` alone", 80), "an ` alone");
}

TEST(Fold, LeavesLongWordsWhole) { EXPECT_EQ(fold("see /a/long/path now", 8), "see\n  /a/long/path\n  now"); }

}  // namespace
}  // namespace gpumux::command_line
