// SPDX-License-Identifier: Apache-2.0
// Goal: a command line is shown so that a shell takes it as the same words.
#include "base/shell_words.h"

#include <gtest/gtest.h>

#include <vector>

namespace gpumux::base {
namespace {

TEST(ShellWords, AreQuotedWhereAShellWouldNotTakeThemAsTheyAre) {
  const std::vector<std::string> words{"python", "train.py", "--text", "it's $HOME", ""};
  EXPECT_EQ(shell_words(words), "python train.py --text 'it'\\''s $HOME' ''");
  EXPECT_EQ(shell_words({}), "");
}

TEST(ShellWords, AreCutBetweenCharacters) {
  EXPECT_EQ(shortened("python", 6), "python");
  EXPECT_EQ(shortened("python train.py", 9), "python...");
  EXPECT_EQ(shortened("ab\xc3\xa4 and more", 6), "ab...") << "no half of a character";
  EXPECT_EQ(shortened("ab\xc3\xa4 and more", 7), "ab\xc3\xa4...");
  EXPECT_EQ(shortened("python", 2), "...");
}

}  // namespace
}  // namespace gpumux::base
