// SPDX-License-Identifier: Apache-2.0
// Goal: what a program wrote is there again after any eviction and restoration, at the same addresses. Blocks that need
// no copy are not copied. Freed and taken memory counts at once. No refusal of the driver loses anything. Method:
// random data, read back bit for bit; the simulated driver's free memory; counters of bytes moved. Each call that a job
// makes fails, one after the other.
#include <functional>
#include <thread>

#include "pager/pager_test_support.h"

namespace gpumux::pager {
namespace {

using namespace cuda;

class PagingTest : public PagerTest {
 protected:
  std::uint64_t free_before_ = 0;
  void SetUp() override {
    PagerTest::SetUp();
    free_before_ = sim::free_bytes();
  }
  std::uint64_t used() { return free_before_ - sim::free_bytes(); }
  // How often it has failed before it succeeded.
  template <class Try>
  std::uint64_t tries(Try attempt) {
    std::uint64_t failures = 0;
    EXPECT_TRUE(sim::eventually([&] { return attempt() || (++failures, false); }))
        << failures << " failures, error " << error_;
    return failures;
  }
};

TEST_F(PagingTest, DataComesBackAtTheSameAddress) {
  const auto large_data = random_words(23 * kMebibyte, 1);
  const auto small_data = random_words(400, 2);
  const CUdeviceptr large = get(23 * kMebibyte);
  const CUdeviceptr small = get(400);
  write(large, large_data);
  write(small, small_data);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(evict(), JobState::kDone);
    EXPECT_EQ(used(), 0u);
    EXPECT_EQ(freed_, 26 * kMebibyte);
    EXPECT_EQ(pager().evicted_bytes(), 26 * kMebibyte);
    EXPECT_FALSE(pager().find(large)->resident);
    ASSERT_STREQ(pager().check(), nullptr);
    ASSERT_EQ(restore(), JobState::kDone);
    EXPECT_EQ(used(), 26 * kMebibyte);
    EXPECT_EQ(pager().evicted_bytes(), 0u);
    ASSERT_STREQ(pager().check(), nullptr);
    ASSERT_EQ(read(large, large_data.size()), large_data) << round;
    ASSERT_EQ(read(small, small_data.size()), small_data) << round;
  }
}

// Work that uses it may be frozen until its memory has moved.
TEST_F(PagingTest, WhatAThreadWaitsToFreeMovesLikeAllElse) {
  const auto data = random_words(8 * kMebibyte, 6);
  const CUdeviceptr freed = get(8 * kMebibyte);
  write(freed, data);
  std::function<void()> move = [&] {
    EXPECT_EQ(release(freed), CUDA_ERROR_INVALID_VALUE) << "a second time";
    EXPECT_EQ(evict(), JobState::kDone);
    EXPECT_EQ(used(), 0u);
    EXPECT_EQ(pager().evicted_bytes(), 8 * kMebibyte) << "it is missing";
    EXPECT_EQ(restore(), JobState::kDone);
    EXPECT_EQ(read(freed, data.size()), data);
    EXPECT_EQ(evict(), JobState::kDone);
  };
  const auto wait = [](void* argument, CUcontext) {
    (*static_cast<const std::function<void()>*>(argument))();
    return CUDA_SUCCESS;
  };
  EXPECT_CUDA(pager().free(freed, wait, &move));
  EXPECT_EQ(pager().evicted_bytes(), 0u);
  EXPECT_EQ(pager().counters().host_used, 0u);
}

TEST_F(PagingTest, UnchangedAndConstantBlocksAreNotCopied) {
  verifies_ = true;
  const CUdeviceptr weights = get(16 * kMebibyte);
  const CUdeviceptr zeros = get(32 * kMebibyte);
  write(weights, random_words(16 * kMebibyte, 3));
  EXPECT_CUDA(fill(nullptr, zeros, 4 * kMebibyte, 0));
  EXPECT_CUDA(fill(nullptr, zeros + 16 * kMebibyte, 4 * kMebibyte, 0x7fc00000));
  ASSERT_EQ(evict(), JobState::kDone);
  Moved moved = pager().counters().moved;
  EXPECT_EQ(moved.out, 16 * kMebibyte);
  EXPECT_EQ(moved.saved_constant, 32 * kMebibyte);
  EXPECT_EQ(pager().counters().host_used, 16 * kMebibyte);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(pager().counters().moved.in, 16 * kMebibyte);
  EXPECT_EQ(pager().counters().clean_copies, 16 * kMebibyte);
  // One word of one block of the weights, one of the zeros.
  EXPECT_CUDA(increment(nullptr, weights + 5 * kMebibyte, 1));
  EXPECT_CUDA(increment(nullptr, zeros + 31 * kMebibyte, 1));
  const auto expected = read(weights, 4 * kMebibyte);
  ASSERT_EQ(evict(), JobState::kDone);
  moved = pager().counters().moved;
  EXPECT_EQ(moved.out, (16 + 2 + 2) * kMebibyte);
  EXPECT_EQ(moved.saved_clean, 14 * kMebibyte);
  EXPECT_EQ(moved.saved_constant, (32 + 30) * kMebibyte);
  EXPECT_EQ(wrong_hashes_, 0u);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(weights, 4 * kMebibyte), expected);
  const auto zeros_now = read(zeros, 8 * kMebibyte);
  for (std::size_t i = 0; i < zeros_now.size(); ++i) {
    const std::uint32_t wanted = i < zeros_now.size() / 2 ? 0 : 0x7fc00000;
    ASSERT_EQ(zeros_now[i], wanted + (i == 31 * kMebibyte / 4 ? 1 : 0)) << i;
  }
}

