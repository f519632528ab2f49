// SPDX-License-Identifier: Apache-2.0
// A seat's pager whose content goes through a mover.
#include <gtest/gtest.h>

#include "base/no_fork.h"
#include "pager/pager_test_support.h"

namespace gpumux::mover {
namespace {

using pager::JobState;
using pager::kMebibyte;
using pager::Placement;
using sim::simulated_driver;

class PagerByMoverTest : public pager::PagerTest {
 protected:
  std::vector<std::uint32_t> read(cuda::CUdeviceptr from, std::size_t bytes) {
    std::vector<std::uint32_t> words(bytes / 4);
    EXPECT_CUDA(simulated_driver().cuMemcpyDtoH_v2(words.data(), from, bytes));
    return words;
  }
};

TEST_F(PagerByMoverTest, WhatIsEvictedComesBack) {
  const cuda::CUdeviceptr address = get(10 * kMebibyte);
  const cuda::CUdeviceptr constant = get(8 * kMebibyte);
  const auto words = random_words(10 * kMebibyte, 1);
  write(address, words);
  EXPECT_CUDA(simulated_driver().cuMemsetD32_v2(constant, 5, 2 * kMebibyte));
  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_EQ(evict(), JobState::kDone);
    EXPECT_EQ(freed_, 18 * kMebibyte);
    ASSERT_STREQ(pager().check(), nullptr);
    ASSERT_EQ(restore(), JobState::kDone);
    ASSERT_EQ(read(address, 10 * kMebibyte), words);
    EXPECT_EQ(read(constant, 8 * kMebibyte), std::vector<std::uint32_t>(2 * kMebibyte, 5));
  }
  const pager::Counters counters = pager().counters();
  EXPECT_EQ(counters.moved.out, 10 * kMebibyte);
  EXPECT_EQ(counters.moved.saved_clean, 20 * kMebibyte);
  EXPECT_EQ(counters.moved.saved_constant, 24 * kMebibyte);
  EXPECT_EQ(counters.moved.in, 30 * kMebibyte);
  EXPECT_EQ(counters.host_used, 10 * kMebibyte);
  ASSERT_CUDA(release(address));
  ASSERT_CUDA(release(constant));
  pager().trim(UINT64_MAX);
  EXPECT_TRUE(sim::eventually([&] { return mover_->host.used_bytes() == 0; }));
}

// Memory that the program has made for itself alone can be given to the mover, too.
TEST_F(PagerByMoverTest, HandlesThatTheProgramCannotExport) {
  cuda::CUmemAllocationProp properties{};
  properties.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, 0};
  std::uint64_t handle = 0;
  ASSERT_CUDA(pager().create_handle(8 * kMebibyte, properties, Placement::kResident, &handle));
  cuda::CUdeviceptr address = 0;
  ASSERT_CUDA(simulated_driver().cuMemAddressReserve(&address, 8 * kMebibyte, 0, 0, 0));
  ASSERT_CUDA(pager().map_handle(handle, address));
  const cuda::CUmemAccessDesc own{properties.location, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_CUDA(pager().set_access(address, &own, 1));
  const auto words = random_words(8 * kMebibyte, 2);
  write(address, words);
  ASSERT_EQ(evict(), JobState::kDone);
  EXPECT_EQ(freed_, 8 * kMebibyte);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(address, 8 * kMebibyte), words);
  std::uint64_t bytes = 0;
  cuda::CUmemAllocationProp told{};
  ASSERT_TRUE(pager().find_handle(handle, &bytes, &told));
  EXPECT_EQ(told.requestedHandleTypes, properties.requestedHandleTypes);
  ASSERT_CUDA(pager().unmap_handle(address));
  ASSERT_CUDA(pager().release_handle(handle));
}

TEST_F(PagerByMoverTest, ASeatThatIsLetInAgainKeepsItsMemory) {
  const cuda::CUdeviceptr address = get(16 * kMebibyte);
  auto words = random_words(16 * kMebibyte, 3);
  write(address, words);
  cuda::CUresult error = cuda::CUDA_SUCCESS;
  {
    const auto job = pager().begin_eviction(seat_, UINT64_MAX, &error);
    ASSERT_NE(job, nullptr);
    mover_->hold(true);
    job->step();
    seat_.drained = false;  // the mover has been asked
    mover_->hold(false);
    EXPECT_EQ(run(*job), JobState::kCancelled);
  }
  EXPECT_EQ(pager().evicted_bytes(), 0u);
  words[7] ^= 1;
  write(address, words);
  seat_.drained = true;
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(address, 16 * kMebibyte), words);
}

