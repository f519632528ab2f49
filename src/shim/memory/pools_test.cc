// SPDX-License-Identifier: Apache-2.0
// Goal: stream-ordered memory is never handed out while work before its free may still use it. Exception: its new use
// comes after that work by itself. Pools keep their books, and no refusal of the driver or the pager loses anything.
//
// Method: a GPU of which the test says what it has done (pools_test_support.h).
#include "shim/memory/pools_test_support.h"

namespace gpumux::shim {
namespace {

TEST_F(PoolsTest, TheSameStreamGetsItBackAtOnceAndOthersWhenItIsDone) {
  const CUdeviceptr first = allocate(4 * kMebibyte, kA);
  submit(kA);
  free(first, kA);
  const CUdeviceptr others = allocate(4 * kMebibyte, kB);
  EXPECT_NE(others, first) << "work of the stream that freed it may still use it";
  const int asked = gpu_.calls["cuEventQuery"];
  EXPECT_EQ(allocate(4 * kMebibyte, kA), first);
  EXPECT_EQ(gpu_.calls["cuEventQuery"], asked) << "its own stream needs to ask nobody";
  free(first, kA);
  gpu_.run_all();
  EXPECT_EQ(allocate(4 * kMebibyte, kB), first);
  EXPECT_EQ(pages_.taken, 2u);
}

TEST_F(PoolsTest, ALoopOfAllocationsAndFreesRecordsOneEventEachAndAsksForNothingElse) {
  for (int i = 0; i < 2; ++i) free(allocate(3 * kMebibyte, kA), kA);
  gpu_.calls.clear();
  for (int i = 0; i < 100; ++i) free(allocate(3 * kMebibyte, kA), kA);
  EXPECT_EQ(gpu_.calls["cuEventRecord"], 100);
  EXPECT_EQ(gpu_.calls.size(), 1u);
  EXPECT_EQ(pages_.taken, 1u);
}

TEST_F(PoolsTest, AStreamsNameIsNotItsHandle) {
  const CUdeviceptr first = allocate(4 * kMebibyte, kA);
  submit(kA);
  free(first, kA);
  // Another stream with the same handle is not behind the work of the earlier one.
  pools_.stream_gone(kA);
  gpu_.open(kA, kContext);
  EXPECT_NE(allocate(4 * kMebibyte, kA), first);
  // Nor is another thread's own stream.
  CUdeviceptr own = 0;
  const StreamName one{kContext, kB, 1};
  const StreamName two{kContext, kB, 2};
  ASSERT_EQ(pools_.allocate(pool_, one, 4 * kMebibyte, Placement::kResident, &own), CUDA_SUCCESS);
  submit(kB);
  ASSERT_EQ(pools_.free(own, one), CUDA_SUCCESS);
  CUdeviceptr again = 0;
  EXPECT_TRUE(!pools_.reuse(pool_, two, 4 * kMebibyte, &again) || again != own);
  EXPECT_TRUE(pools_.reuse(pool_, one, 4 * kMebibyte, &again));
  EXPECT_EQ(again, own);
}

TEST_F(PoolsTest, WhatNoPoolMadeGoesBackWhenTheStreamThatFreedItIsDone) {
  CUdeviceptr plain = 0;
  ASSERT_EQ(pages_.take_segment(3, kContext, 4 * kMebibyte, Placement::kResident, &plain), CUDA_SUCCESS);
  EXPECT_EQ(pools_.free(plain, name(kA)), CUDA_ERROR_INVALID_VALUE);
  ASSERT_TRUE(pools_.adopt(plain, 3 * kMebibyte, kContext));
  EXPECT_FALSE(pools_.adopt(plain, 3 * kMebibyte, kContext)) << "it is a pool's";
  submit(kA);
  free(plain, kA);
  EXPECT_EQ(pools_.free(plain, name(kA)), CUDA_ERROR_INVALID_VALUE) << "freed twice";
  EXPECT_FALSE(pools_.adopt(plain, 3 * kMebibyte, kContext)) << "freed, and not gone";
  const CUdeviceptr next = allocate(3 * kMebibyte, kA);
  EXPECT_NE(next, plain) << "nothing is allocated from it";
  pools_.release_surplus();
  EXPECT_TRUE(pages_.segments.contains(plain)) << "the stream may still use it";
  gpu_.run_all();
  ASSERT_TRUE(pools_.has_surplus());
  pools_.release_surplus();
  EXPECT_FALSE(pages_.segments.contains(plain));
  free(next, kA);
}

TEST_F(PoolsTest, WhatIsDividedBecomesWholeAgain) {
  const CUdeviceptr whole = allocate(8 * kMebibyte, kA);
  submit(kA);
  free(whole, kA);
  const CUdeviceptr low = allocate(3 * kMebibyte, kA);
  const CUdeviceptr high = allocate(5 * kMebibyte, kA);
  EXPECT_EQ(low, whole);
  EXPECT_EQ(high, whole + 3 * kMebibyte);
  free(low, kA);
  free(high, kA);
  EXPECT_EQ(allocate(8 * kMebibyte, kA), whole) << "of one stream, though nothing is done yet";
  free(whole, kA);
  const CUdeviceptr again = allocate(3 * kMebibyte, kA);
  const CUdeviceptr other = allocate(5 * kMebibyte, kA);
  submit(kB);
  free(again, kA);
  free(other, kB);
  EXPECT_NE(allocate(8 * kMebibyte, kA), whole) << "half of it is another stream's";
  gpu_.run_all();
  EXPECT_EQ(allocate(8 * kMebibyte, kA), whole);
  EXPECT_EQ(pages_.taken, 2u);
}

TEST_F(PoolsTest, OfTwoFencesThatAreRecordedAtOnceBothCount) {
  const CUdeviceptr whole = allocate(8 * kMebibyte, kA);
  free(whole, kA);
  const CUdeviceptr low = allocate(3 * kMebibyte, kA);
  const CUdeviceptr high = allocate(5 * kMebibyte, kA);
  ASSERT_EQ(high, low + 3 * kMebibyte);
  submit(kA);
  gpu_.before_recording = [&] {
    free(high, kA);
    submit(kA);  // comes after that fence, and before low's
  };
  free(low, kA);
  run_all_but_one(kA);
  EXPECT_NE(allocate(8 * kMebibyte, kB), whole) << "one fence is not done";
  gpu_.run_all();
  EXPECT_EQ(allocate(8 * kMebibyte, kB), whole);
}

TEST_F(PoolsTest, AThreadThatComesBackLateFromItsRecordingHasTheOlderFence) {
  const CUdeviceptr whole = allocate(8 * kMebibyte, kA);
  free(whole, kA);
  const CUdeviceptr low = allocate(3 * kMebibyte, kA);
  const CUdeviceptr high = allocate(5 * kMebibyte, kA);
  gpu_.after_recording = [&] {
    submit(kA);
    free(high, kA);
  };
  free(low, kA);
  run_all_but_one(kA);
  EXPECT_NE(allocate(8 * kMebibyte, kB), whole) << "the fence of the upper part is not done";
  EXPECT_EQ(allocate(5 * kMebibyte, kA), high) << "to its own stream each part goes at once";
}

TEST_F(PoolsTest, ABusyStreamIsAskedAboutItsOldestFreeOnly) {
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX), CUDA_SUCCESS);
  std::vector<CUdeviceptr> busy;
  for (int i = 0; i < 40; ++i) busy.push_back(allocate(33 * kMebibyte, kA));  // segments of their own
  const CUdeviceptr done = allocate(33 * kMebibyte, kB);
  for (const CUdeviceptr address : busy) {
    submit(kA);
    free(address, kA);
  }
  free(done, kB);
  gpu_.run(gpu_.by_handle.at(kB), UINT64_MAX);
  gpu_.calls.clear();
  const CUstream third = reinterpret_cast<CUstream>(0xe00);
  gpu_.open(third, kContext);
  EXPECT_EQ(allocate(33 * kMebibyte, third), done);
  EXPECT_EQ(gpu_.calls["cuEventQuery"], 2);
}

