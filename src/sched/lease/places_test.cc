// SPDX-License-Identifier: Apache-2.0
#include "sched/lease/places.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <utility>

namespace gpumux::sched {
namespace {

constexpr auto kExclusive = LeaseKind::kExclusive;
constexpr auto kShared = LeaseKind::kShared;

Places taken(std::initializer_list<std::pair<LeaseKind, Occupancy>> seats) {
  Places places;
  for (const auto& [kind, place] : seats) places.move(kind, Occupancy::kNone, place);
  return places;
}

TEST(Places, SeatsWithoutAPlaceAreNotCounted) {
  Places places = taken({{kExclusive, Occupancy::kHolding}, {kShared, Occupancy::kNone}});
  EXPECT_EQ(places.count(Occupancy::kNone), 0u);
  places.move(kExclusive, Occupancy::kHolding, Occupancy::kOverlapping);
  EXPECT_EQ(places, taken({{kExclusive, Occupancy::kOverlapping}}));
  EXPECT_EQ(places.leaving(), 1u);
  places.move(kExclusive, Occupancy::kOverlapping, Occupancy::kNone);
  EXPECT_EQ(places, Places());
}

TEST(Places, AnExclusiveLeaseStartsBesideOneDrainAtMost) {
  EXPECT_TRUE(Places().can_start(kExclusive, false));
  EXPECT_FALSE(taken({{kExclusive, Occupancy::kHolding}}).can_start(kExclusive, true));
  EXPECT_FALSE(taken({{kExclusive, Occupancy::kBlocking}}).can_start(kExclusive, true));
  const Places drains = taken({{kExclusive, Occupancy::kOverlapping}});
  EXPECT_TRUE(drains.can_start(kExclusive, true));
  EXPECT_FALSE(drains.can_start(kExclusive, false)) << "the settings forbid it";
  EXPECT_FALSE(taken({{kExclusive, Occupancy::kOverlapping}, {kExclusive, Occupancy::kOverlapping}})
                   .can_start(kExclusive, true));
}

TEST(Places, AnExclusiveLeaseWaitsForAllSharedOnesAndASharedOneForNone) {
  for (const Occupancy place : {Occupancy::kHolding, Occupancy::kBlocking, Occupancy::kOverlapping}) {
    const Places shared = taken({{kShared, place}});
    EXPECT_FALSE(shared.can_start(kExclusive, true));
    EXPECT_TRUE(shared.can_start(kShared, false));
  }
}

}  // namespace
}  // namespace gpumux::sched
