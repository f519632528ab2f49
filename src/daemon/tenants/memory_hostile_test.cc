// SPDX-License-Identifier: Apache-2.0
// Attacks on memory through the daemon's socket. Goal: others get the memory that they were promised, whatever tenants
// say.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "daemon/tenants/memory_test_support.h"

namespace gpumux::daemon::testing {
namespace {

// Another tenant goes on, whatever a tenant says about memory.
TEST(DaemonMemoryHostile, HostileNumbersHarmNobodyElse) {
  const TemporaryDirectory dir;
  TestDaemon daemon(TestDaemon::options_in(dir.path()));
  Tenant good(dir.path(), "good");
  ASSERT_TRUE(good.join() && good.open_seat(0, test_uuid(0)) && good.settle(has_any));
  {
    Tenant bad(dir.path(), "bad");
    ASSERT_TRUE(bad.join() && bad.open_seat(0, test_uuid(0)));
    wire::Memory absurd;
    std::ranges::fill(std::as_writable_bytes(std::span(&absurd, 1)), std::byte{0xff});
    absurd.slot = 0;
    EXPECT_TRUE(bad.send(absurd));
    absurd.slot = 63;  // not open
    EXPECT_TRUE(bad.send(absurd));
    for (std::uint32_t i = 1; i < 1000; ++i) {
      if (!bad.send(wire::RoomWanted{.slot = 0, .ticket = i * 4'000'000, .room = ~std::uint64_t{0}, .commitment = i}))
        break;
    }
  }
  for (const wire::RoomWanted wrong : {wire::RoomWanted{.slot = 64, .ticket = 1}, wire::RoomWanted{.slot = 0}}) {
    Tenant bad(dir.path(), "bad");
    ASSERT_TRUE(bad.join() && bad.open_seat(0, test_uuid(0)));
    EXPECT_TRUE(bad.send(wrong));
    EXPECT_TRUE(bad.is_dropped());
  }
  EXPECT_TRUE(good.say());
  EXPECT_TRUE(good.settle([](const wire::Room& room) { return room.room >= 70 * kGiB; }));
}

}  // namespace
}  // namespace gpumux::daemon::testing
