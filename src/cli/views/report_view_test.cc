// SPDX-License-Identifier: Apache-2.0
// Goal: a report reads well, is CSV that any reader takes, and carries nothing hostile to a terminal or a spreadsheet.
#include "cli/views/report_view.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

#include "cli/views/times.h"

namespace gpumux::cli {
namespace {

using api_client::Report;
using api_client::ReportRow;
using Lines = std::vector<std::string>;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kHour = 3600 * kSecond;
// 2026-11-25 13:46:40 UTC.
constexpr std::int64_t kNow = 1'795'614'400 * kSecond;

class ReportView : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TZ", "UTC0", 1);
    ::tzset();
  }
};

ReportRow row(double held, std::uint64_t switches = 0) {
  ReportRow row;
  row.uid = 1000;
  row.user = "eva";
  row.sums = {held, held / 2, 3 * held, 2.0 * (1 << 30) * 3600, 0, switches};
  return row;
}

TEST_F(ReportView, ATableHasTheSumOfItsRows) {
  Report report{.since_unix_ns = kNow, .until_unix_ns = kNow + kHour, .by = "job", .rows = {}, .rest = {}};
  const api_client::ReportQuery asked{.since_unix_ns = kNow};
  const std::int64_t now = kNow + 2 * kHour;
  EXPECT_EQ(report_lines(report, asked, now, Output{}),
            Lines{"No program has used a GPU from 2026-11-25 13:46 to 2026-11-25 15:46."});
  report.rows = {row(3661, 9), row(60, 1), row(1), row(0.4)};
  report.rows[0].job = 17;
  report.rows[0].name = "train";
  report.rows[0].run_seconds = 7200;
  report.rows[1].job = 21;
  report.rows[1].array = 20;
  report.rows[1].array_index = 3;
  report.rows[2].others = true;
  report.rows[3].uid.reset();
  report.rows[3].user.clear();
  EXPECT_EQ(
      report_lines(report, asked, now, Output{}),
      (Lines{"from 2026-11-25 13:46 to 2026-11-25 15:46",
             "JOB       NAME   USER  RUN TIME     HELD  GPU TIME   WAITED  GIB HOURS  IN HOST MEMORY  SWITCHES",
             "17        train  eva    2:00:00  1:01:01   0:30:31  3:03:03       2.00            0.00         9",
             "20_3             eva    0:00:00  0:01:00   0:00:30  0:03:00       2.00            0.00         1",
             "(others)         eva    0:00:00  0:00:01   0:00:01  0:00:03       2.00            0.00         0",
             "-                -      0:00:00  0:00:00   0:00:00  0:00:01       2.00            0.00         0",
             "all                     2:00:00  1:02:02   0:31:01  3:06:07       8.00            0.00        10"}));
  report.by = "user";
  report.rows.resize(1);
  EXPECT_EQ(report_lines(report, asked, now, Output{}).size(), 3u) << "one row is its own sum";
  report.by = "pod";
  report.rows[0].pod_namespace = "team-a";
  report.rows[0].pod = "train-0";
  EXPECT_EQ(report_lines(report, asked, now, Output{})[2].substr(0, 15), "team-a/train-0 ");
  report.by = "program";
  report.rows[0].program = "bad\x1b[2J\n";
  report.rest = report.rows[0].sums;
  EXPECT_EQ(report_lines(report, asked, now, Output{})[2].substr(0, 9), "bad?[2J  ");
  EXPECT_EQ(report_lines(report, asked, now, Output{})[3].substr(0, 9), "(others) ");
}

TEST_F(ReportView, ItsFirstLineSaysWhatWasAskedForAndWhenTheUseBegins) {
  // An hour with use, 13:00 to 14:00.
  const std::int64_t hour = kNow - (46 * 60 + 40) * kSecond;
  const Report report{.since_unix_ns = hour, .until_unix_ns = hour + kHour, .by = "user", .rows = {row(1)}, .rest = {}};
  const auto first = [&](const api_client::ReportQuery& asked, std::int64_t now) {
    return report_lines(report, asked, now, Output{}).front();
  };
  EXPECT_EQ(first({.since_unix_ns = hour - 13 * kHour}, kNow),
            "from 2026-11-25 00:00 to 2026-11-25 13:46; no use before 2026-11-25 13:00");
  EXPECT_EQ(first({.since_unix_ns = hour}, kNow), "from 2026-11-25 13:00 to 2026-11-25 13:46");
  // A part of the hour: the report has all of it.
  EXPECT_EQ(first({.since_unix_ns = hour + kHour / 4, .until_unix_ns = hour + kHour / 2}, kNow + kHour),
            "from 2026-11-25 13:00 to 2026-11-25 14:00");
  EXPECT_EQ(first({.since_unix_ns = 0, .job = "17"}, kNow), "from 2026-11-25 13:00 to 2026-11-25 13:46");
}

