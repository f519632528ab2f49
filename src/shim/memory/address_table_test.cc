// SPDX-License-Identifier: Apache-2.0
// Goal: what is reserved and free is known to the byte, and memory of the driver's own is counted as long as anything
// keeps it. Method: the edges, and a driver's handle let go of in every order.
#include "shim/memory/address_table.h"

#include <gtest/gtest.h>

namespace gpumux::shim {
namespace {

TEST(AddressTable, ReservationsNextToEachOtherAreAsGoodAsOne) {
  AddressTable table;
  table.reserve(100, 50);
  table.reserve(150, 10);
  table.reserve(200, 10);
  EXPECT_TRUE(table.is_reserved(100, 60));
  EXPECT_TRUE(table.is_reserved(159, 1));
  EXPECT_FALSE(table.is_reserved(100, 61));
  EXPECT_FALSE(table.is_reserved(99, 2));
  EXPECT_FALSE(table.is_reserved(160, 1));
  EXPECT_EQ(table.reservation_of(209)->address, 200u);
  EXPECT_FALSE(table.reservation_of(210));
  table.unreserve(150);
  EXPECT_FALSE(table.is_reserved(149, 2));
}

TEST(AddressTable, FindsWhatIsMappedInAnyPart) {
  AddressTable table;
  table.add({100, 10, nullptr, 1});
  table.add({110, 10, nullptr, 1});
  table.add({140, 10, nullptr, 1});
  const auto count = [&](cuda::CUdeviceptr address, std::uint64_t bytes) { return table.in(address, bytes).size(); };
  EXPECT_EQ(count(100, 50), 3u);
  EXPECT_EQ(count(109, 1), 1u);
  EXPECT_EQ(count(109, 2), 2u);
  EXPECT_EQ(count(120, 20), 0u);
  EXPECT_EQ(count(119, 22), 2u);
  EXPECT_EQ(count(0, 100), 0u);
  EXPECT_EQ(count(0, 101), 1u);
  EXPECT_EQ(count(150, UINT64_MAX - 150), 0u);
  EXPECT_EQ(table.in(105, 40).front().address, 100u) << "in the order of addresses";
}

TEST(AddressTable, MemoryLivesAsLongAsAHandleOrAMapping) {
  AddressTable table;
  table.created(7);
  table.add({100, 10, nullptr, 7});
  table.add({200, 10, nullptr, 7});
  table.retained(7);
  EXPECT_FALSE(table.released(7));
  EXPECT_FALSE(table.released(7)) << "mapped";
  EXPECT_EQ(table.remove(100), 0u);
  EXPECT_EQ(table.remove(100), 0u) << "it is gone already";
  EXPECT_EQ(table.remove(200), 7u);
  table.created(7);
  table.add({100, 10, nullptr, 7});
  EXPECT_EQ(table.remove(100), 0u) << "there is a handle";
  EXPECT_TRUE(table.released(7));
  EXPECT_FALSE(table.released(7));
  table.add({100, 10, nullptr, 8});
  EXPECT_EQ(table.remove(100), 0u) << "imported: counted by nobody here";
  table.retained(8);
  EXPECT_FALSE(table.released(8));
}

}  // namespace
}  // namespace gpumux::shim
