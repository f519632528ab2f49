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

TEST(FillHelp, FillsParagraphsAndSecondColumns) {
  EXPECT_EQ(fill_help("One two three\nfour.\nUsage: a b c d e f g h i j\n\nActions:\n  ab  one two three\n", 14),
            "One two three\nfour.\nUsage: a b c d e f g h i j\n\nActions:\n  ab  one two\n      three\n");
  const std::string far(kHelpSentence, ' ');
  EXPECT_EQ(fill_help("  --name-that-is-long NAME  one two three\n", 36),
            "  --name-that-is-long NAME  one two\n" + far + "three\n");
  EXPECT_EQ(fill_help(far + "one two three\n", 36), far + "one two\n" + far + "three\n");
  EXPECT_EQ(fill_help("a\nb\n\nc", 80), "a b\n\nc\n") << "an empty line ends a paragraph";
}

TEST(FillHelp, LeavesCommandsAsTheyAre) {
  EXPECT_EQ(fill_help("Examples:\n  gpumux run -- a b\n", 10), "Examples:\n  gpumux run -- a b\n");
  EXPECT_EQ(fill_help("  run -- a   # a remark\n", 16), "  run -- a   # a remark\n");
  EXPECT_EQ(fill_help("say `a b c d`\nnow", 10), "say\n`a b c d`\nnow\n");
}

TEST(Fold, LeavesLongWordsWhole) { EXPECT_EQ(fold("see /a/long/path now", 8), "see\n  /a/long/path\n  now"); }

}  // namespace
}  // namespace gpumux::command_line