// A hash kernel that does not run leaves the results of before, which now are wrong.
TEST_F(PagingTest, VerifyFindsWhatAWrongHashWouldLose) {
  verifies_ = true;
  mover_fails_ = true;
  const CUdeviceptr data = get(4 * kMebibyte);
  write(data, random_words(4 * kMebibyte, 4));
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(restore(), JobState::kDone);
  const auto changed = random_words(4 * kMebibyte, 5);
  write(data, changed);
  the_faults()["cuLaunchKernel"]->fail_all(CUDA_SUCCESS);
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_EQ(wrong_hashes_, 2u);
  EXPECT_EQ(pager().counters().moved.out, 8 * kMebibyte) << "all of it, twice";
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(data, changed.size()), changed);
}

TEST_F(PagingTest, WhatIsBornEvictedComesToLife) {
  const CUdeviceptr large = get(10 * kMebibyte, Placement::kEvicted);
  const CUdeviceptr small = get(100, Placement::kEvicted);
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(pager().evicted_bytes(), 12 * kMebibyte);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(used(), 12 * kMebibyte);
  EXPECT_EQ(pager().counters().moved.in, 0u);
  write(large, random_words(10 * kMebibyte, 7));
  write(small, random_words(100, 8));
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(large, 10 * kMebibyte / 4), random_words(10 * kMebibyte, 7));
  EXPECT_EQ(read(small, 25), random_words(100, 8));
}

TEST_F(PagingTest, OnlyAsMuchAsWantedGoes) {
  const CUdeviceptr reusable = get(6 * kMebibyte);
  const CUdeviceptr data = get(40 * kMebibyte);
  write(data, random_words(40 * kMebibyte, 9));
  EXPECT_CUDA(release(reusable));
  ASSERT_EQ(evict(5 * kMebibyte), JobState::kDone);
  EXPECT_EQ(freed_, 6 * kMebibyte);
  EXPECT_EQ(pager().evicted_bytes(), 0u) << "what nobody uses goes first";
  ASSERT_EQ(evict(10 * kMebibyte), JobState::kDone);
  EXPECT_EQ(freed_, 12 * kMebibyte) << "whole chunks";
  EXPECT_EQ(pager().evicted_bytes(), 12 * kMebibyte);
  EXPECT_EQ(used(), 28 * kMebibyte);
  ASSERT_EQ(evict(UINT64_MAX), JobState::kDone);
  EXPECT_EQ(used(), 0u);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(data, 10 * kMebibyte), random_words(40 * kMebibyte, 9));
}