TEST_F(PoolsTest, WhatIsSmallSharesABlockAndLeavesLargeOnesWhole) {
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX), CUDA_SUCCESS);
  const CUdeviceptr large = allocate(64 * kMebibyte, kA);
  free(large, kA);
  const CUdeviceptr small = allocate(1000, kA);
  const CUdeviceptr second = allocate(1, kA);
  EXPECT_EQ(second - small, 1024u);
  EXPECT_EQ(pages_.used, 66 * kMebibyte);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 1536u);
  const CUdeviceptr medium = allocate(kMebibyte, kA);
  EXPECT_FALSE(medium >= large && medium < large + 64 * kMebibyte) << "too little of it to divide it for";
  EXPECT_EQ(allocate(60 * kMebibyte, kA), large);
}

TEST_F(PoolsTest, SegmentsComeInStepsAsLongAsThereIsMemory) {
  std::vector<CUdeviceptr> all;
  for (int i = 0; i < 256; ++i) all.push_back(allocate(kMebibyte, kA));
  EXPECT_LE(pages_.taken, 12u) << "2, 2, 4, 8, 16 and then 32 MiB at a time";
  EXPECT_LE(pages_.used, (256 + 32) * kMebibyte);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 256 * kMebibyte);
  // Where a step is too much, what is asked for may not be.
  while (get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) != get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT))
    all.push_back(allocate(kMebibyte, kA));
  pages_.capacity = pages_.used + 2 * kMebibyte;
  all.push_back(allocate(kMebibyte, kA));
  EXPECT_EQ(pages_.used, pages_.capacity);
  for (const CUdeviceptr address : all) free(address, kA);
  gpu_.run_all();
  EXPECT_EQ(pools_.trim(pool_, 0), pages_.capacity);
}

