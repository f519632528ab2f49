// SPDX-License-Identifier: Apache-2.0
// For the pager's tests: the simulated driver of this process, which fails on demand; a mover on a thread of its own; a
// seat that the test drains.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/mover_connection.h"
#include "cuda/driver.h"
#include "mover/worker.h"
#include "pager/pager.h"

namespace gpumux::pager {

// Before the machine is made: more memory, and copies that cost little more than the copying. (Its header's own
// settings are for tests of the driver.)
inline const bool kMachineIsLarger = [] {
  for (const auto& [name, value] : {std::pair{"GPUMUX_SIM_MEMORY", "256M"},
                                    {"GPUMUX_SIM_H2D_BANDWIDTH", "64G"},
                                    {"GPUMUX_SIM_D2H_BANDWIDTH", "64G"},
                                    {"GPUMUX_SIM_KERNEL_BANDWIDTH", "64G"}})
    ::setenv(name, value, 0);
  return true;
}();

}  // namespace gpumux::pager

#include "sim/cuda/test_driver.h"
#include "sim/cuda/test_machine.h"

namespace gpumux::pager {

using sim::simulated_driver;
using Fault = sim::Tap;

inline std::map<std::string, Fault*>& the_faults() {
  static std::map<std::string, Fault*> faults;
  return faults;
}

// The same driver. Entries that the pager calls while it works fail on demand, before they do anything. Entries whose
// failure means that the process or the context is lost (cuStreamQuery, say) are not among them.
inline const cuda::Driver& faulty_driver() {
  static const cuda::Driver driver = [] {
    cuda::Driver made = simulated_driver();
#define GPUMUX_FAULTY(name) the_faults()[#name] = &sim::tap<&cuda::Driver::name>(made);
    GPUMUX_FAULTY(cuMemAddressReserve)
    GPUMUX_FAULTY(cuMemAddressFree)
    GPUMUX_FAULTY(cuMemCreate)
    GPUMUX_FAULTY(cuMemMap)
    GPUMUX_FAULTY(cuMemSetAccess)
    GPUMUX_FAULTY(cuMemUnmap)
    GPUMUX_FAULTY(cuMemRelease)
    GPUMUX_FAULTY(cuMemHostRegister_v2)
    GPUMUX_FAULTY(cuMemHostUnregister)
    GPUMUX_FAULTY(cuMemcpyDtoHAsync_v2)
    GPUMUX_FAULTY(cuMemcpyHtoDAsync_v2)
    GPUMUX_FAULTY(cuMemsetD32Async)
    GPUMUX_FAULTY(cuEventCreate)
    GPUMUX_FAULTY(cuEventRecord)
    GPUMUX_FAULTY(cuEventQuery)
    GPUMUX_FAULTY(cuLaunchKernel)
    GPUMUX_FAULTY(cuStreamCreate)
    GPUMUX_FAULTY(cuModuleLoadData)
    GPUMUX_FAULTY(cuModuleGetFunction)
    GPUMUX_FAULTY(cuMemHostAlloc)
    GPUMUX_FAULTY(cuCtxPushCurrent_v2)
    GPUMUX_FAULTY(cuThreadExchangeStreamCaptureMode)
    GPUMUX_FAULTY(cuMemExportToShareableHandle)
    GPUMUX_FAULTY(cuMemImportFromShareableHandle)
#undef GPUMUX_FAULTY
    return made;
  }();
  return driver;
}

inline void clear_faults() {
  faulty_driver();
  for (const auto& [name, fault] : the_faults()) fault->clear();
}

// The same for a mover. One that cannot let go of memory has to end, and here it does not.
inline const cuda::Driver& faulty_mover_driver() {
  static const cuda::Driver driver = [] {
    cuda::Driver made = faulty_driver();
    made.cuMemUnmap = simulated_driver().cuMemUnmap;
    made.cuMemAddressFree = simulated_driver().cuMemAddressFree;
    made.cuMemRelease = simulated_driver().cuMemRelease;
    return made;
  }();
  return driver;
}

// Host memory that outlives a mover, as the daemon's does, up to a limit that tests change. The same memory is lent
// again.
class HostFiles final : public mover::HostMemory {
 public:
  static constexpr std::uint64_t kBytes = 8 * kMebibyte;