TEST_F(PagingTest, FreedMemoryIsHandedOnChunkByChunk) {
  const CUdeviceptr data = get(64 * kMebibyte);
  write(data, random_words(64 * kMebibyte, 10));
  EXPECT_CUDA(simulated_driver().cuCtxSynchronize());
  files_.set_limit(0);
  CUresult error = CUDA_SUCCESS;
  auto job = pager().begin_eviction(seat_, UINT64_MAX, &error);
  ASSERT_NE(job, nullptr);
  EXPECT_EQ(pager().begin_restoration(&error), nullptr) << "one job at a time";
  EXPECT_EQ(error, CUDA_ERROR_NOT_READY);
  for (std::uint64_t out = 16 * kMebibyte; out <= 64 * kMebibyte; out += 16 * kMebibyte) {
    files_.set_limit(out);
    EXPECT_TRUE(sim::eventually([&] {
      const bool is_done = run(*job) == JobState::kDone;
      EXPECT_EQ(used(), 64 * kMebibyte - job->freed_bytes()) << "what it says is free is free";
      EXPECT_EQ(is_done, job->freed_bytes() == 64 * kMebibyte);
      return job->freed_bytes() == out;
    }));
  }
  job.reset();

  pager().bounds().set(0, Bounds::kNone);
  auto back = pager().begin_restoration(&error);
  ASSERT_NE(back, nullptr);
  EXPECT_EQ(run(*back), JobState::kStarved);
  EXPECT_EQ(used(), 0u);
  for (std::uint64_t room = 0; room < 64 * kMebibyte; room += 8 * kMebibyte) {
    pager().bounds().set(room + 8 * kMebibyte, Bounds::kNone);
    const JobState state = run(*back);
    EXPECT_EQ(state, room == 56 * kMebibyte ? JobState::kDone : JobState::kStarved);
    EXPECT_EQ(used(), room + 8 * kMebibyte);
    EXPECT_EQ(back->restored_bytes(), room + 8 * kMebibyte);
  }
  back.reset();
  EXPECT_EQ(read(data, 16 * kMebibyte), random_words(64 * kMebibyte, 10));
}

TEST_F(PagingTest, ARestorationWaitsForRoomThatIsNotThereYet) {
  const CUdeviceptr data = get(32 * kMebibyte);
  write(data, random_words(32 * kMebibyte, 11));
  ASSERT_EQ(evict(), JobState::kDone);
  CUdeviceptr hog = 0;
  ASSERT_CUDA(simulated_driver().cuMemAlloc_v2(&hog, (sim::free_bytes() - 10 * kMebibyte) / kBlockBytes * kBlockBytes));
  CUresult error = CUDA_SUCCESS;
  const auto job = pager().begin_restoration(&error);
  ASSERT_NE(job, nullptr);
  EXPECT_EQ(run(*job), JobState::kStarved);
  EXPECT_CUDA(simulated_driver().cuMemFree_v2(hog));
  EXPECT_EQ(run(*job), JobState::kDone);
  EXPECT_EQ(read(data, 8 * kMebibyte), random_words(32 * kMebibyte, 11));
}

TEST_F(PagingTest, AnEvictionWaitsForHostMemory) {
  files_.set_limit(8 * kMebibyte);
  const CUdeviceptr data = get(32 * kMebibyte);
  const CUdeviceptr zeros = get(16 * kMebibyte);
  write(data, random_words(32 * kMebibyte, 12));
  EXPECT_CUDA(fill(nullptr, zeros, 4 * kMebibyte, 0));
  EXPECT_CUDA(simulated_driver().cuCtxSynchronize());
  CUresult error = CUDA_SUCCESS;
  {
    const auto job = pager().begin_eviction(seat_, UINT64_MAX, &error);
    ASSERT_NE(job, nullptr);
    const auto starves_at = [&](std::uint64_t bytes) {
      // A job that waits for the mover may look starved before the last chunk that fits is saved.
      return sim::eventually([&] { return run(*job) == JobState::kStarved && job->freed_bytes() == bytes; });
    };
    EXPECT_TRUE(starves_at(24 * kMebibyte)) << "what fits, and what needs no copy";
    files_.set_limit(24 * kMebibyte);
    EXPECT_TRUE(starves_at(40 * kMebibyte));
  }
  EXPECT_STREQ(pager().check(), nullptr) << "given up in the middle";
  files_.set_limit(UINT64_MAX);
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(data, 8 * kMebibyte), random_words(32 * kMebibyte, 12));
}

