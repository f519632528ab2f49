// SPDX-License-Identifier: Apache-2.0
#include "sched/memory/plan.h"

#include <string>

#include "sched/testing/planner_test_support.h"

namespace gpumux::sched {
namespace {

using enum TurnKind;

// The first seat comes back with 30 GiB, and the others have 40 each.
TEST(Plan, EvictsTheSeatWhoseTurnIsFurthestAway) {
  struct Row {
    const char* name;
    TurnKind turns[3];
    std::uint64_t fair[3];
  };
  const Row rows[] = {
      {"the holder gets what it lacks from the last one", {kHolding, kNext, kWaiting}, {30, 40, 10}},
      {"a seat that is next gets it, too", {kNext, kWaiting, kIdle}, {30, 40, 10}},
      {"one that only waits gets nothing back", {kWaiting, kIdle, kIdle}, {0, 40, 40}},
      {"holders keep what they have", {kNext, kHolding, kHolding}, {0, 40, 40}},
      {"and so do seats whose work has not ended", {kHolding, kIdle, kHeldBack}, {30, 10, 40}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    OneGpuAccounts one;
    one.add(1, row.turns[0], 0, 30);
    one.add(2, row.turns[1], 40);
    one.add(3, row.turns[2], 40);
    const auto plans = make_plan(one.accounts, one.gpu, one.order);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(plans[i].fair / kGiB, row.fair[i]) << "seat " << i + 1;
  }
}

TEST(Plan, RaisesNoRoomBeforeOthersHaveConfirmedLess) {
  OneGpuAccounts one;
  one.add(1, kHolding, 0, 60);
  SeatAccount& other = one.add(2, kIdle, 60);
  const auto plans = make_plan(one.accounts, one.gpu, one.order);
  EXPECT_EQ(plans[0].room / kGiB, 20u) << "there is no more yet";
  EXPECT_EQ(plans[1].room / kGiB, 20u) << "told less at once";
  // It has been told less, and has evicted.
  other.report.resident = 20 * kGiB;
  other.report.evicted = 40 * kGiB;
  other.bounds = {{.sequence = 2, .room = 20 * kGiB, .commitment = 60 * kGiB}};
  EXPECT_EQ(make_plan(one.accounts, one.gpu, one.order)[0].room / kGiB, 60u);
}

TEST(Plan, ASeatThatDoesNotAnswerGetsNothingToSpare) {
  OneGpuAccounts one;
  one.add(1, kHolding, 10);
  SeatAccount& silent = one.add(2, kIdle, 10);
  EXPECT_GT(make_plan(one.accounts, one.gpu, one.order)[1].room, 20 * kGiB);
  silent.bounds.push_back(
      {.sequence = 2, .room = 10 * kGiB, .commitment = 10 * kGiB, .told_at = one.accounts.now - kAnswerPatience});
  EXPECT_EQ(make_plan(one.accounts, one.gpu, one.order)[1].room, 10 * kGiB);
}

TEST(Plan, ASuspendedSeatIsToldOnlyToGiveUpWhatCanLeave) {
  OneGpuAccounts one;
  one.add(1, kSuspended, 10, 0, 5).suspended = true;
  const auto plans = make_plan(one.accounts, one.gpu, one.order);
  EXPECT_EQ(plans[0].room / kGiB, 5u);
  EXPECT_EQ(plans[0].commitment / kGiB, 15u);
}

// 180 GiB can be promised, and the seats have 100 and 20.
TEST(Plan, AWishIsPromisedBeforeAnythingIsSpared) {
  struct Row {
    const char* name;
    std::uint64_t first, second;  // wished for, in all
    std::uint64_t promised[2];
  };
  const Row rows[] = {
      {"both fit", 130, 50, {130, 50}},
      {"the account with less than its part comes first", 150, 70, {100, 70}},
      {"the other one, if only that fits", 150, 190, {150, 20}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    OneGpuAccounts one;
    SeatAccount& first = one.add(1, kHolding, 60, 40);
    SeatAccount& second = one.add(2, kIdle, 0, 20);
    second.account = 2;
    // So that no wish is more than the GPU holds.
    for (SeatAccount* const seat : one.order) seat->report.managed = 110 * kGiB;
    OneGpuAccounts::wish(first, 0, row.first, one.accounts.now);
    OneGpuAccounts::wish(second, 0, row.second, one.accounts.now);
    const auto plans = make_plan(one.accounts, one.gpu, one.order);
    EXPECT_EQ(plans[0].commitment / kGiB, row.promised[0]);
    EXPECT_EQ(plans[1].commitment / kGiB, row.promised[1]);
  }
}

}  // namespace
}  // namespace gpumux::sched
