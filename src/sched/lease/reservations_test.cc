// SPDX-License-Identifier: Apache-2.0
// Reservations by themselves: which of several gangs has its GPUs kept free.
#include "sched/lease/reservations.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <vector>

namespace gpumux::sched {
namespace {

using std::chrono::milliseconds;

class ReservationsTest : public ::testing::Test {
 protected:
  ReservationsTest() {
    for (std::uint32_t index = 0; index < 3; ++index) {
      gpus_.push_back(&all_gpus_.emplace_back());
      gpus_.back()->index = GpuIndex{index};
    }
  }

  // A gang of one seat on each of these GPUs, which asked at this moment.
  Unit& gang(std::vector<std::uint32_t> indices, int asked) {
    Unit& unit = units_.emplace_back();
    unit.serial = units_.size();
    unit.requested = TimePoint() + milliseconds(asked);
    for (const std::uint32_t index : indices) {
      Seat& seat = seats_.emplace_back();
      seat.id = SeatId{TenantId{units_.size()}, GpuIndex{index}};
      seat.unit = &unit;
      unit.seats.push_back(&seat);
      unit.gpus.push_back({.gpu = gpus_[index], .lead = &seat});
    }
    unit.shape = &shapes_.try_emplace(indices, std::vector<Gpu*>()).first->second;
    return unit;
  }

  std::vector<const Unit*> reserved() const {
    return {gpus_[0]->reserved(), gpus_[1]->reserved(), gpus_[2]->reserved()};
  }
  using Units = std::vector<const Unit*>;

  std::deque<Gpu> all_gpus_;
  std::vector<Gpu*> gpus_;
  std::deque<Seat> seats_;
  std::map<std::vector<std::uint32_t>, Shape> shapes_;
  std::deque<Unit> units_;
  Reservations reservations_;
};

TEST_F(ReservationsTest, AGangHasAllItsGpusKeptFreeOrNone) {
  Unit& later = gang({0, 1}, 20);
  Unit& earlier = gang({1, 2}, 10);
  reservations_.add_aged(later);
  reservations_.add_aged(earlier);
  ASSERT_TRUE(reservations_.is_stale());
  GpuSet changed = reservations_.renew(gpus_);
  EXPECT_FALSE(reservations_.is_stale());
  EXPECT_EQ(reserved(), (Units{nullptr, &earlier, &earlier}));
  EXPECT_EQ(changed.take_first(), 1u);
  EXPECT_EQ(changed.take_first(), 2u);
  EXPECT_TRUE(changed.empty());

  reservations_.remove(earlier);
  EXPECT_EQ(reserved(), (Units{nullptr, nullptr, nullptr}));
  reservations_.renew(gpus_);
  EXPECT_EQ(reserved(), (Units{&later, &later, nullptr}));
}

TEST_F(ReservationsTest, UnitsMatterWhileAGangHasWaitedLong) {
  Unit& unit = gang({0, 1}, 10);
  reservations_.units_changed();
  EXPECT_FALSE(reservations_.is_stale());
  reservations_.add_aged(unit);
  reservations_.renew(gpus_);
  reservations_.add_aged(unit);
  EXPECT_FALSE(reservations_.is_stale()) << "it was there already";
  EXPECT_TRUE(reservations_.is_aged(unit));
  reservations_.units_changed();
  EXPECT_TRUE(reservations_.is_stale());
  reservations_.remove(unit);
  EXPECT_FALSE(reservations_.is_aged(unit));
}

}  // namespace
}  // namespace gpumux::sched