TEST_F(PagingTest, ALeaseThatComesBackEndsTheEviction) {
  files_.set_limit(32 * kMebibyte);
  const CUdeviceptr data = get(64 * kMebibyte);
  write(data, random_words(64 * kMebibyte, 14));
  EXPECT_CUDA(simulated_driver().cuCtxSynchronize());
  CUresult error = CUDA_SUCCESS;
  {
    const auto job = pager().begin_eviction(seat_, UINT64_MAX, &error);
    ASSERT_NE(job, nullptr);
    while (job->freed_bytes() == 0) job->step();  // and then it waits for host memory
    seat_.drained = false;
    const std::uint64_t unmapped = the_faults()["cuMemUnmap"]->calls;
    EXPECT_TRUE(sim::eventually([&] { return run(*job) == JobState::kCancelled; }));
    EXPECT_EQ(the_faults()["cuMemUnmap"]->calls, unmapped) << "a program that runs again keeps what it has";
  }
  EXPECT_STREQ(pager().check(), nullptr);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(data, 16 * kMebibyte), random_words(64 * kMebibyte, 14));
  seat_.drained = true;
  const auto job = pager().begin_eviction(seat_, UINT64_MAX, &error);
  ASSERT_NE(job, nullptr);
  job->step();
  job->cancel();
  EXPECT_EQ(run(*job), JobState::kCancelled);
}

// A copy that was given up has overwritten the one before it, which is then no copy of anything.
TEST_F(PagingTest, ACopyThatWasBegunIsNoLongerTheOldOne) {
  mover_fails_ = true;  // its calls are counted
  const CUdeviceptr data = get(8 * kMebibyte);
  const auto first = random_words(8 * kMebibyte, 15);
  write(data, first);
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(restore(), JobState::kDone);
  write(data, random_words(8 * kMebibyte, 16));
  EXPECT_CUDA(simulated_driver().cuCtxSynchronize());
  {
    CUresult error = CUDA_SUCCESS;
    const auto job = pager().begin_eviction(seat_, UINT64_MAX, &error);
    ASSERT_NE(job, nullptr);
    const std::uint64_t copies = the_faults()["cuMemcpyDtoHAsync_v2"]->calls;
    mover_->hold(true);
    job->step();
    mover_->hold(false);
    EXPECT_TRUE(sim::eventually([&] { return the_faults()["cuMemcpyDtoHAsync_v2"]->calls != copies; }));
    seat_.drained = false;
    EXPECT_EQ(run(*job), JobState::kCancelled);
    EXPECT_EQ(job->freed_bytes(), 0u);
  }
  seat_.drained = true;
  write(data, first);
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(data, first.size()), first);
}

