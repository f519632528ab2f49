// SPDX-License-Identifier: Apache-2.0
// Goal: managed memory that was told to leave stays away until its seat's next turn, or until no revocation has come.
// Method: a table of looks at one seat, in order, with what the pager thread does then.
#include "shim/memory/managed_move.h"

#include <gtest/gtest.h>

namespace gpumux::shim {
namespace {

using namespace std::chrono_literals;
using Decision = ManagedMove::Decision;

struct Row {
  const char* what;
  ManagedMove::View view;
  base::Duration at;
  Decision expected;
};

void expect_all(std::initializer_list<Row> rows) {
  ManagedMove move;
  for (const Row& row : rows) EXPECT_EQ(move.next(row.view, base::TimePoint(row.at)), row.expected) << row.what;
}

TEST(ManagedMove, ComesBackWithTheNextLease) {
  expect_all({
      {"the daemon tells it", {.told = 1, .has_lease = true, .epoch = 7}, 0ms, Decision::kLeave},
      {"the turn goes on", {.has_lease = true, .epoch = 7}, 1ms, Decision::kStay},
      {"the turn is over", {.epoch = 7}, 2ms, Decision::kStopComingBack},
      {"the turn was over for long", {.epoch = 7}, 1h, Decision::kStopComingBack},
      {"the next turn", {.has_lease = true, .epoch = 8}, 1h, Decision::kComeBack},
      {"the next turn is lost while it comes back", {.epoch = 8}, 1h, Decision::kStopComingBack},
      {"the daemon tells it again", {.told = 1, .has_lease = true, .epoch = 9}, 2h, Decision::kLeave},
      {"that counts from now on", {.has_lease = true, .epoch = 9}, 2h, Decision::kStay},
  });
}

TEST(ManagedMove, ComesBackIfNoRevocationComes) {
  expect_all({
      {"the daemon tells it", {.told = 1, .has_lease = true, .epoch = 7}, 1ms, Decision::kLeave},
      {"the hint holds", {.has_lease = true, .epoch = 7}, kHintHolds, Decision::kStay},
      {"the hint holds no longer", {.has_lease = true, .epoch = 7}, kHintHolds + 1ms, Decision::kComeBack},
      {"its time is over for good", {.has_lease = true, .epoch = 7}, 1h, Decision::kComeBack},
  });
}

TEST(ManagedMove, LeavesWithoutALease) {
  expect_all({
      {"the daemon tells it too late", {.told = 1, .epoch = 7}, 0ms, Decision::kLeave},
      {"it leaves all the same", {.epoch = 7}, 1ms, Decision::kStopComingBack},
      {"the next turn", {.has_lease = true, .epoch = 8}, 2ms, Decision::kComeBack},
  });
}

}  // namespace
}  // namespace gpumux::shim