  ~HostFiles() override {
    for (const mover::HostChunk& chunk : all_) ::munmap(chunk.address, kBytes);
  }
  std::optional<mover::HostChunk> lend() override {
    const std::lock_guard lock(mutex_);
    if (lent_.load() + kBytes > limit_.load()) return std::nullopt;
    lent_ += kBytes;
    if (!back_.empty()) {
      const mover::HostChunk chunk = back_.back();
      back_.pop_back();
      ::mprotect(chunk.address, chunk.bytes, PROT_READ | PROT_WRITE);
      return chunk;
    }
    void* const room =
        ::mmap(nullptr, kBytes + kBlockBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const auto at = round_up(reinterpret_cast<std::uintptr_t>(room), kBlockBytes);
    all_.push_back({reinterpret_cast<std::byte*>(at), kBytes, all_.size()});
    return all_.back();
  }
  void give_back(const mover::HostChunk& chunk) override {
    const std::lock_guard lock(mutex_);
    if (is_mover_ending) return;  // the next one needs what it holds
    // A later use of it crashes instead of reading old data.
    ::mprotect(chunk.address, chunk.bytes, PROT_NONE);
    back_.push_back(chunk);
    lent_ -= kBytes;
  }
  // Chunks that a mover which has ended still had.
  std::vector<mover::HostChunk> held() {
    const std::lock_guard lock(mutex_);
    std::vector<mover::HostChunk> held;
    for (const mover::HostChunk& chunk : all_) {
      if (std::none_of(back_.begin(), back_.end(), [&](const mover::HostChunk& one) { return one.id == chunk.id; }))
        held.push_back(chunk);
    }
    return held;
  }

  void set_limit(std::uint64_t limit) { limit_ = limit; }
  std::uint64_t lent() const { return lent_.load(); }
  std::atomic<bool> is_mover_ending{false};

 private:
  std::atomic<std::uint64_t> limit_{std::uint64_t{1} << 40};
  std::atomic<std::uint64_t> lent_{0};
  std::mutex mutex_;
  std::vector<mover::HostChunk> all_;
  std::vector<mover::HostChunk> back_;
};

// The node's mover, on a thread of its own.
class TestMover {
 public:
  static constexpr std::uint32_t kSlots = 512;

  static os::FileDescriptor make_books() {
    os::FileDescriptor books(::memfd_create("books", MFD_CLOEXEC));
    EXPECT_EQ(::ftruncate(books.get(), static_cast<off_t>(mover::Books::bytes_for(kSlots))), 0);
    return books;
  }