// The mover is stopped, or slow: its copies go on into memory that nothing else has.
TEST_F(PagerByMoverTest, FreeingDoesNotWaitForTheMover) {
  const auto words = random_words(8 * kMebibyte, 6);
  for (const bool is_load : {false, true}) {
    const cuda::CUdeviceptr kept = get(8 * kMebibyte);
    const cuda::CUdeviceptr freed = get(8 * kMebibyte);
    write(kept, words);
    write(freed, words);
    if (is_load) {
      ASSERT_EQ(evict(), JobState::kDone);
    }
    cuda::CUresult error = cuda::CUDA_SUCCESS;
    std::unique_ptr<pager::Eviction> eviction;
    std::unique_ptr<pager::Restoration> restoration;
    mover_->hold(true);
    if (is_load) {
      restoration = pager().begin_restoration(&error);
      EXPECT_FALSE(is_over(restoration->step()));
    } else {
      eviction = pager().begin_eviction(seat_, UINT64_MAX, &error);
      EXPECT_FALSE(is_over(eviction->step()));
    }
    const std::uint64_t used = pager().bounds().used();
    ASSERT_CUDA(release(freed));
    EXPECT_EQ(release(freed), cuda::CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(pager().bounds().used(), used) << "no other seat may have it yet";
    EXPECT_EQ(pager().bounds().committed(), 8 * kMebibyte) << "its program may have as much again";
    mover_->hold(false);
    EXPECT_EQ(is_load ? run(*restoration) : run(*eviction), JobState::kDone);
    restoration.reset();
    eviction.reset();
    ASSERT_STREQ(pager().check(), nullptr);
    ASSERT_EQ(restore(), JobState::kDone);
    EXPECT_EQ(pager().bounds().used(), 8 * kMebibyte);
    EXPECT_EQ(read(kept, 8 * kMebibyte), words);
    ASSERT_CUDA(release(kept));
    pager().trim(UINT64_MAX);
    EXPECT_TRUE(sim::eventually([&] { return mover_->host.used_bytes() == 0; }));
  }
}

TEST_F(PagerByMoverTest, AMoverThatIsKilledLosesNothing) {
  const cuda::CUdeviceptr address = get(24 * kMebibyte);
  const auto words = random_words(24 * kMebibyte, 4);
  write(address, words);
  ASSERT_EQ(evict(8 * kMebibyte), JobState::kDone);
  // In the middle of an eviction.
  {
    cuda::CUresult error = cuda::CUDA_SUCCESS;
    const auto job = pager().begin_eviction(seat_, UINT64_MAX, &error);
    ASSERT_NE(job, nullptr);
    mover_->hold(true);
    job->step();
    kill_mover();
    EXPECT_EQ(run(*job), JobState::kFailed);
  }
  ASSERT_STREQ(pager().check(), nullptr);
  EXPECT_EQ(restore(), JobState::kFailed);  // there is none
  has_mover_ = true;
  start_mover();
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(address, 24 * kMebibyte), words);
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(address, 24 * kMebibyte), words);
}

// Their slots are no seat's to name. The next connection says so, and nothing that the seat names goes.
TEST_F(PagerByMoverTest, AnswersThatAreLostLeaveNothing) {
  const cuda::CUdeviceptr address = get(24 * kMebibyte);
  const auto words = random_words(24 * kMebibyte, 4);
  write(address, words);
  ASSERT_EQ(evict(8 * kMebibyte), JobState::kDone);
  {
    cuda::CUresult error = cuda::CUDA_SUCCESS;
    const auto job = pager().begin_eviction(seat_, UINT64_MAX, &error);
    ASSERT_NE(job, nullptr);
    job->step();
    ASSERT_TRUE(sim::eventually([&] { return mover_->books.bytes_of(1) == 24 * kMebibyte; }));
    connect(1, *connection_, 0);
    EXPECT_EQ(run(*job), JobState::kFailed);
  }
  ASSERT_STREQ(pager().check(), nullptr);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(address, 24 * kMebibyte), words);
  EXPECT_LT(mover_->books.bytes_of(1), 24 * kMebibyte);
  EXPECT_EQ(mover_->books.bytes_of(1), pager().counters().host_used);
  // Evicted content is named, too.
  ASSERT_EQ(evict(), JobState::kDone);
  connect(1, *connection_, 0);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(address, 24 * kMebibyte), words);
}

// ---- frames

