// SPDX-License-Identifier: Apache-2.0
// Goal: allocations behave as the driver's own: sizes, alignment, error codes, facts about an address. They cost the
// GPU no more than they must. Method: the simulated driver's capacity before and after. Figures that a real driver
// (580.159) gave stand next to what they decide.
#include <thread>

#include "pager/pager_test_support.h"

namespace gpumux::pager {
namespace {

using namespace cuda;

class AllocationTest : public PagerTest {};

TEST_F(AllocationTest, SizesAndErrorsAreTheDrivers) {
  CUdeviceptr address = 77;
  EXPECT_EQ(pager().allocate(context_, 0, Placement::kResident, &address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(pager().allocate(context_, 8, Placement::kResident, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(pager().allocate(context_, std::size_t{1} << 40, Placement::kResident, &address), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(pager().allocate(context_, SIZE_MAX, Placement::kEvicted, &address), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(address, 77u) << "a failure leaves the result alone";
  const CUdeviceptr large = get(3 * kMebibyte);
  EXPECT_EQ(large % kBlockBytes, 0u);
  const auto info = pager().find(large + 5);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->base, large);
  EXPECT_EQ(info->bytes, 3 * kMebibyte) << "what was asked for, not what it takes";
  EXPECT_EQ(info->mapping_bytes, 4 * kMebibyte);
  EXPECT_EQ(info->context, context_);
  EXPECT_TRUE(info->resident);
  EXPECT_FALSE(pager().find(large + 3 * kMebibyte)) << "beyond its end";
  EXPECT_EQ(release(large + 4096), CUDA_ERROR_INVALID_VALUE) << "an inner address";
  EXPECT_CUDA(release(large));
  EXPECT_EQ(release(large), CUDA_ERROR_INVALID_VALUE) << "twice";
  EXPECT_CUDA(release(0));
  EXPECT_FALSE(pager().owns(large));
}

TEST_F(AllocationTest, SmallOnesShareABlock) {
  const std::uint64_t before = sim::free_bytes();
  const CUdeviceptr a = get(1);
  const CUdeviceptr b = get(100);
  const CUdeviceptr c = get(kLargestPackedBytes);
  EXPECT_EQ(before - sim::free_bytes(), kBlockBytes);
  EXPECT_EQ(b, a + 512) << "each at 512 bytes, as the driver does";
  EXPECT_EQ(c, a + 1024);
  const CUdeviceptr own = get(kLargestPackedBytes + 1);
  EXPECT_EQ(before - sim::free_bytes(), 2 * kBlockBytes);
  const auto info = pager().find(b + 99);
  ASSERT_TRUE(info);
  EXPECT_EQ(info->base, b);
  EXPECT_EQ(info->bytes, 100u);
  EXPECT_NE(info->buffer_id, pager().find(a)->buffer_id);
  EXPECT_FALSE(pager().find(b + 100)) << "between two";
  EXPECT_EQ(release(b + 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CUDA(release(b));
  EXPECT_EQ(release(b), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(get(512), b) << "the lowest hole is filled";
  for (const CUdeviceptr address : {a, b, c, own}) EXPECT_CUDA(release(address));
  EXPECT_EQ(pager().bounds().committed(), 0u);
  EXPECT_EQ(before - sim::free_bytes(), 2 * kBlockBytes) << "kept for the next ones";
}

TEST_F(AllocationTest, ManySmallOnesStayApart) {
  std::mt19937_64 random(5);
  std::map<CUdeviceptr, std::size_t> live;
  for (int i = 0; i < 3000; ++i) {
    if (live.size() > 200 || (!live.empty() && random() % 3 == 0)) {
      auto at = live.begin();
      std::advance(at, static_cast<std::ptrdiff_t>(random() % live.size()));
      ASSERT_CUDA(release(at->first));
      live.erase(at);
    } else {
      const std::size_t bytes = 1 + random() % (random() % 10 == 0 ? kLargestPackedBytes : 5000);
      const CUdeviceptr address = get(bytes);
      ASSERT_EQ(address % kPackingBytes, 0u);
      const auto next = live.lower_bound(address);
      ASSERT_TRUE(next == live.end() || address + bytes <= next->first);
      ASSERT_TRUE(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= address);
      live.emplace(address, bytes);
    }
  }
  ASSERT_STREQ(pager().check(), nullptr);
  for (const auto& [address, bytes] : live) ASSERT_CUDA(release(address));
  EXPECT_EQ(pager().bounds().committed(), 0u);
}

TEST_F(AllocationTest, PitchIsTheDrivers) {
  CUdeviceptr address = 0;
  std::size_t pitch = 0;
  const auto pitched = [&](std::size_t width, std::size_t height, unsigned element) {
    return pager().allocate_pitch(context_, width, height, element, Placement::kResident, &address, &pitch);
  };
  EXPECT_CUDA(pitched(100, 10, 4));
  EXPECT_EQ(pitch, 512u);
  EXPECT_EQ(pager().find(address)->bytes, 5120u);
  EXPECT_CUDA(release(address));
  EXPECT_CUDA(pitched(600, 3, 16));
  EXPECT_EQ(pitch, 1024u);
  EXPECT_CUDA(release(address));
  EXPECT_EQ(pitched(100, 10, 5), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(pitched(100, 0, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(pitched(0, 3, 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(pitched(SIZE_MAX, 2, 4), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(pitched(SIZE_MAX / 4, 8, 4), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(AllocationTest, FreedMemoryIsUsedAgainAndGivenBackWhenWanted) {
  options_.reuse_bytes = 16 * kMebibyte;
  const std::uint64_t before = sim::free_bytes();
  const CUdeviceptr first = get(8 * kMebibyte);
  EXPECT_CUDA(release(first));
  const std::uint64_t created = the_faults()["cuMemCreate"]->calls;
  EXPECT_EQ(get(8 * kMebibyte), first);
  EXPECT_EQ(the_faults()["cuMemCreate"]->calls, created) << "without any help of the driver";
  const CUdeviceptr second = get(6 * kMebibyte);
  const CUdeviceptr third = get(10 * kMebibyte);
  for (const CUdeviceptr address : {first, second, third}) EXPECT_CUDA(release(address));
  EXPECT_EQ(before - sim::free_bytes(), 16 * kMebibyte) << "the oldest goes when there is too much";
  // An allocation of any size that finds no room takes what is kept.
  const std::uint64_t nearly_all = (before - 2 * kMebibyte) / kBlockBytes * kBlockBytes;
  const CUdeviceptr all = get(nearly_all);
  EXPECT_EQ(before - sim::free_bytes(), nearly_all);
  EXPECT_CUDA(release(all));
  EXPECT_EQ(sim::free_bytes(), before) << "too large to be kept";
  const CUdeviceptr last = get(4 * kMebibyte);
  EXPECT_CUDA(release(last));
  EXPECT_EQ(pager().trim(1), 4 * kMebibyte);
  EXPECT_EQ(sim::free_bytes(), before);
}

TEST_F(AllocationTest, NoRoomIsAnErrorThatCostsNothing) {
  const std::uint64_t before = sim::free_bytes();
  const CUdeviceptr most = get(200 * kMebibyte);
  CUdeviceptr address = 0;
  EXPECT_EQ(pager().allocate(context_, 100 * kMebibyte, Placement::kResident, &address), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(before - sim::free_bytes(), 200 * kMebibyte);
  const CUdeviceptr evicted = get(100 * kMebibyte, Placement::kEvicted);
  EXPECT_EQ(before - sim::free_bytes(), 200 * kMebibyte) << "addresses cost nothing";
  EXPECT_EQ(pager().evicted_bytes(), 100 * kMebibyte);
  EXPECT_CUDA(release(evicted));
  EXPECT_EQ(pager().evicted_bytes(), 0u);
  EXPECT_CUDA(release(most));
}

TEST_F(AllocationTest, FreeWaitsAndFreesNothingWhenWaitingFails) {
  const CUdeviceptr large = get(4 * kMebibyte);
  const CUdeviceptr small = get(16);
  const auto fail = [](void*, CUcontext) { return CUDA_ERROR_ILLEGAL_ADDRESS; };
  EXPECT_EQ(pager().free(large, fail, nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(pager().free(small, fail, nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_TRUE(pager().find(large));
  EXPECT_TRUE(pager().find(small));
  // A kernel that runs when its memory is freed finishes first.
  EXPECT_CUDA(spin(nullptr, 3'000'000));
  EXPECT_CUDA(increment(nullptr, large, kMebibyte));
  EXPECT_CUDA(release(large));
  EXPECT_CUDA(simulated_driver().cuCtxSynchronize());
  EXPECT_CUDA(release(small));
}

TEST_F(AllocationTest, AContextTakesItsAllocationsAlong) {
  const std::uint64_t before = sim::free_bytes();
  const CUdeviceptr kept = get(2 * kMebibyte);
  CUcontext other = nullptr;
  ASSERT_CUDA(simulated_driver().cuCtxCreate_v2(&other, 0, 0));
  CUdeviceptr lost = 0;
  CUdeviceptr small = 0;
  EXPECT_CUDA(pager().allocate(other, 4 * kMebibyte, Placement::kResident, &lost));
  EXPECT_CUDA(pager().allocate(other, 4, Placement::kResident, &small));
  const CUdeviceptr mine = get(4);
  EXPECT_NE(mine / kBlockBytes, small / kBlockBytes) << "contexts share no block";
  pager().context_going(other);
  EXPECT_CUDA(simulated_driver().cuCtxDestroy_v2(other));
  EXPECT_FALSE(pager().owns(lost));
  EXPECT_FALSE(pager().owns(small));
  EXPECT_TRUE(pager().owns(kept));
  EXPECT_EQ(before - sim::free_bytes(), 4 * kMebibyte);
  write(kept, random_words(2 * kMebibyte, 1));
  EXPECT_EQ(evict(), JobState::kDone);
  EXPECT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(kept, kMebibyte / 2), random_words(2 * kMebibyte, 1));
}

TEST_F(AllocationTest, EachFailureOfTheDriverLeavesNothingBehind) {
  const std::uint64_t before = sim::free_bytes();
  for (const char* entry : {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    for (const std::uint64_t nth : {1u, 3u}) {
      clear_faults();
      the_faults()[entry]->fail_at = nth;
      the_faults()[entry]->code = CUDA_ERROR_NOT_PERMITTED;
      CUdeviceptr address = 0;
      const CUresult result = pager().allocate(context_, 16 * kMebibyte, Placement::kResident, &address);
      if (nth == 1 || std::strcmp(entry, "cuMemAddressReserve") != 0) {
        EXPECT_EQ(result, CUDA_ERROR_NOT_PERMITTED) << entry << nth;
      } else {
        EXPECT_CUDA(release(address));
        pager().trim(UINT64_MAX);
      }
      EXPECT_EQ(sim::free_bytes(), before) << entry << nth;
    }
  }
  // Memory that cannot be given back now is given back later.
  for (const char* entry : {"cuMemUnmap", "cuMemRelease", "cuMemAddressFree"}) {
    clear_faults();
    const CUdeviceptr address = get(8 * kMebibyte);
    EXPECT_CUDA(release(address));
    the_faults()[entry]->fail_at = 1;
    pager().trim(UINT64_MAX);
    EXPECT_EQ(the_faults()[entry]->failed, 1u);
    if (std::strcmp(entry, "cuMemAddressFree") != 0) {
      EXPECT_EQ(before - sim::free_bytes(), 4 * kMebibyte);
    }
    pager().trim(UINT64_MAX);
    EXPECT_EQ(sim::free_bytes(), before);
  }
}

TEST_F(AllocationTest, ManyThreads) {
  pager();
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      simulated_driver().cuCtxSetCurrent(context_);
      std::mt19937_64 random(t);
      std::vector<CUdeviceptr> mine;
      for (int i = 0; i < 400; ++i) {
        CUdeviceptr address = 0;
        const std::size_t bytes = random() % 4 == 0 ? 3 * kMebibyte : 1 + random() % 40000;
        const Placement placement = random() % 4 == 0 ? Placement::kEvicted : Placement::kResident;
        if (pager_->allocate(context_, bytes, placement, &address) != CUDA_SUCCESS) ++failures;
        const auto info = pager_->find(address);
        if (!info || info->base != address || info->bytes != bytes) ++failures;
        mine.push_back(address);
        if (mine.size() > 8) {
          if (release(mine.front()) != CUDA_SUCCESS) ++failures;
          mine.erase(mine.begin());
        }
      }
      for (const CUdeviceptr address : mine) failures += release(address) != CUDA_SUCCESS;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
  EXPECT_EQ(pager().bounds().committed(), 0u);
}

}  // namespace
}  // namespace gpumux::pager