  TestMover(const cuda::Driver& driver, HostFiles& files, int books_file)
      : books(mover::Books::open(books_file, kSlots, HostFiles::kBytes / kBlockBytes).value()),
        keeper(books),
        host(driver, files, &keeper),
        worker(driver, 0, host, books),
        files_(files) {
    for (const mover::HostChunk& chunk : files.held()) EXPECT_TRUE(adopt(host, books, chunk));
    EXPECT_EQ(::pipe2(wake_, O_CLOEXEC | O_NONBLOCK), 0);
  }
  ~TestMover() {
    stopping_ = true;
    EXPECT_EQ(::write(wake_[1], "", 1), 1);
    if (thread_.joinable()) thread_.join();
    ::close(wake_[0]);
    ::close(wake_[1]);
    files_.is_mover_ending = true;
    // Host memory is unregistered in a context that works, whatever the test has done to its own.
    cuda::CUcontext own = nullptr;
    EXPECT_CUDA(simulated_driver().cuDevicePrimaryCtxRetain(&own, 0));
    EXPECT_CUDA(simulated_driver().cuCtxPushCurrent_v2(own));
  }
  void start() {
    files_.is_mover_ending = false;
    thread_ = std::thread([this] {
      while (!stopping_) {
        std::optional<base::Duration> next(std::chrono::milliseconds(1));
        {
          const std::lock_guard lock(mutex_);
          for (NewSeat& seat : std::exchange(new_seats_, {})) {
            worker.add(seat.number, std::move(seat.connection), seat.domain);
          }
          if (!is_held_) next = worker.step(now ? *now : sim::now());
        }
        worker.wait(next, wake_[0]);
        char byte;
        static_cast<void>(::read(wake_[0], &byte, 1));
      }
    });
  }
  // The seat's end of its connection. Any thread.
  os::FileDescriptor connect(mover::SeatNumber seat, mover::Domain domain = 0) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    {
      const std::lock_guard lock(mutex_);
      new_seats_.push_back({seat, os::FileDescriptor(ends[0]), domain});
    }
    EXPECT_EQ(::write(wake_[1], "", 1), 1);
    return os::FileDescriptor(ends[1]);
  }
  // From now on it hears and does nothing, or goes on.
  void hold(bool holds) {
    const std::lock_guard lock(mutex_);
    is_held_ = holds;
  }

  // After all else.
  struct LeavesContext {
    ~LeavesContext() {
      cuda::CUcontext own = nullptr;
      EXPECT_CUDA(simulated_driver().cuCtxPopCurrent_v2(&own));
      EXPECT_CUDA(simulated_driver().cuDevicePrimaryCtxRelease_v2(0));
    }
  } leaves_context;
  mover::Books books;
  mover::BookKeeper keeper;
  mover::HostSlots host;
  mover::Worker worker;
  std::optional<base::TimePoint> now;  // set before the start: its time stands still

 private:
  struct NewSeat {
    mover::SeatNumber number;
    os::FileDescriptor connection;
    mover::Domain domain;
  };