// Two programs that change places on a GPU with memory for one of them and a chunk, as the daemon has them: what one
// has left is the other's room. The mover's time stands still, so no frame goes because a machine is slow.
class PagersByMoverTest : public PagerByMoverTest {
 protected:
  static constexpr std::uint64_t kChunk = base::kLeastFrameBytes;
  static constexpr std::uint64_t kAll = 3 * kChunk;

  void SetUp() override {
    PagerByMoverTest::SetUp();
    files_.set_limit(2 * kAll);
    options_.chunk_bytes = kChunk;
    options_.reuse_bytes = 0;
  }
  void TearDown() override {
    others_.reset();
    EXPECT_CUDA(simulated_driver().cuMemFree_v2(hog_));
    PagerByMoverTest::TearDown();
  }
  // The mover, with both seats in domains.
  void start_with(Domain mine, Domain others) {
    if (connection_ == nullptr) connection_ = std::make_unique<client::MoverConnection>(false);
    make_mover();
    connect(1, *connection_, mine);
    connect(2, others_connection_, others);
    mover_->now = sim::now();
    mover_->start();
    has_mover_ = true;
  }
  pager::Pager& others() {
    if (others_ == nullptr) {
      pager::Options options = options_;
      options.mover = &others_connection_;
      others_ = std::make_unique<pager::Pager>(pager::faulty_driver(), options);
    }
    return *others_;
  }
  // Both programs have written all of their memory. The second one is on the GPU.
  void write_both() {
    const std::uint64_t rest = (sim::free_bytes() - kAll - kChunk) / pager::kBlockBytes * pager::kBlockBytes;
    ASSERT_CUDA(simulated_driver().cuMemAlloc_v2(&hog_, rest));
    mine_ = get(kAll);
    write(mine_, content(true));
    ASSERT_EQ(evict(), JobState::kDone);
    ASSERT_CUDA(others().allocate(context_, kAll, Placement::kResident, &its_));
    write(its_, content(false));
  }
  const std::vector<std::uint32_t>& content(bool is_mine) {
    static const auto mine = random_words(kAll, 1), its = random_words(kAll, 2);
    return is_mine ? mine : its;
  }
  void expect_content(bool is_mine) { EXPECT_TRUE(read(is_mine ? mine_ : its_, kAll) == content(is_mine)); }
  void change_places(pager::Pager& out, pager::Pager& in) {
    EXPECT_CUDA(simulated_driver().cuCtxSynchronize());
    cuda::CUresult error = cuda::CUDA_SUCCESS;
    const auto leaving = out.begin_eviction(seat_, UINT64_MAX, &error);
    in.bounds().set(kAll - out.bounds().used(), pager::Bounds::kNone);
    const auto coming = in.begin_restoration(&error);
    ASSERT_NE(leaving, nullptr);
    ASSERT_NE(coming, nullptr);
    JobState left = JobState::kRunning, came = JobState::kRunning;
    while (!is_over(left) || !is_over(came)) {
      if (!is_over(left)) left = leaving->step();
      in.bounds().set(kAll - out.bounds().used(), pager::Bounds::kNone);
      if (!is_over(came)) came = coming->step();
      EXPECT_LE(in.bounds().used() + out.bounds().used(), kAll);
      sim::sleep_until(sim::now() + base::Duration(50'000));
    }
    EXPECT_EQ(left, JobState::kDone);
    EXPECT_EQ(came, JobState::kDone);
    EXPECT_STREQ(in.check(), nullptr);
    EXPECT_STREQ(out.check(), nullptr);
  }
  // The second program leaves, and comes back.
  void change_places_twice() {
    change_places(others(), pager());
    expect_content(true);
    change_places(pager(), others());
    expect_content(false);
  }
  static std::uint64_t made() { return pager::the_faults()["cuMemCreate"]->calls; }

  client::MoverConnection others_connection_{false};
  std::unique_ptr<pager::Pager> others_;
  cuda::CUdeviceptr hog_ = 0;
  cuda::CUdeviceptr mine_ = 0;
  cuda::CUdeviceptr its_ = 0;
};

TEST_F(PagersByMoverTest, MemoryGoesFromOneToTheOther) {
  start_with(1, 1);
  write_both();
  const std::uint64_t before = made();
  for (int turn = 0; turn < 2; ++turn) change_places_twice();
  EXPECT_EQ(made(), before);
  EXPECT_EQ(pager().counters().moved.handed_over, 2 * kAll);
  EXPECT_EQ(others().counters().moved.handed_over, 2 * kAll);
  // Memory that came from the other program is freed with the allocation.
  const std::uint64_t free = sim::free_bytes();
  ASSERT_CUDA(others().free(its_, &synchronize, nullptr));
  EXPECT_EQ(sim::free_bytes(), free + kAll);
}

TEST_F(PagersByMoverTest, BetweenDomainsMemoryIsMadeAnew) {
  start_with(1, 2);
  write_both();
  const std::uint64_t before = made();
  change_places_twice();
  EXPECT_EQ(made(), before + 2 * kAll / kChunk);
  EXPECT_EQ(pager().counters().moved.handed_over + others().counters().moved.handed_over, 0u);
}

// Memory that came from another process can be exported, and then it goes to no seat.
TEST_F(PagersByMoverTest, MemoryThatCameFromAnotherProcessIsExported) {
  start_with(1, 1);
  write_both();
  change_places(others(), pager());
  ASSERT_EQ(pager().counters().moved.handed_over, kAll);
  std::vector<pager::ExportedPiece> pieces;
  std::uint64_t offset = 0;
  ASSERT_CUDA(pager().export_pieces(mine_, &pieces, &offset));
  cuda::CUdeviceptr opened = 0;
  ASSERT_CUDA(pager().import_pieces(context_, pieces, &opened));
  for (const pager::ExportedPiece& piece : pieces) ::close(piece.fd);
  EXPECT_TRUE(read(opened, kAll) == content(true));
  EXPECT_CUDA(release(opened));
  EXPECT_CUDA(pager().unpin(mine_, pager::PinReason::kExported));
  const std::uint64_t before = made();
  change_places(pager(), others());
  EXPECT_EQ(made(), before + kAll / kChunk);
  expect_content(false);
}

// A child would inherit the memory's descriptor.
TEST_F(PagersByMoverTest, NobodyForksWhileMemoryIsInHand) {
  start_with(1, 1);
  write_both();
  std::atomic<int> seen{0};
  for (const char* const name : {"cuMemImportFromShareableHandle", "cuMemExportToShareableHandle"}) {
    pager::the_faults()[name]->answered = [&](cuda::CUresult result) {
      EXPECT_TRUE(base::NoFork::is_anybody_inside());
      ++seen;
      return result;
    };
  }
  change_places_twice();
  EXPECT_GE(seen, 4);
  EXPECT_FALSE(base::NoFork::is_anybody_inside());
}

// Whatever the driver refuses on the way costs at most the handing over.
TEST_F(PagersByMoverTest, NothingIsLostWhateverFails) {
  start_with(1, 1);
  write_both();
  for (const char* const name : {"cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"}) {
    pager::Fault& fault = *pager::the_faults()[name];
    fault.code = cuda::CUDA_ERROR_UNKNOWN;
    fault.fail_at = fault.calls + 1;
    change_places_twice();
    EXPECT_GE(fault.calls, fault.fail_at) << name;
  }
}

// In the middle of a switch: each chunk is on the GPU as before, or in host memory.
TEST_F(PagersByMoverTest, AMoverThatIsKilledLosesNoContent) {
  start_with(1, 1);
  write_both();
  change_places_twice();
  {
    cuda::CUresult error = cuda::CUDA_SUCCESS;
    const auto leaving = others().begin_eviction(seat_, UINT64_MAX, &error);
    pager().bounds().set(kAll, pager::Bounds::kNone);
    ASSERT_NE(leaving, nullptr);
    while (leaving->freed_bytes() == 0) {
      leaving->step();
      sim::sleep_until(sim::now() + base::Duration(50'000));
    }
    pager().bounds().set(kAll - others().bounds().used(), pager::Bounds::kNone);
    const auto coming = pager().begin_restoration(&error);
    ASSERT_NE(coming, nullptr);
    mover_->hold(true);
    coming->step();  // it asks for a frame
    kill_mover();
    EXPECT_EQ(run(*coming), JobState::kFailed);
    for (JobState left = leaving->step(); !is_over(left); left = leaving->step()) leaving->cancel();
  }
  EXPECT_STREQ(pager().check(), nullptr);
  EXPECT_STREQ(others().check(), nullptr);
  EXPECT_EQ(pager().bounds().used(), 0u);
  start_with(1, 1);
  others().bounds().set(kAll, pager::Bounds::kNone);
  ASSERT_EQ(restore(others()), JobState::kDone);
  expect_content(false);
  change_places_twice();
}

}  // namespace
}  // namespace gpumux::mover
