// SPDX-License-Identifier: Apache-2.0
// Goal: a text is shared only by readers that see the same names, and as many texts are kept as the constant says.
#include "daemon/api/trace_texts.h"

#include <gtest/gtest.h>

namespace gpumux::daemon {
namespace {

TEST(TraceTexts, PiecesBeginAfterEachOther) {
  EXPECT_TRUE(TraceTexts::is_begin(1));
  EXPECT_FALSE(TraceTexts::is_begin(kTracePiece));
  EXPECT_TRUE(TraceTexts::is_begin(kTracePiece + 1));
  EXPECT_EQ(TraceTexts::end_of(1), kTracePiece + 1);
  EXPECT_EQ(TraceTexts::end_of(kTracePiece), kTracePiece + 1);
  EXPECT_EQ(TraceTexts::end_of(kTracePiece + 1), 2 * kTracePiece + 1);
}

TEST(TraceTexts, OthersNamesAreNotShared) {
  TraceTexts texts;
  texts.keep(std::nullopt, 1, "all names");
  texts.keep(uid_t{1000}, 1, "names of 1000");
  ASSERT_NE(texts.find(std::nullopt, 1), nullptr);
  EXPECT_EQ(*texts.find(std::nullopt, 1), "all names");
  EXPECT_EQ(*texts.find(uid_t{1000}, 1), "names of 1000");
  EXPECT_EQ(texts.find(uid_t{1001}, 1), nullptr);
  EXPECT_EQ(texts.find(std::nullopt, kTracePiece + 1), nullptr);
}

TEST(TraceTexts, TheOldestGoes) {
  TraceTexts texts;
  for (std::uint64_t piece = 0; piece <= kKeptTraceTexts; ++piece)
    texts.keep(std::nullopt, piece * kTracePiece + 1, "text");
  EXPECT_EQ(texts.find(std::nullopt, 1), nullptr);
  EXPECT_NE(texts.find(std::nullopt, kTracePiece + 1), nullptr);
  EXPECT_NE(texts.find(std::nullopt, kKeptTraceTexts * kTracePiece + 1), nullptr);
}

}  // namespace
}  // namespace gpumux::daemon
