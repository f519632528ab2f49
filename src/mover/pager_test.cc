// SPDX-License-Identifier: Apache-2.0
// A seat's pager whose content goes through a mover.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <mutex>
#include <thread>

#include "client/mover_connection.h"
#include "mover/worker.h"
#include "pager/pager_test_support.h"

namespace gpumux::mover {
namespace {

using pager::JobState;
using pager::kMebibyte;
using pager::Placement;
using sim::simulated_driver;

class PagerByMoverTest : public pager::PagerTest {
 protected:
  static constexpr std::uint32_t kSlots = 512;

  // Host memory that outlives a mover, as the daemon's does.
  class Files final : public pager::HostMemory {
   public:
    std::optional<pager::HostChunk> lend(std::uint64_t bytes) override {
      if (chunks.size() == most) return std::nullopt;
      void* const room =
          ::mmap(nullptr, bytes + pager::kBlockBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      const auto at = pager::round_up(reinterpret_cast<std::uintptr_t>(room), pager::kBlockBytes);
      chunks.push_back({reinterpret_cast<std::byte*>(at), bytes, chunks.size()});
      return chunks.back();
    }
    void give_back(const pager::HostChunk&) override {}
    std::atomic<std::size_t> most{4};
    std::vector<pager::HostChunk> chunks;
  };
  // One mover, on a thread of its own.
  struct Mover {
    Mover(Files& files, int books_file)
        : books(Books::open(books_file, kSlots, pager::kHostChunkBytes / pager::kBlockBytes).value()),
          keeper(books),
          host(simulated_driver(), &files, &keeper),
          worker(simulated_driver(), 0, host, books) {
      for (const pager::HostChunk& chunk : files.chunks) EXPECT_TRUE(adopt(host, books, chunk));
      EXPECT_EQ(::pipe2(wake, O_CLOEXEC), 0);
    }
    ~Mover() {
      stopping = true;
      EXPECT_EQ(::write(wake[1], "", 1), 1);
      if (thread.joinable()) thread.join();
      ::close(wake[0]);
      ::close(wake[1]);
    }
    void start() {
      thread = std::thread([this] {
        while (!stopping) {
          std::optional<base::Duration> next(std::chrono::milliseconds(1));
          {
            const std::lock_guard lock(mutex);
            if (!is_held) next = worker.step(now ? *now : sim::now());
          }
          worker.wait(next, wake[0]);
        }
      });
    }
    // From now on it hears and does nothing, or goes on.
    void hold(bool holds) {
      const std::lock_guard lock(mutex);
      is_held = holds;
    }
    Books books;
    BookKeeper keeper;
    pager::HostSlots host;
    Worker worker;
    int wake[2] = {};
    std::atomic<bool> stopping{false};
    std::mutex mutex;
    bool is_held = false;
    std::optional<base::TimePoint> now;  // its time stands still
    std::thread thread;
  };

  void SetUp() override {
    PagerTest::SetUp();
    ASSERT_EQ(::ftruncate(books_file_.get(), static_cast<off_t>(Books::bytes_for(kSlots))), 0);
    options_.mover = &connection_;
    options_.host_memory = nullptr;  // it needs none of its own
    start();
  }
  void TearDown() override {
    PagerTest::TearDown();
    mover_.reset();
  }
  void start() {
    mover_ = std::make_unique<Mover>(files_, books_file_.get());
    connect(1, connection_, 0);
    mover_->start();
  }
  void connect(SeatNumber seat, client::MoverConnection& connection, Domain domain) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    mover_->worker.add(seat, os::FileDescriptor(ends[0]), domain);
    connection.offer(os::FileDescriptor(ends[1]));
  }
  std::vector<std::uint32_t> read(cuda::CUdeviceptr from, std::size_t bytes) {
    std::vector<std::uint32_t> words(bytes / 4);
    EXPECT_CUDA(simulated_driver().cuMemcpyDtoH_v2(words.data(), from, bytes));
    return words;
  }

  os::FileDescriptor books_file_{::memfd_create("books", MFD_CLOEXEC)};
  Files files_;
  client::MoverConnection connection_{false};
  std::unique_ptr<Mover> mover_;
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
  pager().know_context(context_);
  pager().use_mover();  // from now on
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
    mover_.reset();
    EXPECT_EQ(run(*job), JobState::kFailed);
  }
  ASSERT_STREQ(pager().check(), nullptr);
  EXPECT_EQ(restore(), JobState::kFailed);  // there is none
  start();
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(address, 24 * kMebibyte), words);
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(address, 24 * kMebibyte), words);
}

TEST_F(PagerByMoverTest, WithoutHostMemoryItStarves) {
  files_.most = 1;  // 32 MiB
  const cuda::CUdeviceptr address = get(48 * kMebibyte);
  const auto words = random_words(48 * kMebibyte, 5);
  write(address, words);
  // A job that waits for the mover may look starved before the last chunk that fits is saved.
  EXPECT_TRUE(sim::eventually([&] {
    EXPECT_EQ(evict(), JobState::kStarved);
    return pager().evicted_bytes() == 32 * kMebibyte;
  }));
  ASSERT_STREQ(pager().check(), nullptr);
  files_.most = 2;
  ASSERT_EQ(evict(), JobState::kDone);
  ASSERT_EQ(restore(), JobState::kDone);
  EXPECT_EQ(read(address, 48 * kMebibyte), words);
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
    files_.most = 2 * kAll / pager::kHostChunkBytes;
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
    mover_ = std::make_unique<Mover>(files_, books_file_.get());
    connect(1, connection_, mine);
    connect(2, others_connection_, others);
    mover_->now = sim::now();
    mover_->start();
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
    mover_.reset();
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