TEST_F(PagingTest, MemoryIsFreedWhileItIsMoved) {
  std::vector<CUdeviceptr> all;
  for (std::uint64_t i = 0; i < 12; ++i) {
    all.push_back(get(8 * kMebibyte));
    write(all.back(), random_words(8 * kMebibyte, 20 + i));
  }
  for (const bool out : {true, false}) {
    EXPECT_CUDA(simulated_driver().cuCtxSynchronize());
    std::thread other([&] {
      simulated_driver().cuCtxSetCurrent(context_);
      for (int i = 0; i < 4; ++i) {
        EXPECT_CUDA(release(all.back()));
        all.pop_back();
        pager().counters();
      }
    });
    EXPECT_EQ(out ? evict() : restore(), JobState::kDone);
    other.join();
    EXPECT_STREQ(pager().check(), nullptr);
  }
  for (std::uint64_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(read(all[i], 2 * kMebibyte), random_words(8 * kMebibyte, 20 + i));
  EXPECT_EQ(pager().bounds().committed(), 32 * kMebibyte);
}

// No call of the driver's that moves memory needs the program's context (experiment 032).
TEST_F(PagingTest, ABrokenContextsMemoryMovesLikeAllElse) {
  const CUdeviceptr data = get(16 * kMebibyte);
  write(data, random_words(16 * kMebibyte, 17));
  EXPECT_CUDA(increment(nullptr, data + 64 * kMebibyte, 1));  // no allocation's
  EXPECT_EQ(simulated_driver().cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUresult error = CUDA_SUCCESS;
  {
    const auto job = pager().begin_eviction(seat_, UINT64_MAX, &error);
    ASSERT_NE(job, nullptr);
    EXPECT_EQ(run(*job), JobState::kDone);
    EXPECT_EQ(job->freed_bytes(), 16 * kMebibyte);
  }
  EXPECT_EQ(pager().bounds().used(), 0u);
  EXPECT_EQ(restore(), JobState::kDone);
}

// Every call that a switch makes fails, at its first occurrence or a later one.
TEST_F(PagingTest, NothingIsLostWhateverFails) {
  constexpr std::uint64_t kAll = 16 * kMebibyte;
  mover_fails_ = true;
  const CUdeviceptr data = get(10 * kMebibyte);
  const CUdeviceptr zeros = get(4 * kMebibyte);
  const CUdeviceptr small = get(64);
  write(data, random_words(10 * kMebibyte, 40));
  write(small, random_words(64, 41));
  EXPECT_CUDA(fill(nullptr, zeros, kMebibyte, 5));
  std::uint64_t told = 0;
  for (const auto& [name, fault] : the_faults()) {
    for (const std::uint64_t nth : {1u, 3u}) {
      clear_faults();
      start_mover();  // so that it makes its context, and registers host memory anew
      EXPECT_CUDA(increment(nullptr, data + 9 * kMebibyte, 1000));
      EXPECT_CUDA(simulated_driver().cuCtxSynchronize());
      const auto expected = read(data, 10 * kMebibyte / 4);
      const std::string what = name + " " + std::to_string(nth);
      fault->code = nth == 1 ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_OUT_OF_MEMORY;
      fault->fail_at = nth;
      told += tries([&] { return evict() == JobState::kDone; });
      ASSERT_STREQ(pager().check(), nullptr) << what;
      ASSERT_EQ(pager().evicted_bytes(), kAll) << what;
      ASSERT_LE(pager().bounds().used(), 4 * kMebibyte) << what << ": more is stuck";
      fault->calls = 0;
      told += tries([&] { return restore() == JobState::kDone; });
      ASSERT_STREQ(pager().check(), nullptr) << what;
      ASSERT_EQ(pager().evicted_bytes(), 0u) << what;
      ASSERT_EQ(read(data, expected.size()), expected) << what;
      ASSERT_EQ(read(small, 16), random_words(64, 41)) << what;
      ASSERT_EQ(read(zeros, kMebibyte), std::vector<std::uint32_t>(kMebibyte, 5)) << what;
      ASSERT_EQ(used(), kAll) << what;
    }
  }
  EXPECT_GT(told, 15u) << "failures are told";
}

TEST_F(PagingTest, AMoverThatCannotMakeItsStreamsTriesAgain) {
  mover_fails_ = true;
  Fault& fault = *the_faults()["cuStreamCreate"];
  fault.fail_at = 1;  // with the first seat
  const CUdeviceptr data = get(4 * kMebibyte);
  write(data, random_words(4 * kMebibyte, 60));
  tries([&] { return evict() == JobState::kDone; });
  EXPECT_GT(fault.calls, 1u);
  EXPECT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(data, kMebibyte), random_words(4 * kMebibyte, 60));
}

TEST_F(PagingTest, WithoutAKernelTheEngineCopiesEverything) {
  mover_fails_ = true;
  for (const char* entry : {"cuModuleGetFunction", "cuMemHostAlloc"}) {
    the_faults()[entry]->fail_at = the_faults()[entry]->calls + 1;
    pager_.reset();
    mover_.reset();
    const CUdeviceptr zeros = get(4 * kMebibyte);
    EXPECT_CUDA(fill(nullptr, zeros, kMebibyte, 3));
    ASSERT_EQ(evict(), JobState::kDone);
    EXPECT_EQ(pager().counters().moved.out, 4 * kMebibyte) << entry;
    ASSERT_EQ(restore(), JobState::kDone);
    EXPECT_EQ(read(zeros, kMebibyte), std::vector<std::uint32_t>(kMebibyte, 3));
  }
}

}  // namespace
}  // namespace gpumux::pager