TEST_F(PoolsTest, AttributesAreThePoolsOwnNumbers) {
  const CUdeviceptr one = allocate(3 * kMebibyte, kA);
  const CUdeviceptr two = allocate(5 * kMebibyte, kA);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 10 * kMebibyte);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 8 * kMebibyte);
  free(one, kA);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 5 * kMebibyte);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 8 * kMebibyte);
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_USED_MEM_HIGH, std::uint64_t{1}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, std::uint64_t{0}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_USED_MEM_HIGH, std::uint64_t{0}), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 5 * kMebibyte);
  gpu_.run_all();
  EXPECT_EQ(pools_.trim(pool_, 6 * kMebibyte), 4 * kMebibyte);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 6 * kMebibyte);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 10 * kMebibyte);
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, std::uint64_t{0}), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 6 * kMebibyte);
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC), 0u);
  free(two, kA);
  gpu_.run_all();
  EXPECT_NE(allocate(6 * kMebibyte, kB), two) << "done, but only the stream that freed it may have it";
  EXPECT_EQ(allocate(6 * kMebibyte, kA), two);
}

TEST_F(PoolsTest, WhatWasSetBeforeTheFirstAllocationHolds) {
  gpu_.set_with_driver[CU_MEMPOOL_ATTR_RELEASE_THRESHOLD] = 12345;
  const auto own = reinterpret_cast<CUmemoryPool>(0x99);
  pools_.add(own, 0);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, own), 12345u);
  EXPECT_FALSE(pools_.has(reinterpret_cast<CUmemoryPool>(0x98)));
}

