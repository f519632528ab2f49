// SPDX-License-Identifier: Apache-2.0
// Goal: encoded data comes back, and nothing else is taken; UTF-8 is told from other bytes. Method: the examples of RFC
// 4648, every length, every single wrong letter; the edges of UTF-8.
#include "base/base64.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"

namespace gpumux::base {
namespace {

TEST(Base64, IsAsTheStandardHasIt) {
  EXPECT_EQ(encode_base64(""), "");
  EXPECT_EQ(encode_base64("f"), "Zg==");
  EXPECT_EQ(encode_base64("fo"), "Zm8=");
  EXPECT_EQ(encode_base64("foo"), "Zm9v");
  EXPECT_EQ(encode_base64("foobar"), "Zm9vYmFy");
}

TEST(Base64, ComesBack) {
  std::mt19937 random(1);
  for (std::size_t length = 0; length < 100; ++length) {
    std::string bytes;
    for (std::size_t i = 0; i < length; ++i) bytes += static_cast<char>(random());
    EXPECT_EQ(decode_base64(encode_base64(bytes)), bytes) << length;
  }
}

TEST(Base64, TakesNothingElse) {
  for (const char* text : {"Z", "Zg", "Zg=", "Zg===", "Z===", "====", "Zh==", "Zm9=", "Zm9v ", "Zm-v", "Zg==Zg=="})
    EXPECT_FALSE(decode_base64(text)) << text;
}

TEST(Utf8, IsTold) {
  for (const char* text : {"", "a", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_TRUE(is_utf8(text)) << text;
  for (const char* text : {"\x80", "\xff", "\xc0\x80", "\xc1\xbf", "\xc2", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe1\x80",
                           "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "a\xc2"})
    EXPECT_FALSE(is_utf8(text));
}

}  // namespace
}  // namespace gpumux::base