TEST_F(ReportView, AJobWithoutUseIsNamed) {
  const Report none{.since_unix_ns = kNow, .until_unix_ns = kNow, .by = "job", .rows = {}, .rest = {}};
  EXPECT_EQ(report_lines(none, {.since_unix_ns = 0, .job = "17_3"}, kNow, Output{}),
            Lines{"Job 17_3 has used no GPU."});
  EXPECT_EQ(report_lines(none, {.since_unix_ns = kNow - kHour, .job = "17"}, kNow, Output{}),
            Lines{"Job 17 has used no GPU from 2026-11-25 12:46 to 2026-11-25 13:46."});
}

TEST_F(ReportView, ClocksHaveAsManyHoursAsTheyNeed) {
  EXPECT_EQ(clock_text(0), "0:00:00");
  EXPECT_EQ(clock_text(59.6), "0:01:00");
  EXPECT_EQ(clock_text(360'000 * 3600.0 + 61), "360000:01:01");
  EXPECT_EQ(clock_text(-1), "0:00:00");
  EXPECT_EQ(clock_text(1e300).substr(0, 6), "277777");
}

TEST_F(ReportView, CsvIsQuotedAndIsNoFormula) {
  Report report{.since_unix_ns = 0, .until_unix_ns = kHour, .by = "program", .rows = {}, .rest = {}};
  const auto line_of = [&](const std::string& program) {
    ReportRow one = row(1.25, 3);
    one.program = program;
    report.rows = {one};
    const std::string csv = report_csv(report);
    return csv.substr(csv.find('\n') + 1);
  };
  const std::string tail = ",,,eva,1000,0,1.25,0.625,3.75,7730941132800,0,3\n";
  EXPECT_EQ(line_of("train.py"), "train.py" + tail);
  EXPECT_EQ(line_of("a,b"), "\"a,b\"" + tail);
  EXPECT_EQ(line_of("say \"hi\""), "\"say \"\"hi\"\"\"" + tail);
  EXPECT_EQ(line_of("a\nb\r\x1b\xff"), "a b???" + tail);
  EXPECT_EQ(line_of("=HYPERLINK(\"http://x\",\"y\")"), "\"'=HYPERLINK(\"\"http://x\"\",\"\"y\"\")\"" + tail);
  for (const std::string start : {"=", "+", "-", "@"}) EXPECT_EQ(line_of(start + "1"), "'" + start + "1" + tail);
  EXPECT_EQ(line_of("\t=1"), "\" =1\"" + tail);
  EXPECT_EQ(line_of(""), tail);
}

TEST_F(ReportView, CsvHasAColumnForEachThing) {
  Report report{.since_unix_ns = 0, .until_unix_ns = kHour, .by = "user", .rows = {row(1)}, .rest = {}};
  report.rows[0].run_seconds = 60;
  const std::string sums =
      "held_seconds,gpu_seconds,waited_seconds,resident_byte_seconds,evicted_byte_seconds,switches";
  EXPECT_EQ(report_csv(report), "user,uid,others," + sums + ",run_seconds\neva,1000,0,1,0.5,3,7730941132800,0,0,60\n");
  report.by = "job";
  report.rows[0].job = 21;
  report.rows[0].array = 20;
  report.rows[0].array_index = 3;
  report.rows[0].name = "train";
  EXPECT_EQ(report_csv(report), "job,array,array_index,name,user,uid,others," + sums +
                                    ",run_seconds\n21,20,3,train,eva,1000,0,1,0.5,3,7730941132800,0,0,60\n");
  report.by = "pod";
  report.rows[0].pod_namespace = "team-a";
  report.rows[0].pod = "train-0";
  report.rows[0].uid.reset();
  report.rows[0].user.clear();
  report.rest.emplace().held_seconds = 1e15;
  EXPECT_EQ(report_csv(report),
            "namespace,pod,user,uid,others," + sums +
                "\nteam-a,train-0,,,0,1,0.5,3,7730941132800,0,0\n,,,,1,1000000000000000,0,0,0,0,0\n");
}

TEST_F(ReportView, TimesAreReadAsPeopleWriteThem) {
  const auto time = [](std::string_view text) { return parse_time(text, kNow).value_or(-1); };
  EXPECT_EQ(time("now"), kNow);
  EXPECT_EQ(time("0s"), kNow);
  EXPECT_EQ(time("90m"), kNow - 3 * kHour / 2);
  EXPECT_EQ(time("12h"), kNow - 12 * kHour);
  EXPECT_EQ(time("7d"), kNow - 7 * (24 * kHour));
  EXPECT_EQ(time("2w"), kNow - 14 * (24 * kHour));
  EXPECT_EQ(time("7.5d"), kNow - 180 * kHour);
  EXPECT_EQ(time("1h30m"), kNow - 3 * kHour / 2);
  EXPECT_EQ(time("5000w"), 0) << "as long ago as there is";
  EXPECT_EQ(time_text(time("today")), "2026-11-25 00:00");
  EXPECT_EQ(time_text(time("yesterday")), "2026-11-24 00:00");
  EXPECT_EQ(time_text(time("2026-11-18")), "2026-11-18 00:00");
  EXPECT_EQ(time_text(time("2026-11-18T12:30")), "2026-11-18 12:30");
  EXPECT_EQ(time("2026-11-18 12:30:07") % (60 * kSecond), 7 * kSecond);
  // It is 13:46:40.
  EXPECT_EQ(time_text(time("13:30")), "2026-11-25 13:30");
  EXPECT_EQ(time_text(time("13:47")), "2026-11-24 13:47") << "it has not been so late today";
  EXPECT_EQ(time("13:46:38.25"), kNow - 7 * kSecond / 4);
  for (const char* wrong : {"", "7", "d", "-1d", "2026-02-31", "2026-11", "1969-01-01", "tomorrow", "24:00", "12:30.5",
                            "12:30:15.", "12:30:15.1234567890", "12:3x", "2026-11-18T12:30x", "99999999999999999999d"})
    EXPECT_FALSE(parse_time(wrong, kNow)) << wrong;
}

TEST_F(ReportView, BeginningsAreReadAsSlurmHasThem) {
  const auto begin = [](std::string_view text) { return parse_begin(text, kNow).value_or(-1); };
  EXPECT_EQ(begin("now"), kNow);
  EXPECT_EQ(begin("now+30"), kNow + 30 * kSecond);
  EXPECT_EQ(begin("now+90m"), kNow + 3 * kHour / 2);
  for (const char* hour : {"now+1hour", "now+1h", "now+1hours", "now+60minutes", "now+3600seconds"})
    EXPECT_EQ(begin(hour), kNow + kHour) << hour;
  EXPECT_EQ(begin("now+2weeks"), kNow + 14 * (24 * kHour));
  EXPECT_EQ(time_text(begin("tomorrow")), "2026-11-26 00:00");
  EXPECT_EQ(time_text(begin("2026-12-01T08:00")), "2026-12-01 08:00");
  // It is 13:46:40.
  EXPECT_EQ(time_text(begin("16:00")), "2026-11-25 16:00");
  EXPECT_EQ(time_text(begin("13:46")), "2026-11-26 13:46") << "it was that already";
  for (const char* wrong : {"", "now+", "now+x", "now+1fortnight", "now-1h", "1h", "yesterday", "24:00", "2026-02-31",
                            "now+1000000000weeks", "now+99999999999999999999"})
    EXPECT_FALSE(parse_begin(wrong, kNow)) << wrong;
}

// A day begins at its own midnight, with whatever the clock showed then.
TEST_F(ReportView, DaysBeginInLocalTime) {
  ::setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
  ::tzset();
  const std::int64_t after_the_change =
      1'792'929'600 * kSecond;  // 2026-10-25 13:00 CET; the clock was set back at 3:00
  EXPECT_EQ(time_text(after_the_change), "2026-10-25 13:00");
  EXPECT_EQ(time_text(*parse_time("today", after_the_change)), "2026-10-25 00:00");
  EXPECT_EQ(after_the_change - *parse_time("today", after_the_change), 14 * kHour);
}

}  // namespace
}  // namespace gpumux::cli