TEST_F(PoolsTest, TheSurplusGoesWhenTheProgramSynchronises) {
  std::vector<CUdeviceptr> all;
  for (int i = 0; i < 8; ++i) all.push_back(allocate(16 * kMebibyte, kA));
  submit(kA);
  for (const CUdeviceptr address : all) free(address, kA);
  ASSERT_TRUE(pools_.has_surplus());
  pools_.release_surplus();
  EXPECT_EQ(pages_.used, 128 * kMebibyte) << "nothing is done yet";
  EXPECT_TRUE(pools_.has_surplus());
  gpu_.run_all();
  pools_.release_surplus();
  EXPECT_EQ(pages_.used, Pools::kKept);
  EXPECT_FALSE(pools_.has_surplus());
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX), CUDA_SUCCESS);
  all.clear();
  for (int i = 0; i < 8; ++i) all.push_back(allocate(16 * kMebibyte, kA));
  for (const CUdeviceptr address : all) free(address, kA);
  EXPECT_FALSE(pools_.has_surplus()) << "the program wants to keep it";
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, std::uint64_t{64 * kMebibyte}), CUDA_SUCCESS);
  pools_.release_surplus();
  EXPECT_EQ(pages_.used, 64 * kMebibyte);
}

TEST_F(PoolsTest, OutOfMemoryTakesWhatIsDoneAndThenWhatWillBe) {
  pages_.capacity = 16 * kMebibyte;
  const CUdeviceptr first = allocate(16 * kMebibyte, kA);
  submit(kA);
  free(first, kA);
  CUdeviceptr address = 0;
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0), CUDA_SUCCESS);
  EXPECT_EQ(try_allocate(10 * kMebibyte, kB, &address), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(pools_.has_pending());
  EXPECT_TRUE(pools_.has_pending(pools_.moment()));
  EXPECT_FALSE(pools_.has_pending(1)) << "what was freed later is not waited for";
  EXPECT_EQ(set(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1), CUDA_SUCCESS);
  gpu_.fail_next["cuStreamWaitEvent"] = 1;
  EXPECT_EQ(try_allocate(10 * kMebibyte, kB, &address), CUDA_ERROR_UNKNOWN);
  EXPECT_STREQ(pools_.check(), nullptr);
  ASSERT_EQ(try_allocate(10 * kMebibyte, kB, &address), CUDA_SUCCESS);
  EXPECT_EQ(address, first);
  submit(kB);
  gpu_.run(1, UINT64_MAX);
  EXPECT_EQ(gpu_.at(kB).done, 0u) << "the other stream waits for the one that freed it";
  gpu_.run_all();
  EXPECT_FALSE(pools_.has_pending());
  free(address, kB);
  gpu_.run_all();
  // Another size: what is free is given back to take it.
  EXPECT_EQ(try_allocate(17 * kMebibyte, kB, &address), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(pages_.used, 0u);
  EXPECT_EQ(try_allocate(12 * kMebibyte, kB, &address), CUDA_SUCCESS);
}

TEST_F(PoolsTest, APoolHasNoMoreThanItMay) {
  const auto own = reinterpret_cast<CUmemoryPool>(0x99);
  pools_.add(own, 8 * kMebibyte);
  const CUdeviceptr first = allocate(4 * kMebibyte, kA, own);
  CUdeviceptr second = allocate(4 * kMebibyte, kA, own);
  CUdeviceptr third = 0;
  EXPECT_EQ(try_allocate(1, kA, &third, own), Pools::kBeyondLimit);
  EXPECT_EQ(try_allocate(1, kA, &third), CUDA_SUCCESS) << "other pools are other pools";
  free(first, kA);
  free(second, kA);
  EXPECT_EQ(try_allocate(6 * kMebibyte, kA, &second, own), CUDA_SUCCESS) << "what is free makes room";
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, own), 6 * kMebibyte);
}

