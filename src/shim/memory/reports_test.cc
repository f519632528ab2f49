// SPDX-License-Identifier: Apache-2.0
// Goal: the daemon hears at once of what other seats wait for, and seldom of the rest. Method: a table of what the
// pager thread sees, and how long it waits with the report.
#include "shim/memory/reports.h"

#include <gtest/gtest.h>

namespace gpumux::shim {
namespace {

using namespace std::chrono_literals;

constexpr base::TimePoint kSent{10s};
constexpr std::uint64_t kUsed = 100;
constexpr std::uint64_t kAway = 10;
constexpr std::optional<base::Duration> kNever;

TEST(Reports, AreDueAtOnceOrSeldomOrNever) {
  struct Row {
    const char* what;
    Reports::View view;
    base::Duration since_sent;
    std::optional<base::Duration> expected;
  };
  const Row rows[] = {
      {"nothing has changed", {.used = kUsed}, 1s, kNever},
      {"more is used, which is noted where it happens", {.used = kUsed + 1}, 1s, kNever},
      {"a job runs and has freed nothing", {.used = kUsed, .is_moving = true}, 1s, kNever},
      {"people want to see it", {.used = kUsed, .has_changed = true}, 100ms, 150ms},
      {"people have waited", {.used = kUsed, .has_changed = true}, 250ms, 0ms},
      {"people have waited for long", {.used = kUsed, .has_changed = true}, 1h, 0ms},
      {"the program has freed memory", {.used = kUsed - 1}, 100ms, 150ms},
      {"the program freed memory some time ago", {.used = kUsed - 1}, 250ms, 0ms},
      {"a job has freed memory", {.used = kUsed - 1, .is_moving = true}, 0ms, 0ms},
      {"memory was born evicted", {.used = kUsed, .away = kAway + 1}, 0ms, 0ms},
      {"a job evicts, and what it frees is told", {.used = kUsed, .away = kAway + 1, .is_moving = true}, 1s, kNever},
      {"memory has come", {.used = kUsed, .away = 0}, 1s, kNever},
      {"a bound has come into force", {.used = kUsed, .has_unreported_room = true}, 0ms, 0ms},
  };
  for (const Row& row : rows)
    EXPECT_EQ(Reports(kSent, kUsed, kAway).next(row.view, kSent + row.since_sent), row.expected) << row.what;
}

TEST(Reports, TheFirstOneWaitsForNothing) {
  EXPECT_EQ(Reports().next({}, kSent), kNever);
  EXPECT_EQ(Reports().next({.has_changed = true}, kSent), 0ns);
}

TEST(Reports, HurryUntilTheNextOneIsSent) {
  Reports reports(kSent, kUsed, kAway);
  reports.hurry();
  EXPECT_EQ(reports.next({.used = kUsed}, kSent), 0ns);
  EXPECT_EQ(reports.next({.used = kUsed}, kSent + 1ms), 0ns) << "asking sends nothing";
  reports = Reports(kSent + 1ms, kUsed, kAway);
  EXPECT_EQ(reports.next({.used = kUsed}, kSent + 1ms), kNever);
}

}  // namespace
}  // namespace gpumux::shim
