// SPDX-License-Identifier: Apache-2.0
// Goal: any text stays within its cells and sends nothing to the terminal but characters. Method: texts with control
// characters, wide characters and marks are put on a small canvas, which is read back.
#include "top/canvas.h"

#include <gtest/gtest.h>

#include <clocale>

namespace gpumux::top {
namespace {

class CanvasTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { std::setlocale(LC_CTYPE, "C.UTF-8"); }
};

TEST_F(CanvasTest, TextIsPutAndCut) {
  Canvas canvas(2, 8, Letters::kUnicode);
  EXPECT_EQ(canvas.put(0, 1, "abc", {.bold = true}), 4u);
  EXPECT_EQ(canvas.line(0), " abc");
  EXPECT_TRUE(canvas.at(0, 1).style.bold);
  EXPECT_FALSE(canvas.at(0, 0).style.bold);
  EXPECT_EQ(canvas.put(1, 0, "a long name", {}, 5), 5u);
  EXPECT_EQ(canvas.line(1), "a lo~");
}

TEST_F(CanvasTest, WhatLiesOutsideIsNotDrawn) {
  Canvas canvas(1, 4, Letters::kUnicode);
  canvas.put(0, 2, "abcdef");
  EXPECT_EQ(canvas.line(0), "  a~");
  EXPECT_EQ(canvas.put(1, 0, "x"), 0u);
  EXPECT_EQ(canvas.put(0, 9, "x"), 9u);
  canvas.fill(0, 3, 100, {});
  canvas.fill(7, 0, 1, {});
  canvas.put_right(0, 2, "long");
  EXPECT_EQ(canvas.line(0), "  a");
  const Canvas nothing(0, 0, Letters::kAscii);
  EXPECT_EQ(nothing.rows(), 0u);
}

TEST_F(CanvasTest, ControlCharactersAreShownAndNotObeyed) {
  Canvas canvas(1, 40, Letters::kUnicode);
  canvas.put(0, 0,
             "a\x1b[2J\x1b]0;title\x07"
             "b\nc\td\x9b"
             "e\xe2\x80\xae"
             "f");
  EXPECT_EQ(canvas.line(0), "a?[2J?]0;title?b c d?e?f");
}

TEST_F(CanvasTest, AWideCharacterTakesTwoCells) {
  Canvas canvas(1, 5, Letters::kUnicode);
  canvas.put(0, 0, "漢字");
  EXPECT_EQ(canvas.at(0, 0).text, "漢");
  EXPECT_EQ(canvas.at(0, 1).text, "");
  EXPECT_EQ(canvas.at(0, 2).text, "字");
  EXPECT_EQ(canvas.line(0), "漢字");
  // One half goes, so the other one does.
  canvas.put(0, 1, "x");
  EXPECT_EQ(canvas.line(0), " x字");
  canvas.put(0, 2, "y");
  EXPECT_EQ(canvas.line(0), " xy");
  // There is no room for a half.
  canvas.put(0, 0, "a漢漢", {}, 4);
  EXPECT_EQ(canvas.line(0), "a漢~");
}

TEST_F(CanvasTest, MarksStayWithTheirCharacter) {
  Canvas canvas(1, 4, Letters::kUnicode);
  std::string text =
      "\xcc\x81"
      "e";  // a mark over nothing
  for (int i = 0; i < 20; ++i) text += "\xcc\x81";
  canvas.put(0, 0, text + "x");
  EXPECT_EQ(canvas.at(0, 0).text, "e\xcc\x81\xcc\x81\xcc\x81");
  EXPECT_EQ(canvas.at(0, 1).text, "x");
}

TEST_F(CanvasTest, WithoutUnicodeEachCellHasOneCharacterOfAscii) {
  Canvas canvas(1, 8, Letters::kAscii);
  canvas.put(0, 0, "a漢é\xcc\x81z");
  EXPECT_EQ(canvas.line(0), "a???z");
}

}  // namespace
}  // namespace gpumux::top
