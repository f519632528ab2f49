// SPDX-License-Identifier: Apache-2.0
// Goal: host memory is there before an eviction needs it, stays while the eviction may go on, and goes back then.
// Method: a table of looks at one seat, in order, with what the mover does and when it looks again.
#include "shim/memory/mover_host.h"

#include <gtest/gtest.h>

namespace gpumux::shim {
namespace {

using namespace std::chrono_literals;
using Act = HostAhead::Act;
using Forget = HostAhead::Forget;
using View = HostAhead::View;

constexpr std::optional<base::Duration> kNever;
constexpr std::uint64_t kBytes = std::uint64_t{4} << 30;

base::TimePoint at(base::Duration since_start) { return base::TimePoint(1h) + since_start; }

struct Row {
  const char* what;
  View view;
  base::Duration time;
  Act act;
  std::optional<base::Duration> again;
  Forget forget = Forget::kUseless;
};

void expect_all(HostAhead& host, std::initializer_list<Row> rows) {
  for (const Row& row : rows) {
    const HostAhead::Decision decision = host.next(row.view, at(row.time));
    EXPECT_EQ(decision.act, row.act) << row.what;
    EXPECT_EQ(decision.again, row.again) << row.what;
    EXPECT_EQ(decision.forget, row.forget) << row.what;
    EXPECT_EQ(decision.prepare != 0, row.act == Act::kPrepare) << row.what;
  }
}

TEST(HostAhead, IsSharedWhenNothingIsExpected) {
  HostAhead host;
  expect_all(host, {{"nothing is to be done", {}, 0ms, Act::kShare, kNever},
                    {"a restoration needs none", {.is_restoring = true}, 0ms, Act::kShare, kNever, Forget::kNotNow}});
}

TEST(HostAhead, IsPreparedUntilTheEvictionTakesOver) {
  HostAhead host;
  EXPECT_EQ(host.next({.told = kBytes}, at(0ms)).prepare, kBytes);
  expect_all(host, {
                       {"there is not enough yet", {}, 10ms, Act::kPrepare, kHintHolds - 10ms},
                       {"a restoration comes first, and what there is stays",
                        {.is_restoring = true},
                        20ms,
                        Act::kKeep,
                        kHintHolds - 20ms,
                        Forget::kNotNow},
                   });
}

TEST(HostAhead, TheEvictionTakesOver) {
  HostAhead host;
  expect_all(host, {
                       {"the daemon tells it", {.told = kBytes}, 0ms, Act::kPrepare, kHintHolds},
                       {"the eviction", {.is_evicting = true}, 1ms, Act::kKeep, kNever, Forget::kNotNow},
                       {"it was short", {}, 2ms, Act::kShare, kNever},
                   });
}

TEST(HostAhead, IsPreparedNoLongerThanTheHintHolds) {
  HostAhead host;
  expect_all(host, {
                       {"the daemon tells it", {.told = kBytes}, 0ms, Act::kPrepare, kHintHolds},
                       {"and again", {.told = kBytes}, 500ms, Act::kPrepare, kHintHolds},
                       {"the newest hint counts", {}, kHintHolds, Act::kPrepare, 500ms},
                       {"no eviction has come", {}, kHintHolds + 500ms, Act::kShare, kNever},
                   });
}

TEST(HostAhead, EnoughIsEnough) {
  HostAhead host;
  expect_all(host, {{"the daemon tells it", {.told = kBytes}, 0ms, Act::kPrepare, kHintHolds}});
  host.prepared();
  expect_all(host, {{"there is enough", {}, 1ms, Act::kShare, kNever}});
}

TEST(HostAhead, LeftOversGoBackOnceSomeTimeAfterTheEviction) {
  HostAhead host;
  host.begin_eviction(0);
  expect_all(host, {{"it runs", {.is_evicting = true}, 0ms, Act::kKeep, kNever, Forget::kNotNow}});
  host.end_eviction(at(0ms));
  expect_all(host, {
                       {"it may go on", {}, 999ms, Act::kShare, 1ms},
                       {"it goes on", {.is_evicting = true}, 1s, Act::kKeep, kNever, Forget::kNotNow},
                   });
  host.end_eviction(at(2s));
  expect_all(host, {
                       {"it may go on again", {}, 2s, Act::kShare, HostAhead::kReturnAfter},
                       {"it has not", {}, 3s, Act::kReturn, kNever},
                       {"once is enough", {}, 4s, Act::kShare, kNever},
                   });
}

TEST(HostAhead, IsUnmappedWhenNoJobMindsIt) {
  HostAhead host;
  const base::TimePoint leaving = at(0ms);
  const auto kNotNow = Forget::kNotNow;
  expect_all(host,
             {
                 {"a job moves memory", {.is_evicting = true}, 0ms, Act::kKeep, kNever, kNotNow},
                 {"it waits for host memory", {.is_evicting = true, .is_starved = true}, 0ms, Act::kKeep, kNever},
                 {"the process ends, and may be evicted", {.leaving_since = leaving}, 10ms, Act::kShare, 90ms},
                 {"it is evicted", {.is_evicting = true, .leaving_since = leaving}, 100ms, Act::kKeep, kNever, kNotNow},
                 {"that is over", {.leaving_since = leaving}, 100ms, Act::kShare, kNever, Forget::kUnused},
             });
  // The nearer of two times.
  host.end_eviction(at(0ms));
  expect_all(host, {{"left-overs are due later", {.leaving_since = leaving}, 10ms, Act::kShare, 90ms},
                    {"left-overs are due first", {.leaving_since = at(950ms)}, 960ms, Act::kShare, 40ms}});
}

TEST(HostAhead, AsksForWhatIsLikelyAndTheWindow) {
  struct Amounts {
    const char* what;
    std::uint64_t used_before, bytes, likely, used, expected;
  };
  constexpr std::uint64_t kWindow = HostAhead::kWindow;
  const Amounts rows[] = {
      {"all of it is constant", 0, kBytes, 0, 0, kWindow},
      {"some of it is likely to need memory", 5, kBytes, kWindow, 5, 2 * kWindow},
      {"never more than there is", 0, kWindow / 2, kWindow, 0, kWindow / 2},
      {"it takes more than was likely", kWindow, kBytes, 0, 4 * kWindow, 3 * kWindow},
      {"it takes far more", 0, kBytes, 0, 2 * kBytes, kBytes},
      {"copies were given back", kBytes, kBytes, 0, 0, kWindow},
  };
  for (const Amounts& row : rows) {
    HostAhead host;
    host.begin_eviction(row.used_before);
    EXPECT_EQ(host.ahead(row.bytes, row.likely, row.used), row.expected) << row.what;
  }
  EXPECT_EQ(HostAhead().ahead(kBytes, 0, kBytes), kWindow) << "no eviction is under way";
}

}  // namespace
}  // namespace gpumux::shim