TEST_F(PoolsTest, ADestroyedPoolsAllocationsLiveUntilTheyAreFreed) {
  const auto own = reinterpret_cast<CUmemoryPool>(0x99);
  pools_.add(own, 0);
  const CUdeviceptr one = allocate(4 * kMebibyte, kA, own);
  const CUdeviceptr two = allocate(4 * kMebibyte, kA, own);
  submit(kA);
  free(one, kA);
  pools_.destroyed(own);
  EXPECT_FALSE(pools_.has(own));
  CUdeviceptr address = 0;
  EXPECT_EQ(try_allocate(1, kA, &address, own), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(pools_.owns(two));
  EXPECT_EQ(pages_.used, 8 * kMebibyte);
  gpu_.run_all();
  pools_.release_surplus();
  EXPECT_EQ(pages_.used, 4 * kMebibyte);
  // The driver may give another pool the same handle.
  pools_.add(own, 0);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, own), 0u);
  free(two, kA);
  EXPECT_TRUE(pools_.has_surplus());
  pools_.release_surplus();
  EXPECT_EQ(pages_.used, 0u);
  EXPECT_FALSE(pools_.has_surplus());
}

TEST_F(PoolsTest, OnlyAllocationsAreFreedAndOnlyOnce) {
  const CUdeviceptr address = allocate(4 * kMebibyte, kA);
  EXPECT_EQ(pools_.free(address + 512, name(kA)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(pools_.begin_free(address + 512));
  const auto found = pools_.find(address + 5);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->base, address);
  EXPECT_EQ(found->bytes, 4 * kMebibyte);
  EXPECT_EQ(found->pool, pool_);
  free(address, kA);
  EXPECT_EQ(pools_.free(address, name(kA)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_FALSE(pools_.find(address));
  EXPECT_TRUE(pools_.covers(address));
  const CUdeviceptr again = allocate(4 * kMebibyte, kA);
  EXPECT_NE(pools_.find(again)->id, found->id);
  // cuMemFree: no stream needs to be asked afterwards.
  const auto freeing = pools_.begin_free(again);
  ASSERT_TRUE(freeing);
  EXPECT_EQ(freeing->context, kContext);
  EXPECT_EQ(pools_.free(again, name(kA)), CUDA_ERROR_INVALID_VALUE);
  pools_.end_free(*freeing, false);
  EXPECT_TRUE(pools_.owns(again));
  pools_.end_free(*pools_.begin_free(again), true);
  EXPECT_EQ(allocate(4 * kMebibyte, kB), again);
}

TEST_F(PoolsTest, AFreeThatTheDriverRefusesFreesNothing) {
  const CUdeviceptr address = allocate(4 * kMebibyte, kA);
  gpu_.fail_next["cuEventCreate"] = 1;
  submit(kA);
  // Without an event the work is waited for.
  free(address, kA);
  EXPECT_EQ(gpu_.calls["cuStreamSynchronize"], 1);
  EXPECT_EQ(allocate(4 * kMebibyte, kB), address);
  // A capture is not: it would be broken by that.
  driver_.cuEventRecord = [](CUevent, CUstream) { return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; };
  EXPECT_EQ(pools_.free(address, name(kB)), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(gpu_.calls["cuStreamSynchronize"], 1);
  EXPECT_TRUE(pools_.owns(address));
}

TEST_F(PoolsTest, AContextTakesItsMemoryAndItsEventsWithIt) {
  const CUstream other = reinterpret_cast<CUstream>(0xd00);
  gpu_.open(other, kOther);
  CUdeviceptr theirs = 0;
  ASSERT_EQ(pools_.allocate(pool_, name(other, kOther), 4 * kMebibyte, Placement::kResident, &theirs), CUDA_SUCCESS);
  const CUdeviceptr ours = allocate(4 * kMebibyte, kA);
  submit(other);
  ASSERT_EQ(pools_.free(ours, name(other, kOther)), CUDA_SUCCESS);
  gpu_.run_all();
  std::erase_if(gpu_.events, [](const auto& item) { return item.second.context == kOther; });
  pools_.context_going(kOther);
  EXPECT_FALSE(pools_.covers(theirs));
  EXPECT_EQ(allocate(4 * kMebibyte, kA), ours);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 4 * kMebibyte);
}

}  // namespace
}  // namespace gpumux::shim
