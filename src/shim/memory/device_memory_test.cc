// SPDX-License-Identifier: Apache-2.0
// Goal: a seat has no more than the daemon has said, from its first moment on, and tells what the pager does not know
// of.
#include "shim/memory/device_memory.h"

#include <gtest/gtest.h>

#include <thread>

namespace gpumux::shim {
namespace {

using namespace cuda;  // the fake's functions are the driver's
using pager::kMebibyte;

class NoPages final : public Pools::Port {
 public:
  CUresult take_segment(std::uint32_t, CUcontext, std::uint64_t, pager::Placement, CUdeviceptr*) override {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  void give_segment(std::uint32_t, CUdeviceptr) override {}
};

struct Seat {
  explicit Seat(const cuda::Driver& driver) : memory(driver, settings, 5, 3, pages) {}
  NoPages pages;
  const MemorySettings settings;
  DeviceMemory memory;
};

TEST(DeviceMemoryTest, WhatTheDriverHasForPoolsAndGraphsIsCounted) {
  cuda::Driver driver;
  driver.cuDeviceGetGraphMemAttribute = [](CUdevice device, CUgraphMem_attribute attribute, void* value) {
    EXPECT_EQ(device, 5);
    EXPECT_EQ(attribute, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    *static_cast<std::uint64_t*>(value) = 6 * kMebibyte;
    return CUDA_SUCCESS;
  };
  driver.cuMemPoolGetAttribute = [](CUmemoryPool, CUmemPool_attribute attribute, void* value) {
    EXPECT_EQ(attribute, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    *static_cast<std::uint64_t*>(value) = 4 * kMebibyte;
    return CUDA_SUCCESS;
  };
  Seat seat(driver);
  DeviceMemory& memory = seat.memory;
  const auto counted = [&](wire::Unpageable reason) {
    return memory.report(0, 0).unpageable[static_cast<std::size_t>(reason)];
  };
  memory.count_pool(reinterpret_cast<CUmemoryPool>(0x99));
  EXPECT_EQ(counted(wire::Unpageable::kPool), 4 * kMebibyte);
  EXPECT_EQ(counted(wire::Unpageable::kGraph), 0u) << "no graph is known to have memory of its own";
  memory.note_graph_memory();
  memory.count_pools();
  EXPECT_EQ(counted(wire::Unpageable::kGraph), 6 * kMebibyte);
  EXPECT_EQ(memory.allocated_bytes(), 10 * kMebibyte);
  memory.forget_pool(reinterpret_cast<CUmemoryPool>(0x99));
  EXPECT_EQ(counted(wire::Unpageable::kPool), 0u);
}

// A quota is in force before the daemon has spoken of it.
TEST(DeviceMemoryTest, NothingMayBeHadBeforeTheDaemonHasSaidHowMuch) {
  const cuda::Driver driver;
  Seat seat(driver);
  DeviceMemory& memory = seat.memory;
  EXPECT_FALSE(memory.pager.bounds().commit(kMebibyte));
  memory.add_outside(wire::Unpageable::kOther, 1, kMebibyte, nullptr, 0);
  EXPECT_FALSE(memory.pager.bounds().commit(kMebibyte));
  // A thread that wants some waits, and tries again; so does a thread that asks how much there is.
  std::uint64_t told = 0;
  std::thread asks([&] { told = memory.await_total(); });
  EXPECT_TRUE(memory.set_room(
      {.slot = 3, .sequence = 1, .room = 64 * kMebibyte, .commitment = 32 * kMebibyte, .total = 32 * kMebibyte}));
  asks.join();
  EXPECT_EQ(told, 32 * kMebibyte);
  EXPECT_FALSE(memory.pager.bounds().commit(32 * kMebibyte));
  EXPECT_TRUE(memory.pager.bounds().commit(31 * kMebibyte));
}

TEST(DeviceMemoryTest, WhatIsCalledFreeCanBeHadAndDoesNotGrowByItself) {
  const cuda::Driver driver;
  Seat seat(driver);
  DeviceMemory& memory = seat.memory;
  wire::Room room{.slot = 3, .sequence = 1, .commitment = 100 * kMebibyte, .total = 100 * kMebibyte};
  const auto with_most = [&](std::uint64_t mebibytes) {
    room.most = mebibytes * kMebibyte;
    EXPECT_TRUE(memory.set_room(room));
    ++room.sequence;
    return memory.told_free() / kMebibyte;
  };
  EXPECT_EQ(with_most(0), 100u) << "a daemon that does not say";
  EXPECT_EQ(with_most(90), 90u);
  EXPECT_EQ(with_most(300), 90u) << "others have left, and this program has freed nothing";
  memory.add_outside(wire::Unpageable::kOther, 1, 8 * kMebibyte, nullptr, 0);
  memory.add_outside(wire::Unpageable::kOther, 2, 2 * kMebibyte, nullptr, 0);
  EXPECT_EQ(with_most(95), 80u);
  EXPECT_EQ(with_most(50), 40u);
  EXPECT_EQ(with_most(8), 0u);
  EXPECT_TRUE(memory.remove_outside(2));
  EXPECT_EQ(with_most(95), 87u) << "it has freed something";
  EXPECT_EQ(with_most(100), 87u);
}

TEST(DeviceMemoryTest, WhatIsKeptBackForTheDriverCountsOnce) {
  const cuda::Driver driver;
  Seat seat(driver);
  DeviceMemory& memory = seat.memory;
  memory.set_room({.slot = 3,
                   .sequence = 1,
                   .room = 64 * kMebibyte,
                   .commitment = 32 * kMebibyte,
                   .total = 32 * kMebibyte,
                   .is_limited = 1});
  EXPECT_TRUE(memory.await_is_limited());
  EXPECT_TRUE(memory.pager.bounds().commit(20 * kMebibyte, pager::Bounds::Part::kReserved));
  EXPECT_FALSE(memory.pager.bounds().commit(20 * kMebibyte));
  EXPECT_FALSE(memory.pager.bounds().commit(20 * kMebibyte, pager::Bounds::Part::kReserved));
  // The driver has no room for it; the commitment asked for is the same memory. Another thread's is more.
  EXPECT_EQ(memory.wish({.room = 70 * kMebibyte}).message.commitment, 20 * kMebibyte);
  EXPECT_EQ(memory.wish({.commitment = 14 * kMebibyte}).message.commitment, 34 * kMebibyte);
  EXPECT_EQ(memory.wish({.commitment = 12 * kMebibyte}).otherwise, DeviceMemory::Wish::Otherwise::kEnough);
  EXPECT_EQ(memory.allocated_bytes(), 0u);
  memory.add_outside(wire::Unpageable::kOther, 1, 20 * kMebibyte, nullptr, 20 * kMebibyte);
  EXPECT_EQ(memory.allocated_bytes(), 20 * kMebibyte);
  EXPECT_FALSE(memory.pager.bounds().commit(13 * kMebibyte));
  EXPECT_TRUE(memory.pager.bounds().commit(12 * kMebibyte));
  // A few bytes are a few bytes where the driver packs them.
  EXPECT_EQ(memory.wish({.commitment = 100}).message.commitment, 32 * kMebibyte + 100);
}

// No process knows without a daemon what the others of its run have.
TEST(DeviceMemoryTest, AQuotaOutlivesItsDaemon) {
  using Otherwise = DeviceMemory::Wish::Otherwise;
  const cuda::Driver driver;
  wire::Room room{.slot = 3, .sequence = 1, .room = 64 * kMebibyte, .commitment = 8 * kMebibyte, .total = kMebibyte};
  Seat free(driver);
  free.memory.set_room(room);
  free.memory.unbind();
  EXPECT_EQ(free.memory.wish({.commitment = 9 * kMebibyte}).otherwise, Otherwise::kUnbounded);
  EXPECT_TRUE(free.memory.pager.bounds().commit(9 * kMebibyte));

  // A process that loses its daemon has the quota for itself.
  Seat limited(driver);
  room.is_limited = 1;
  room.total = 16 * kMebibyte;
  limited.memory.set_room(room);
  limited.memory.unbind();
  EXPECT_EQ(limited.memory.wish({.commitment = 17 * kMebibyte}).otherwise, Otherwise::kNoMore);
  EXPECT_FALSE(limited.memory.pager.bounds().commit(17 * kMebibyte));
  EXPECT_EQ(limited.memory.told_free(), 16 * kMebibyte);
  // The driver alone says whether there is room for it.
  EXPECT_EQ(limited.memory.wish({.room = 80 * kMebibyte, .commitment = 16 * kMebibyte}).otherwise,
            Otherwise::kUnbounded);
  EXPECT_TRUE(limited.memory.pager.bounds().commit(10 * kMebibyte));
  EXPECT_EQ(limited.memory.told_free(), 6 * kMebibyte);
}

// The daemon may refuse 600 MiB to one thread and give 2 MiB to another one of the same process.
TEST(DeviceMemoryTest, ARefusalIsForTheThreadThatAsked) {
  const cuda::Driver driver;
  Seat seat(driver);
  DeviceMemory& memory = seat.memory;
  wire::Room room{.slot = 3, .sequence = 1, .room = 64 * kMebibyte, .commitment = 64 * kMebibyte};
  memory.set_room(room);
  std::uint32_t first = 0;
  std::uint32_t refused = 0;
  std::thread large([&] {
    const base::Locked asking(memory.asking);
    first = memory.wish({.commitment = 600 * kMebibyte}).ticket;
    refused = memory.await(first);
  });
  while (memory.open_wish().ticket == 0) std::this_thread::yield();
  std::uint32_t refused_to_small = wire::kTooMuch;
  std::thread small([&] {
    const base::Locked asking(memory.asking);
    refused_to_small = memory.await(memory.wish({.commitment = 66 * kMebibyte}).ticket);
  });
  // The small wish is not open while the large one is: the only one to be refused is the large one's.
  const std::uint32_t ticket = memory.open_wish().ticket;
  memory.set_room({.slot = 3,
                   .sequence = 2,
                   .room = room.room,
                   .commitment = room.commitment,
                   .ticket = ticket,
                   .refused = wire::kTooMuch});
  large.join();
  EXPECT_EQ(ticket, first);
  EXPECT_EQ(refused, wire::kTooMuch);
  while (memory.open_wish().ticket == 0) std::this_thread::yield();
  memory.set_room(
      {.slot = 3, .sequence = 3, .room = room.room, .commitment = 66 * kMebibyte, .ticket = memory.open_wish().ticket});
  small.join();
  EXPECT_EQ(refused_to_small, 0u);
}

}  // namespace
}  // namespace gpumux::shim
