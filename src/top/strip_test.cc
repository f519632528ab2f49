// SPDX-License-Identifier: Apache-2.0
// Goal: the timeline's cells say which program held the GPU, where it was switched, and what was at once.
// Method: turns written by hand on a scale of ten cells of one second.
#include "top/strip.h"

#include <gtest/gtest.h>

#include "top/sample.h"

namespace gpumux::top {
namespace {

using namespace std::chrono_literals;
using Kind = StripCell::Kind;
using Turn = cli::TraceHistory::Turn;

// Ten cells from 101 s to 111 s.
TimeScale scale() { return {at(110.5), 10s, 10}; }
Turn turn(std::uint64_t tenant, double from, double to) {
  return {tenant, tenant == 7 ? "alpha" : "beta", at(from), at(to)};
}

TEST(TimeScale, CellsStayWhileTimePasses) {
  const TimeScale first(at(110.1), 10s, 10);
  const TimeScale later(at(110.9), 10s, 10);
  EXPECT_EQ(first.begin, at(101));
  EXPECT_EQ(later.begin, first.begin);
  EXPECT_EQ(later.cell, base::Duration(1s));
  EXPECT_EQ(TimeScale(at(111.0), 10s, 10).begin, at(102));
  EXPECT_EQ(TimeScale(at(1), 10s, 0).width, 0u);
}

TEST(Strip, SaysWhichProgramHeldTheGpu) {
  const auto cells = strip_of({turn(7, 90, 103), turn(8, 104, 105.6)}, scale());
  ASSERT_EQ(cells.size(), 10u);
  EXPECT_EQ(cells[0].tenant, 7u);
  EXPECT_EQ(cells[0].program, "alpha");
  EXPECT_EQ(cells[0].kind, Kind::kOne);
  EXPECT_TRUE(cells[1].continues(cells[0]));
  EXPECT_EQ(cells[2].kind, Kind::kNobody);
  EXPECT_EQ(cells[3].tenant, 8u);
  EXPECT_FALSE(cells[3].continues(cells[2]));
  EXPECT_TRUE(cells[4].continues(cells[3]));
  EXPECT_EQ(cells[5].kind, Kind::kNobody);
}

TEST(Strip, ASwitchWithinACellBelongsToTheLonger) {
  const auto cells = strip_of({turn(7, 101, 101.4), turn(8, 101.4, 103)}, scale());
  EXPECT_EQ(cells[0].tenant, 8u);
  EXPECT_EQ(cells[0].kind, Kind::kOne);
}

TEST(Strip, ManySwitchesAreSeveralAndNotAtOnce) {
  std::vector<Turn> turns;
  for (int i = 0; i < 10; ++i) turns.push_back(turn(i % 2 == 0 ? 7 : 8, 103 + i * 0.1, 103.1 + i * 0.1));
  EXPECT_EQ(strip_of(turns, scale())[2].kind, Kind::kSeveral);
}

TEST(Strip, SharedLeasesAreAtOnce) {
  const auto cells = strip_of({turn(7, 101, 104), turn(8, 101, 104)}, scale());
  EXPECT_EQ(cells[0].kind, Kind::kTogether);
  EXPECT_TRUE(cells[1].continues(cells[0]));
}

TEST(Strip, ProgramsAtOnceWithPausesAreAtOnce) {
  EXPECT_EQ(strip_of({turn(7, 101, 101.3), turn(8, 101.1, 101.4), turn(9, 101.1, 101.3)}, scale())[0].kind,
            Kind::kTogether);
}

TEST(Lane, HasOneTenantsParts) {
  const auto lane = lane_of({turn(7, 101.5, 103), turn(8, 101, 101.5)}, 7, scale());
  EXPECT_EQ(lane[0], base::Duration(500ms));
  EXPECT_EQ(lane[1], base::Duration(1s));
  EXPECT_EQ(lane[2], base::Duration(0));
}

TEST(ShareCells, NeverMoreThanThereAre) {
  EXPECT_EQ(share_cells({50, 25, 25}, 100, 20), (std::vector<std::size_t>{10, 5, 5}));
  EXPECT_EQ(share_cells({1, 0, 99}, 100, 20), (std::vector<std::size_t>{1, 0, 19}));
  EXPECT_EQ(share_cells({80, 80}, 100, 10), (std::vector<std::size_t>{8, 2}));
  EXPECT_EQ(share_cells({1, 1, 1}, 3, 2), (std::vector<std::size_t>{1, 1, 0}));
  EXPECT_EQ(share_cells({5}, 0, 10), (std::vector<std::size_t>{0}));
}

}  // namespace
}  // namespace gpumux::top
