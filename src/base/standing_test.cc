// SPDX-License-Identifier: Apache-2.0
#include "base/standing.h"

#include <gtest/gtest.h>

namespace gpumux::base {
namespace {

TEST(Standing, IsReadAsPeopleWriteIt) {
  EXPECT_EQ(parse_priority("5").value_or(99), 5);
  EXPECT_EQ(parse_priority("-2").value_or(99), -2);
  EXPECT_EQ(parse_share("2").value_or(0), 200u);
  EXPECT_EQ(parse_share("0.5").value_or(0), 50u);
  EXPECT_EQ(parse_share("1.25").value_or(0), 125u);
  EXPECT_EQ(parse_max_share("30%").value_or(0), 300u);
  EXPECT_EQ(parse_max_share("2.5%").value_or(0), 25u);
  EXPECT_EQ(parse_max_share("100%").value_or(0), kWholeGpu);
}

TEST(Standing, WhatMakesNoSenseIsRefused) {
  for (const char* text : {"", "x", "1001", "-1001", "5.0", "5 ", "99999999999"})
    EXPECT_FALSE(parse_priority(text)) << text;
  for (const char* text : {"", "0", "-1", "1.234", ".5", "1.", "101", "1e3", "2x", "9999999"})
    EXPECT_FALSE(parse_share(text)) << text;
  for (const char* text : {"", "%", "30", "0%", "101%", "2.55%", "x%", "-5%"})
    EXPECT_FALSE(parse_max_share(text)) << text;
}

TEST(Standing, IsShownAsItIsRead) {
  for (const char* text : {"2", "0.5", "1.25", "0.01", "100"})
    EXPECT_EQ(format_share(parse_share(text).value_or(0)), text);
  for (const char* text : {"30%", "2.5%", "0.1%", "100%"})
    EXPECT_EQ(format_max_share(parse_max_share(text).value_or(0)), text);
}

}  // namespace
}  // namespace gpumux::base
