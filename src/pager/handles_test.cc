// SPDX-License-Identifier: Apache-2.0
// Goal: memory that the program creates and maps by itself behaves as the driver's own, and pages. Across evictions,
// what it reads at each address is what was written at any of them. Its rights are as the program gave them. Method:
// the simulated driver's kernels, which fault on what is not mapped or not allowed; its capacity before and after; its
// failures at every call.
#include <unistd.h>

#include <thread>

#include "pager/pager_test_support.h"

namespace gpumux::pager {
namespace {

using namespace cuda;

constexpr std::uint64_t kBytes = 10 * kMebibyte;  // three chunks, the last one smaller

class HandlesTest : public PagerTest {
 protected:
  static CUmemAllocationProp properties(CUmemAllocationHandleType types = CU_MEM_HANDLE_TYPE_NONE) {
    CUmemAllocationProp made{};
    made.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    made.requestedHandleTypes = types;
    made.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    return made;
  }
  std::uint64_t create(std::uint64_t bytes = kBytes, Placement placement = Placement::kResident,
                       CUmemAllocationHandleType types = CU_MEM_HANDLE_TYPE_NONE) {
    std::uint64_t handle = 0;
    EXPECT_CUDA(pager().create_handle(bytes, properties(types), placement, &handle));
    return handle;
  }
  static CUdeviceptr reserve(std::uint64_t bytes = kBytes) {
    CUdeviceptr address = 0;
    EXPECT_CUDA(simulated_driver().cuMemAddressReserve(&address, bytes, 0, 0, 0));
    return address;
  }
  CUresult allow(CUdeviceptr address, CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE, int device = 0) {
    const CUmemAccessDesc right{{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
    return pager().set_access(address, &right, 1);
  }
  CUdeviceptr mapped(std::uint64_t handle, std::uint64_t bytes = kBytes) {
    const CUdeviceptr address = reserve(bytes);
    EXPECT_CUDA(pager().map_handle(handle, address));
    EXPECT_CUDA(allow(address));
    return address;
  }
  void expect_words(CUdeviceptr address, const std::vector<std::uint32_t>& words) {
    EXPECT_EQ(read(address, words.size()), words);
  }
};

TEST_F(HandlesTest, WhatIsWrittenIsReadAfterwards) {
  const std::uint64_t handle = create();
  const CUdeviceptr address = mapped(handle);
  const auto words = random_words(kBytes, 1);
  write(address, words);
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_EQ(freed_, kBytes);
  EXPECT_EQ(pager().evicted_bytes(), kBytes);
  ASSERT_EQ(restore(), JobState::kDone);
  expect_words(address, words);
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_EQ(pager().counters().moved.saved_clean, kBytes) << "unchanged since restored";
}

TEST_F(HandlesTest, TheCommonWayCostsNoMoreCallsThanTheProgramsOwn) {
  const std::uint64_t handle = create();
  mapped(handle);
  const std::uint64_t maps = the_faults()["cuMemMap"]->calls;
  const std::uint64_t rights = the_faults()["cuMemSetAccess"]->calls;
  EXPECT_EQ(maps, 3u) << "one for each chunk";
  EXPECT_EQ(rights, 1u) << "all at once";
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(the_faults()["cuMemMap"]->calls, maps + 3);
  EXPECT_EQ(the_faults()["cuMemSetAccess"]->calls, rights + 3);
}

TEST_F(HandlesTest, WhatNobodyCanReachHoldsNobodyUp) {
  const std::uint64_t before = sim::free_bytes();
  const std::uint64_t handle = create(kBytes, Placement::kEvicted);
  EXPECT_EQ(sim::free_bytes(), before);
  EXPECT_EQ(pager().bounds().committed(), kBytes);
  EXPECT_EQ(pager().evicted_bytes(), 0u);
  const CUdeviceptr address = reserve();
  EXPECT_CUDA(pager().map_handle(handle, address));
  EXPECT_EQ(pager().evicted_bytes(), 0u) << "mapped, and without rights";
  EXPECT_CUDA(allow(address, CU_MEM_ACCESS_FLAGS_PROT_READ));
  EXPECT_EQ(pager().evicted_bytes(), kBytes);
  EXPECT_CUDA(allow(address, CU_MEM_ACCESS_FLAGS_PROT_NONE));
  EXPECT_EQ(pager().evicted_bytes(), 0u);
  pager().want_handle(handle, true);
  EXPECT_EQ(pager().evicted_bytes(), kBytes) << "somebody wants it there";
  pager().want_handle(handle, false);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(sim::free_bytes(), before) << "nobody needs it";
  EXPECT_CUDA(allow(address));
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(before - sim::free_bytes(), kBytes);
  EXPECT_CUDA(fill(nullptr, address, kBytes / 4, 3));
  EXPECT_CUDA(simulated_driver().cuCtxSynchronize());
}

// A process may create memory, export it and leave the rest to others.
TEST_F(HandlesTest, WhatWasNeverWrittenIsBroughtToTheGpu) {
  const std::uint64_t handle = create(kBytes, Placement::kEvicted, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  pager().want_handle(handle, true);
  ASSERT_EQ(pager().evicted_bytes(), kBytes);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(pager().evicted_bytes(), 0u);
  std::vector<DriverPiece> pieces;
  EXPECT_CUDA(pager().pin_handle(handle, PinReason::kExported, &pieces));
  EXPECT_EQ(pieces.size(), 1u);
  pager().want_handle(handle, false);
}

TEST_F(HandlesTest, MovesToOtherAddressesWithItsContent) {
  const std::uint64_t handle = create();
  const CUdeviceptr first = mapped(handle);
  const auto words = random_words(kBytes, 2);
  write(first, words);
  EXPECT_CUDA(simulated_driver().cuCtxSynchronize());
  EXPECT_CUDA(pager().unmap_handle(first));
  EXPECT_EQ(pager().unmap_handle(first), CUDA_ERROR_INVALID_VALUE);
  // Nothing of the program's maps it now, and it has content.
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_EQ(freed_, kBytes);
  EXPECT_EQ(pager().evicted_bytes(), 0u);
  const CUdeviceptr second = mapped(handle);
  EXPECT_EQ(pager().evicted_bytes(), kBytes);
  ASSERT_EQ(restore(), JobState::kDone);
  expect_words(second, words);
  // Elsewhere while it is away.
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_CUDA(pager().unmap_handle(second));
  const CUdeviceptr third = mapped(handle);
  ASSERT_EQ(restore(), JobState::kDone);
  expect_words(third, words);
  EXPECT_FALSE(pager().find_mapping(second));
  EXPECT_EQ(pager().find_mapping(third + 5)->address, third);
}

TEST_F(HandlesTest, TwoMappingsAreTheSameMemory) {
  const std::uint64_t handle = create();
  const CUdeviceptr first = mapped(handle);
  const CUdeviceptr second = mapped(handle);
  for (std::uint32_t round = 1; round < 4; ++round) {
    EXPECT_CUDA(fill(nullptr, round % 2 == 0 ? second : first, kBytes / 4, 7 * round));
    EXPECT_CUDA(simulated_driver().cuCtxSynchronize());
    ASSERT_EQ(evict(), JobState::kDone);
    ASSERT_EQ(restore(), JobState::kDone);
    EXPECT_EQ(read(round % 2 == 0 ? first : second, 1).front(), 7 * round);
  }
  // A third, made while one chunk of three is away.
  ASSERT_EQ(evict(kMebibyte), JobState::kDone);
  const CUdeviceptr third = mapped(handle);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(third, kBytes / 4), std::vector<std::uint32_t>(kBytes / 4, 21));
  EXPECT_CUDA(pager().unmap_handle(first));
  EXPECT_CUDA(increment(nullptr, second, 1));
  EXPECT_EQ(read(third, 1).front(), 22u);
}

TEST_F(HandlesTest, RightsAreTheProgramsAfterEachRestoration) {
  CUcontext second = nullptr;
  ASSERT_CUDA(simulated_driver().cuCtxCreate_v2(&second, 0, 1));
  load_kernels();
  const std::uint64_t handle = create();
  const CUdeviceptr address = reserve();
  EXPECT_CUDA(pager().map_handle(handle, address));
  EXPECT_CUDA(allow(address, CU_MEM_ACCESS_FLAGS_PROT_READ));
  EXPECT_CUDA(allow(address, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 1));
  // No view that the own device may write: the pager goes by its own.
  for (std::uint32_t round = 1; round < 4; ++round) {
    EXPECT_CUDA(simulated_driver().cuCtxSetCurrent(second));
    EXPECT_CUDA(fill(nullptr, address, kBytes / 4, round));
    EXPECT_CUDA(simulated_driver().cuCtxSynchronize()) << "the peer may write";
    EXPECT_CUDA(simulated_driver().cuCtxSetCurrent(context_));
    ASSERT_EQ(evict(), JobState::kDone);
    ASSERT_EQ(restore(), JobState::kDone);
    EXPECT_EQ(read(address, kBytes / 4), std::vector<std::uint32_t>(kBytes / 4, round));
  }
  EXPECT_CUDA(pager().enable_peer(1));
  EXPECT_CUDA(pager().disable_peer(1));
  EXPECT_CUDA(simulated_driver().cuCtxSetCurrent(second));
  EXPECT_CUDA(fill(nullptr, address, 1, 9));
  EXPECT_CUDA(simulated_driver().cuCtxSynchronize()) << "peer access is another matter";
  EXPECT_CUDA(simulated_driver().cuCtxDestroy_v2(second));
  EXPECT_CUDA(simulated_driver().cuCtxSetCurrent(context_));
  load_kernels();
  EXPECT_CUDA(fill(nullptr, address, 1, 9));
  EXPECT_EQ(simulated_driver().cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS) << "readable is not writable";
}

TEST_F(HandlesTest, LivesAsLongAsAHandleOrAMapping) {
  const std::uint64_t before = sim::free_bytes();
  const std::uint64_t handle = create();
  const CUdeviceptr address = mapped(handle);
  std::uint64_t again = 0;
  EXPECT_CUDA(pager().retain_handle(address + kBytes - 1, &again));
  EXPECT_EQ(again, handle);
  EXPECT_CUDA(pager().release_handle(handle));
  EXPECT_CUDA(pager().release_handle(handle));
  EXPECT_EQ(pager().release_handle(handle), CUDA_ERROR_INVALID_VALUE) << "once too often";
  EXPECT_EQ(pager().map_handle(handle, reserve()), CUDA_ERROR_INVALID_VALUE) << "of a released handle";
  write(address, random_words(kBytes, 3));
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(restore(), JobState::kDone);
  expect_words(address, random_words(kBytes, 3));
  EXPECT_CUDA(pager().retain_handle(address, &again)) << "mapped memory can be had again";
  EXPECT_CUDA(pager().release_handle(again));
  EXPECT_CUDA(pager().unmap_handle(address));
  EXPECT_EQ(sim::free_bytes(), before);
  EXPECT_EQ(pager().bounds().committed(), 0u);
  EXPECT_EQ(pager().retain_handle(address, &again), CUDA_ERROR_INVALID_VALUE);
  std::uint64_t bytes = 0;
  CUmemAllocationProp facts{};
  EXPECT_FALSE(pager().find_handle(handle, &bytes, &facts));
  // The same of what is away.
  const std::uint64_t other = create();
  const CUdeviceptr elsewhere = mapped(other);
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_CUDA(pager().release_handle(other));
  EXPECT_EQ(pager().evicted_bytes(), kBytes);
  EXPECT_CUDA(pager().unmap_handle(elsewhere));
  EXPECT_EQ(pager().evicted_bytes(), 0u);
  EXPECT_EQ(pager().counters().host_used, 0u);
}

TEST_F(HandlesTest, WhatNobodyCanReachIsEvictedFirst) {
  const std::uint64_t needed = create();
  mapped(needed);
  const std::uint64_t idle = create();
  const CUdeviceptr address = mapped(idle);
  write(address, random_words(kBytes, 8));
  EXPECT_CUDA(simulated_driver().cuCtxSynchronize());
  EXPECT_CUDA(pager().unmap_handle(address));
  ASSERT_EQ(evict(kBytes), JobState::kDone);
  EXPECT_EQ(freed_, kBytes);
  EXPECT_EQ(pager().evicted_bytes(), 0u) << "what is needed has stayed";
  const CUdeviceptr again = mapped(idle);
  ASSERT_EQ(restore(), JobState::kDone);
  expect_words(again, random_words(kBytes, 8));
}

TEST_F(HandlesTest, OutlivesItsContext) {
  const std::uint64_t handle = create();
  const CUdeviceptr address = mapped(handle);
  const auto words = random_words(kBytes, 5);
  write(address, words);
  ASSERT_EQ(evict(), JobState::kDone);
  CUcontext second = nullptr;
  ASSERT_CUDA(simulated_driver().cuCtxCreate_v2(&second, 0, 0));
  ASSERT_CUDA(simulated_driver().cuCtxPopCurrent_v2(&second));
  pager().context_going(context_);
  EXPECT_EQ(pager().bounds().committed(), kBytes) << "no context has it";
  EXPECT_CUDA(simulated_driver().cuCtxDestroy_v2(context_));
  EXPECT_CUDA(simulated_driver().cuCtxSetCurrent(second));
  context_ = second;
  load_kernels();
  ASSERT_EQ(restore(), JobState::kDone);
  expect_words(address, words);
  pager().context_going(second);
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(restore(), JobState::kDone);
  expect_words(address, words);
}

TEST_F(HandlesTest, AddressesOfThePagersAreNobodys) {
  const std::uint64_t handle = create();
  const CUdeviceptr address = mapped(handle);
  EXPECT_FALSE(pager().owns(address)) << "cuMemFree is not for it";
  EXPECT_EQ(release(address), CUDA_ERROR_INVALID_VALUE);
  const auto info = pager().find(address + 4096);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->base, address);
  EXPECT_EQ(info->bytes, kBytes);
  EXPECT_EQ(info->handle, handle);
  std::vector<ExportedPiece> pieces;
  std::uint64_t offset = 0;
  EXPECT_EQ(pager().export_pieces(address, &pieces, &offset), CUDA_ERROR_INVALID_VALUE) << "legacy IPC";
  EXPECT_FALSE(pager().find(address)->pinned);
}

TEST_F(HandlesTest, WhatMayBeExportedIsOneHandleOfTheDriversAndStays) {
  const std::uint64_t handle = create(kBytes, Placement::kEvicted, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  std::vector<DriverPiece> pieces;
  EXPECT_EQ(pager().pin_handle(handle, PinReason::kExported, &pieces), CUDA_ERROR_NOT_READY);
  pager().want_handle(handle, true);
  ASSERT_EQ(restore(), JobState::kDone);
  ASSERT_CUDA(pager().pin_handle(handle, PinReason::kExported, &pieces));
  pager().want_handle(handle, false);
  ASSERT_EQ(pieces.size(), 1u);
  int fd = -1;
  ASSERT_CUDA(simulated_driver().cuMemExportToShareableHandle(&fd, pieces.front().handle,
                                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  const CUdeviceptr address = mapped(handle);
  EXPECT_CUDA(fill(nullptr, address, kBytes / 4, 5));
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_EQ(freed_, 0u);
  EXPECT_EQ(pager().counters().unpageable[static_cast<std::size_t>(PinReason::kExported)], kBytes);
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_CUDA(simulated_driver().cuMemImportFromShareableHandle(
      &imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  ::close(fd);
  const CUdeviceptr theirs = reserve();
  EXPECT_CUDA(simulated_driver().cuMemMap(theirs, kBytes, 0, imported, 0));
  const CUmemAccessDesc right{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_CUDA(simulated_driver().cuMemSetAccess(theirs, kBytes, &right, 1));
  EXPECT_EQ(read(theirs, 1).front(), 5u);
  EXPECT_CUDA(simulated_driver().cuMemUnmap(theirs, kBytes));
  EXPECT_CUDA(simulated_driver().cuMemRelease(imported));
  EXPECT_CUDA(pager().unpin_handle(handle, PinReason::kExported));
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_EQ(freed_, kBytes);
}

TEST_F(HandlesTest, OnlyWhatCanBeMovedIsTaken) {
  EXPECT_TRUE(Pager::can_page(properties(), kBytes));
  EXPECT_TRUE(Pager::can_page(properties(), std::uint64_t{1} << 40));
  EXPECT_FALSE(Pager::can_page(properties(), 4096)) << "the driver says why not";
  EXPECT_FALSE(Pager::can_page(properties(), 0));
  EXPECT_TRUE(Pager::can_page(properties(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), kBytes));
  EXPECT_TRUE(Pager::can_page(properties(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), std::uint64_t{4} << 30))
      << "as JAX asks for it";
  EXPECT_FALSE(Pager::can_page(properties(CU_MEM_HANDLE_TYPE_FABRIC), kBytes));
  CUmemAllocationProp other = properties();
  other.allocFlags.compressionType = 1;
  EXPECT_FALSE(Pager::can_page(other, kBytes));
  other = properties();
  other.allocFlags.usage = 1;
  EXPECT_FALSE(Pager::can_page(other, kBytes)) << "tile pools";
  other = properties();
  other.location.type = CU_MEM_LOCATION_TYPE_HOST;
  EXPECT_FALSE(Pager::can_page(other, kBytes));
}

TEST_F(HandlesTest, ACallDuringAnEvictionIsNotHeldUpByIt) {
  const std::uint64_t handle = create();
  const CUdeviceptr address = mapped(handle);
  write(address, random_words(kBytes, 4));
  files_.set_limit(0);
  EXPECT_CUDA(simulated_driver().cuCtxSynchronize());
  CUresult error = CUDA_SUCCESS;
  const auto job = pager().begin_eviction(seat_, UINT64_MAX, &error);
  ASSERT_NE(job, nullptr);
  // It has claimed chunks, and lacks host memory to go on.
  while (job->step() != JobState::kStarved) sim::sleep_until(sim::now() + base::Duration(50'000));
  std::atomic<bool> done{false};
  CUdeviceptr second = 0;
  std::thread program([&] {
    second = mapped(handle);
    done = true;
  });
  const auto patience = sim::now() + base::Duration(20'000'000'000);
  while (!done && sim::now() < patience) {
    job->step();
    sim::sleep_until(sim::now() + base::Duration(50'000));
  }
  EXPECT_TRUE(done);
  job->cancel();
  while (!is_over(job->step())) sim::sleep_until(sim::now() + base::Duration(50'000));
  program.join();
  expect_words(second, random_words(kBytes, 4));
}

// Every call that the driver may refuse, at each of its times. If the program is told, it is told the truth. Nothing is
// lost or left behind.
TEST_F(HandlesTest, EachFailureOfTheDriverLosesNothing) {
  mover_fails_ = true;
  const std::uint64_t before = sim::free_bytes();
  constexpr std::uint64_t kSmall = 6 * kMebibyte;  // two chunks
  const auto words = random_words(kSmall, 6);
  for (const char* entry : {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease",
                            "cuMemAddressReserve", "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2"}) {
    for (std::uint64_t nth = 1; nth <= 6; ++nth) {
      SCOPED_TRACE(std::string(entry) + " " + std::to_string(nth));
      clear_faults();
      Fault& fault = *the_faults()[entry];
      fault.fail_at = nth;
      const auto twice = [](auto call) { return call() == CUDA_SUCCESS ? CUDA_SUCCESS : call(); };
      std::uint64_t handle = 0;
      ASSERT_CUDA(twice([&] { return pager().create_handle(kSmall, properties(), Placement::kResident, &handle); }));
      const CUdeviceptr first = reserve(kSmall);
      const CUdeviceptr second = reserve(kSmall);
      ASSERT_CUDA(twice([&] { return pager().map_handle(handle, first); }));
      ASSERT_CUDA(twice([&] { return allow(first); }));
      ASSERT_STREQ(pager().check(), nullptr);
      write(first, words);
      for (int round = 0; round < 2; ++round) {
        evict();
        ASSERT_STREQ(pager().check(), nullptr);
        ASSERT_CUDA(twice([&] { return pager().map_handle(handle, second); }));
        ASSERT_CUDA(twice([&] { return allow(second, CU_MEM_ACCESS_FLAGS_PROT_READ); }));
        ASSERT_STREQ(pager().check(), nullptr);
        if (restore() != JobState::kDone) {
          ASSERT_EQ(restore(), JobState::kDone);
        }
        ASSERT_STREQ(pager().check(), nullptr);
        expect_words(second, words);
        expect_words(first, words);
        ASSERT_CUDA(simulated_driver().cuCtxSynchronize());
        ASSERT_CUDA(twice([&] { return pager().unmap_handle(second); }));
        ASSERT_STREQ(pager().check(), nullptr);
      }
      ASSERT_CUDA(pager().release_handle(handle));
      ASSERT_CUDA(twice([&] { return pager().unmap_handle(first); }));
      pager().trim(UINT64_MAX);
      EXPECT_EQ(sim::free_bytes(), before);
      ASSERT_STREQ(pager().check(), nullptr);
      for (const CUdeviceptr address : {first, second})
        EXPECT_CUDA(simulated_driver().cuMemAddressFree(address, kSmall));
    }
  }
}

}  // namespace
}  // namespace gpumux::pager
