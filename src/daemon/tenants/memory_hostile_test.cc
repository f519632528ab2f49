// SPDX-License-Identifier: Apache-2.0
// Attacks on memory through the daemon's socket. Goal: others get the memory that they were promised, whatever tenants
// say, borrow and keep. Method: a daemon with small GPUs and 64 MiB of host memory. Attackers go as far as it lets
// them, and tenants ask for their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "daemon/tenants/memory_test_support.h"

namespace gpumux::daemon::testing {
namespace {

// Attack: a tenant of any user that has no seat, has closed it, or has nothing there, asks for host memory in a loop.
TEST(DaemonMemoryHostile, ALoopOfRequestsTakesNoHostMemoryFromOthers) {
  const TemporaryDirectory dir;
  auto options = TestDaemon::options_in(dir.path());
  options.config.host_memory = "64M";
  TestDaemon daemon(std::move(options));
  constexpr std::uint64_t kChunk = 4 << 20;
  Tenant bad(dir.path(), "bad");
  ASSERT_TRUE(bad.join());
  EXPECT_EQ(borrow_all(bad), 0u) << "without a seat";
  ASSERT_TRUE(bad.open_seat(0, test_uuid(0)) && bad.say());
  EXPECT_LE(borrow_all(bad).value_or(UINT64_MAX), kChunk) << "with nothing on the GPU";
  ASSERT_TRUE(bad.send(wire::SeatClose{.slot = 0}));
  EXPECT_EQ(borrow_all(bad), 0u) << "after its seat is closed";
  Tenant good(dir.path(), "good");
  ASSERT_TRUE(good.join() && good.open_seat(0, test_uuid(0)) && good.has(1));
  EXPECT_EQ(borrow_all(good), (64 << 20) - 2 * kChunk) << "one has the bad tenant, one is reserved for other accounts";
}

// `bytes` can be evicted, and are.
bool has_evicted(Tenant& tenant, std::uint64_t bytes) {
  tenant.memory.evicted = bytes;
  return tenant.say();
}

// Attack: seats say that they have allocated more than they were promised, and borrow for it. Memory that other seats
// are promised can still be evicted.
TEST(DaemonMemoryHostile, SeatsThatSayTheyHaveMoreBorrowNoMore) {
  const TemporaryDirectory dir;
  auto options = TestDaemon::options_in(dir.path());
  options.config.host_memory = "64M";
  TestDaemon daemon(std::move(options), std::make_unique<SmallGpu>());
  constexpr std::uint64_t kEach = 15 << 20;
  std::vector<std::unique_ptr<Tenant>> good, bad;
  const auto open = [&](std::vector<std::unique_ptr<Tenant>>& tenants, std::uint64_t bytes) {
    Tenant& tenant = *tenants.emplace_back(std::make_unique<Tenant>(dir.path()));
    return tenant.join() && tenant.open_seat(0, test_uuid(0)) && has_evicted(tenant, bytes);
  };
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(open(good, kEach));
  // They take note of what is no longer to spare.
  ASSERT_TRUE(eventually([&] {
    for (const auto& tenant : good) tenant->step();
    return std::ranges::all_of(good, [](const auto& tenant) { return tenant->room.commitment == kEach; });
  }));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(open(bad, SmallGpu::kBytes));
  for (const auto& tenant : bad) borrow_all(*tenant);
  std::uint64_t lent = 0;
  for (const auto& tenant : good) lent += borrow_all(*tenant).value_or(0);
  constexpr std::uint64_t kRounding = 4 << 20;  // of what each seat may borrow, to whole chunks
  EXPECT_GE(lent + bad.size() * kRounding, 3 * kEach - SmallGpu::kBytes) << "what the GPU cannot hold";
  EXPECT_GE(lent, kEach);
}

// Attack: a seat's memory fits on its GPU, and it borrows as much again for copies, and keeps them. Memory that seats
// on another GPU are promised can still be evicted.
TEST(DaemonMemoryHostile, CopiesAreOfWhatPromisesOnOtherGpusLeave) {
  const TemporaryDirectory dir;
  auto options = TestDaemon::options_in(dir.path());
  options.config.host_memory = "64M";
  TestDaemon daemon(std::move(options), std::make_unique<SmallGpu>(2, 64 << 20));
  Tenant first(dir.path()), second(dir.path()), hoarder(dir.path());
  for (Tenant* tenant : {&first, &second}) {
    ASSERT_TRUE(tenant->join() && tenant->open_seat(0, test_uuid(1)) && has_evicted(*tenant, 40 << 20));
  }
  // They take note of what is no longer to spare.
  ASSERT_TRUE(eventually([&] {
    for (Tenant* tenant : {&first, &second}) tenant->step();
    return first.room.commitment == 40 << 20 && second.room.commitment == 40 << 20;
  }));
  ASSERT_TRUE(hoarder.join() && hoarder.open_seat(0, test_uuid(0)) && has_evicted(hoarder, 50 << 20));
  const std::uint64_t hoarded = borrow_all(hoarder).value_or(0);
  EXPECT_GE(hoarded, 20u << 20) << "what others are not promised";
  const std::uint64_t lent = borrow_all(first).value_or(0) + borrow_all(second).value_or(0);
  EXPECT_GE(lent, (80u << 20) - (64u << 20)) << "what their GPU cannot hold";
}

// Attack: seats borrow, free what they have, and keep what they were lent. It is promised to no other seat before it is
// back, and they are asked for it.
TEST(DaemonMemoryHostile, WhatSeatsKeepInVainIsPromisedToNobody) {
  const TemporaryDirectory dir;
  auto options = TestDaemon::options_in(dir.path());
  options.config.host_memory = "64M";
  TestDaemon daemon(std::move(options), std::make_unique<SmallGpu>());
  std::vector<std::unique_ptr<Tenant>> keepers;
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < 3; ++i) {
    Tenant& tenant = *keepers.emplace_back(std::make_unique<Tenant>(dir.path()));
    ASSERT_TRUE(tenant.join() && tenant.open_seat(0, test_uuid(0)) && has_evicted(tenant, 15 << 20));
    for (auto loan = borrow(tenant); loan.bytes != 0; loan = borrow(tenant)) ids.push_back(loan.id);
    ASSERT_TRUE(has_evicted(tenant, 0));
  }
  ASSERT_GE(ids.size(), 10u);
  std::vector<std::unique_ptr<Tenant>> good;
  for (int i = 0; i < 2; ++i) {
    Tenant& tenant = *good.emplace_back(std::make_unique<Tenant>(dir.path()));
    ASSERT_TRUE(tenant.join() && tenant.open_seat(0, test_uuid(0)) && tenant.say());
    ASSERT_TRUE(tenant.send(wire::RoomWanted{.slot = 0, .ticket = 1, .room = 0, .commitment = 13 << 20}));
  }
  EXPECT_TRUE(eventually([&] {
    const auto spare = keepers.front()->receive_a<wire::HostSpare>();
    return spare && spare->awaited != 0;
  }));
  // The keepers take note of lower bounds. There is enough for what one good tenant wants, and not for both.
  const auto with_answer = [&] {
    return std::ranges::count_if(good, [](const auto& tenant) { return tenant->room.ticket == 1; });
  };
  EXPECT_TRUE(eventually([&] {
    for (const auto& tenant : keepers) tenant->step();
    for (const auto& tenant : good) tenant->step();
    const auto has_little = [](const auto& tenant) { return tenant->room.commitment < 4 << 20; };
    return with_answer() != 0 && std::ranges::all_of(keepers, has_little);
  }));
  for (const auto& tenant : keepers) borrow(*tenant);  // so that all this has been read
  for (const auto& tenant : good) {
    ASSERT_TRUE(tenant->send(wire::HostWanted{.slot = 0, .bytes = 1}));
    for (bool is_read = false; !is_read;) {
      const auto message = tenant->receive(10s);
      ASSERT_TRUE(message);
      if (const auto* room = std::get_if<wire::Room>(&*message)) tenant->room = *room;
      is_read = std::holds_alternative<wire::HostLent>(*message);
    }
  }
  EXPECT_EQ(with_answer(), 1) << "it is not back yet";
  for (const std::uint64_t id : ids) {
    for (const auto& tenant : keepers) ASSERT_TRUE(tenant->send(wire::HostReturned{.id = id}));
  }
  for (const auto& tenant : good) {
    EXPECT_TRUE(tenant->settle([](const wire::Room& room) { return room.ticket == 1; }));
    EXPECT_EQ(tenant->room.refused, 0u);
  }
}

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
