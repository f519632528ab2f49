// SPDX-License-Identifier: Apache-2.0
// Goal: settings written by people are read as they mean them, and everything else is refused with a reason.
#include "base/units.h"

#include <gtest/gtest.h>

#include "base/ids.h"

namespace gpumux::base {
namespace {

using namespace std::chrono_literals;

TEST(Duration, ReadsEachUnit) {
  EXPECT_EQ(parse_duration("250us", 1s).value(), 250us);
  EXPECT_EQ(parse_duration("1.5s", 1ms).value(), 1500ms);
  EXPECT_EQ(parse_duration("10", 1s).value(), 10s);
  EXPECT_EQ(parse_duration("0.5", 1ms).value(), 500us);
  EXPECT_EQ(parse_duration("2 h", 1s).value(), 2h);
  EXPECT_EQ(parse_duration("2d", 1s).value(), 48h);
  EXPECT_EQ(parse_duration("4w", 1s).value(), 4 * 7 * 24h);
  EXPECT_EQ(parse_duration("1hour", 1s).value(), 1h);
  EXPECT_EQ(parse_duration("90 minutes", 1s).value(), 90min);
}

TEST(Duration, ReadsSeveralUnitsAndClocks) {
  EXPECT_EQ(parse_duration("1h30m", 1ms).value(), 90min);
  EXPECT_EQ(parse_duration("2d 12h", 1ms).value(), 60h);
  EXPECT_EQ(parse_duration("12m05s", 1ms).value(), 725s);
  EXPECT_EQ(parse_duration("1s500ms", 1ms).value(), 1500ms);
  EXPECT_EQ(parse_duration("90:00", 1ms).value(), 90min);
  EXPECT_EQ(parse_duration("1:30:00", 1ms).value(), 90min);
  EXPECT_EQ(parse_duration("2-12", 1ms).value(), 60h);
}

TEST(Duration, RefusesWhatIsNoDuration) {
  for (const char* text : {"", "-1", "ms", "1e9s", "inf", "5 parsecs", "99999999999999999999h", "1..5s", "30m1h",
                           "1h1h", "1h30", "1:2:3:4", "1:60"}) {
    EXPECT_FALSE(parse_duration(text, 1s)) << text;
  }
}

TEST(Duration, IsWrittenAsItIsRead) {
  for (const Duration d :
       {Duration(1ns), Duration(250us), Duration(5ms), Duration(90s), Duration(10min), Duration(3h), Duration(3605s)}) {
    EXPECT_EQ(parse_duration(format_duration(d), 1s).value(), d) << format_duration(d);
  }
  EXPECT_EQ(format_duration(90s), "90s");
  EXPECT_EQ(format_duration(1250ms), "1.25s");
  EXPECT_EQ(format_duration(90min), "1h30m");
  EXPECT_EQ(format_duration(3605s), "1h00m05s");
  EXPECT_EQ(format_duration(60h), "2d12h");
  EXPECT_EQ(format_duration(0s), "0ns");
}

TEST(Bytes, ReadsUnitsOfMemory) {
  EXPECT_EQ(parse_bytes("8000").value(), 8000u);
  EXPECT_EQ(parse_bytes("20G").value(), 20ull << 30);
  EXPECT_EQ(parse_bytes("1.5GiB").value(), 3ull << 29);
  EXPECT_EQ(parse_bytes("4kB").value(), 4096u);
  EXPECT_FALSE(parse_bytes("4 bananas"));
  EXPECT_FALSE(parse_bytes("9999999999T"));
}

TEST(Integer, KeepsItsLimits) {
  EXPECT_EQ(parse_integer("18446744073709551615", 0, UINT64_MAX).value(), UINT64_MAX);
  EXPECT_FALSE(parse_integer("18446744073709551616", 0, UINT64_MAX));
  EXPECT_FALSE(parse_integer("9", 10, 20));
  EXPECT_FALSE(parse_integer("0x10", 0, 100));
}

TEST(GpuUuid, IsReadAsItIsWritten) {
  const auto uuid = GpuUuid::parse("GPU-01234567-89ab-cdef-0123-456789abcdef");
  ASSERT_TRUE(uuid);
  EXPECT_EQ(uuid->to_string(), "GPU-01234567-89ab-cdef-0123-456789abcdef");
  EXPECT_FALSE(GpuUuid::parse("GPU-01234567"));
  EXPECT_FALSE(GpuUuid::parse("GPU-01234567-89ab-cdef-0123-456789abcdeg"));
}

TEST(TimeLimitTest, ReadsEveryForm) {
  struct Case {
    const char* text;
    std::int64_t seconds;
  };
  for (const auto& [text, seconds] : {Case{"600", 600},
                                      {"90:00", 5400},
                                      {"1:30:00", 5400},
                                      {"100:00:00", 360000},
                                      {"2-12", 216000},
                                      {"2-12:30", 217800},
                                      {"2-12:30:05", 217805},
                                      {"0-0:0:1", 1},
                                      {"90m", 5400},
                                      {"2h", 7200}}) {
    const auto limit = parse_time_limit(text);
    ASSERT_TRUE(limit) << text << ": " << limit.error().what;
    EXPECT_EQ(*limit, std::chrono::seconds(seconds)) << text;
  }
  EXPECT_EQ(parse_time_limit("1.5").value(), std::chrono::milliseconds(1500));
}

TEST(TimeLimitTest, RefusesWhatIsNone) {
  for (const char* text : {"",
                           "0",
                           "0:00",
                           "-5",
                           "1:60",
                           "1:30:60",
                           "1-24",
                           "1:2:3:4",
                           "1-1:2:3:4",
                           ":30",
                           "1:",
                           "1-",
                           "-1:00",
                           "x",
                           "1:3x",
                           "10y",
                           "99999999999999999999",
                           "5000-0",
                           "1 :30",
                           "1:-1"}) {
    const auto limit = parse_time_limit(text);
    ASSERT_FALSE(limit) << text;
    EXPECT_NE(limit.error().what.find("HOURS:MINUTES:SECONDS"), std::string::npos) << text;
  }
}

TEST(TimeLimitTest, IsWrittenAsItIsRead) {
  for (const char* text : {"45s", "10m", "1h30m", "2d12h30m05s", "23h59m59s"}) {
    EXPECT_EQ(format_time_limit(parse_time_limit(text).value()), text);
  }
}

TEST(MemoryTest, HasAUnit) {
  EXPECT_EQ(parse_memory("8000M").value(), 8000ull << 20);
  EXPECT_EQ(parse_memory("20G").value(), 20ull << 30);
  EXPECT_EQ(parse_memory("512B").value(), 512u);
  EXPECT_EQ(parse_memory("20").error().what, "'20' has no unit: write 20M or 20G");
  for (const char* text : {"", "0", "0G", "-1", "8000X", "G"}) EXPECT_FALSE(parse_memory(text)) << text;
}

}  // namespace
}  // namespace gpumux::base
