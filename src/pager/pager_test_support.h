// SPDX-License-Identifier: Apache-2.0
// For the pager's tests: the simulated driver of this process, which fails on demand; a lender of host memory; a seat
// that the test drains.
#pragma once

#include <sys/mman.h>
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

#include "cuda/driver.h"
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

// Lends memory of this process, up to a limit that tests change. Memory that is given back is lent again as it is.
class LocalHostMemory : public HostMemory {
 public:
  explicit LocalHostMemory(std::uint64_t limit = std::uint64_t{1} << 40, std::uint64_t chunk_bytes = 8 * kMebibyte)
      : limit_(limit), chunk_bytes_(chunk_bytes) {}
  ~LocalHostMemory() {
    EXPECT_EQ(lent_.load(), 0u) << "host memory was not given back";
    for (const HostChunk& chunk : back_) ::munmap(reinterpret_cast<void*>(chunk.id), chunk_bytes_ + kBlockBytes);
  }

  std::optional<HostChunk> lend(std::uint64_t) override {
    if (lent_.load() + chunk_bytes_ > limit_.load()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    if (!back_.empty()) {
      const HostChunk chunk = back_.back();
      back_.pop_back();
      ::mprotect(chunk.address, chunk.bytes, PROT_READ | PROT_WRITE);
      lent_ += chunk_bytes_;
      return chunk;
    }
    void* memory =
        ::mmap(nullptr, chunk_bytes_ + kBlockBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return std::nullopt;
    lent_ += chunk_bytes_;
    const auto address = round_up(reinterpret_cast<std::uintptr_t>(memory), kBlockBytes);
    return HostChunk{reinterpret_cast<std::byte*>(address), chunk_bytes_, reinterpret_cast<std::uintptr_t>(memory)};
  }
  void give_back(const HostChunk& chunk) override {
    const std::lock_guard lock(mutex_);
    // A later use of it crashes instead of reading old data.
    ::mprotect(chunk.address, chunk.bytes, PROT_NONE);
    back_.push_back(chunk);
    lent_ -= chunk.bytes;
  }

  void set_limit(std::uint64_t limit) { limit_ = limit; }
  std::uint64_t lent() const { return lent_.load(); }

 private:
  std::atomic<std::uint64_t> limit_;
  const std::uint64_t chunk_bytes_;
  std::atomic<std::uint64_t> lent_{0};
  std::mutex mutex_;
  std::vector<HostChunk> back_;
};

// Frames between the pagers of this process, kept as they would be between processes.
class KeptFrames final : public Frames {
 public:
  ~KeptFrames() {
    for (const auto& [number, frame] : known_) ::close(frame.fd);
  }
  bool wants(std::uint64_t, std::uint64_t) override { return wanted.load(); }
  base::FrameSizes at_hand() override {
    const std::lock_guard lock(mutex_);
    base::FrameSizes sizes = 0;
    for (const auto& [number, frame] : known_) sizes |= frame.is_here ? base::frame_size(frame.bytes) : 0;
    return sizes;
  }
  void give(std::uint64_t number, std::uint64_t bytes, int fd) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(number == 0, fd >= 0);
    if (number == 0) {
      number = ++last_;
      known_[number] = {bytes, fd, true};
    } else {
      ASSERT_TRUE(known_.contains(number));
      EXPECT_FALSE(known_[number].is_here) << "given twice";
      EXPECT_EQ(known_[number].bytes, bytes);
      known_[number].is_here = true;
    }
    ++given;
  }
  std::optional<Lent> take(std::uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    for (auto& [number, frame] : known_) {
      if (!frame.is_here || frame.bytes != bytes) continue;
      frame.is_here = false;
      return Lent{number, ::dup(frame.fd)};
    }
    return std::nullopt;
  }
  void drop() override { ++dropped; }
  void freed(std::uint64_t number) override {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(number);
    ASSERT_NE(found, known_.end());
    EXPECT_FALSE(found->second.is_here);
    ::close(found->second.fd);
    known_.erase(found);
  }
  int descriptor(std::uint64_t number) override {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(number);
    return found == known_.end() || !has_descriptors ? -1 : ::dup(found->second.fd);
  }
  // Given, and not taken.
  std::size_t here() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(known_.begin(), known_.end(), [](const auto& one) { return one.second.is_here; }));
  }
  std::size_t known() const {
    const std::lock_guard lock(mutex_);
    return known_.size();
  }

  std::atomic<bool> wanted{true};
  std::atomic<int> given{0};
  std::atomic<int> dropped{0};
  bool has_descriptors = true;

 private:
  struct Known {
    std::uint64_t bytes = 0;
    int fd = -1;
    bool is_here = false;
  };
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Known> known_;
  std::uint64_t last_ = 0;
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
    options_.host_memory = &host_;
    options_.chunk_bytes = 4 * kMebibyte;
  }
  void TearDown() override {
    clear_faults();
    if (pager_ != nullptr) {
      EXPECT_STREQ(pager_->check(), nullptr);
    }
    pager_.reset();
    SimTest::TearDown();
  }

  Pager& pager() {
    if (pager_ == nullptr) pager_ = std::make_unique<Pager>(faulty_driver(), options_);
    return *pager_;
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

  LocalHostMemory host_;
  Options options_;
  TestSeat seat_;
  std::unique_ptr<Pager> pager_;
  std::uint64_t freed_ = 0;
  std::uint64_t wrong_hashes_ = 0;  // of the last eviction
  cuda::CUresult error_ = cuda::CUDA_SUCCESS;
};

}  // namespace gpumux::pager