  HostFiles& files_;
  int wake_[2] = {};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  bool is_held_ = false;
  std::vector<NewSeat> new_seats_;  // the thread, which alone touches the worker once it runs, takes them in
  std::thread thread_;
};

class TestSeat final : public DrainedSeat {
 public:
  bool still_drained() const override { return drained.load(); }
  std::atomic<bool> drained{true};
};

class PagerTest : public sim::SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    clear_faults();
    // The mover's context, which is there as long as the test.
    cuda::CUcontext movers = nullptr;
    ASSERT_CUDA(simulated_driver().cuDevicePrimaryCtxRetain(&movers, 0));
    options_.chunk_bytes = 4 * kMebibyte;
  }
  void TearDown() override {
    clear_faults();
    if (pager_ != nullptr) {
      EXPECT_STREQ(pager_->check(), nullptr);
    }
    pager_.reset();
    mover_.reset();
    EXPECT_CUDA(simulated_driver().cuDevicePrimaryCtxRelease_v2(0));
    SimTest::TearDown();
  }

  // With a mover, if there is none yet.
  Pager& pager() {
    if (connection_ == nullptr) connection_ = std::make_unique<client::MoverConnection>(verifies_);
    if (mover_ == nullptr && has_mover_) start_mover();
    if (pager_ == nullptr) {
      options_.mover = connection_.get();
      pager_ = std::make_unique<Pager>(faulty_driver(), options_);
    }
    return *pager_;
  }
  void start_mover() {
    make_mover();
    connect(1, *connection_, 0);
    mover_->start();
  }
  // Nothing of it runs yet.
  void make_mover() {
    mover_.reset();
    const cuda::Driver& driver = mover_fails_ ? faulty_mover_driver() : simulated_driver();
    mover_ = std::make_unique<TestMover>(driver, files_, books_file_.get());
  }
  void kill_mover() {
    mover_.reset();
    has_mover_ = false;
  }
  void connect(mover::SeatNumber seat, client::MoverConnection& connection, mover::Domain domain) {
    connection.offer(mover_->connect(seat, domain));
  }
  cuda::CUdeviceptr get(std::size_t bytes, Placement placement = Placement::kResident) {
    cuda::CUdeviceptr address = 0;
    EXPECT_CUDA(pager().allocate(context_, bytes, placement, &address));
    return address;
  }
  static cuda::CUresult synchronize(void*, cuda::CUcontext) { return simulated_driver().cuCtxSynchronize(); }
  cuda::CUresult release(cuda::CUdeviceptr address) { return pager().free(address, &synchronize, nullptr); }

  static std::uint64_t progress_of(const Eviction& job) { return job.freed_bytes(); }
  static std::uint64_t progress_of(const Restoration& job) { return job.restored_bytes(); }

  // Steps until the job is over, or starves although nothing is under way: then only the test can help it. Between
  // kStarvedSteps steps that free and take nothing the GPU finishes all of its work. A chunk needs fewer steps from its
  // hash to the end of its copy.
  template <class Job>
  JobState run(Job& job) {
    constexpr int kStarvedSteps = 8;
    std::uint64_t moved = progress_of(job);
    for (int starved = 0;;) {
      const JobState state = job.step();
      if (is_over(state)) return state;
      starved = state == JobState::kStarved && progress_of(job) == moved ? starved + 1 : 0;
      moved = progress_of(job);
      if (starved == kStarvedSteps) return state;
      if (starved != 0) {
        simulated_driver().cuCtxSynchronize();
      } else if (state != JobState::kRunning) {
        sim::sleep_until(sim::now() + base::Duration(50'000));
      }
    }
  }
  JobState evict(std::uint64_t bytes = UINT64_MAX) { return evict(pager(), bytes); }
  JobState evict(Pager& pager, std::uint64_t bytes = UINT64_MAX) {
    EXPECT_CUDA(simulated_driver().cuCtxSynchronize());
    cuda::CUresult error = cuda::CUDA_SUCCESS;
    const auto job = pager.begin_eviction(seat_, bytes, &error);
    EXPECT_EQ(job == nullptr, error != cuda::CUDA_SUCCESS);
    if (job == nullptr) return JobState::kFailed;
    const JobState state = run(*job);
    freed_ = job->freed_bytes();
    wrong_hashes_ = job->wrong_hashes();
    error_ = job->error();
    return state;
  }
  JobState restore() { return restore(pager()); }
  JobState restore(Pager& pager) {
    cuda::CUresult error = cuda::CUDA_SUCCESS;
    const auto job = pager.begin_restoration(&error);
    EXPECT_EQ(job == nullptr, error != cuda::CUDA_SUCCESS);
    if (job == nullptr) return JobState::kFailed;
    const JobState state = run(*job);
    error_ = job->error();
    return state;
  }

  std::vector<std::uint32_t> random_words(std::size_t bytes, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::uint32_t> words(bytes / 4);
    for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
    return words;
  }
  void write(cuda::CUdeviceptr to, const std::vector<std::uint32_t>& words) {
    EXPECT_CUDA(simulated_driver().cuMemcpyHtoD_v2(to, words.data(), words.size() * 4));
  }

  os::FileDescriptor books_file_ = TestMover::make_books();
  HostFiles files_;
  bool mover_fails_ = false;  // set before its start: it has the faults, too
  bool has_mover_ = true;
  bool verifies_ = false;
  std::unique_ptr<TestMover> mover_;
  std::unique_ptr<client::MoverConnection> connection_;
  Options options_;
  TestSeat seat_;
  std::unique_ptr<Pager> pager_;
  std::uint64_t freed_ = 0;
  std::uint64_t wrong_hashes_ = 0;  // of the last eviction
  cuda::CUresult error_ = cuda::CUDA_SUCCESS;
};

}  // namespace gpumux::pager
