// SPDX-License-Identifier: Apache-2.0
// For tests of the simulated driver: a machine of their own, and short ways to say the usual things.
//
// Include it in one source file per test program. The machine is made before main and its directory removed at exit.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "cuda/prototypes.gen.h"
#include "sim/cuda/kernels.gen.h"
#include "sim/cuda/machine.h"

namespace gpumux::sim {

// Two small GPUs with cheap contexts; costs that are large enough to be seen and small enough for short tests.
class TestMachine {
 public:
  TestMachine() {
    const char* given = std::getenv("GPUMUX_SIM_DIR");
    if (given != nullptr) {
      directory_ = given;
      return;
    }
    directory_ = "/dev/shm/gpumux-sim-test-" + std::to_string(::getpid());
    owner_ = ::getpid();
    std::filesystem::remove_all(directory_);
    ::setenv("GPUMUX_SIM_DIR", directory_.c_str(), 1);
    for (const auto& [name, value] : {std::pair{"GPUS", "2"},
                                      {"MEMORY", "64M"},
                                      {"CONTEXT_MEMORY", "2M"},
                                      {"H2D_BANDWIDTH", "1G"},
                                      {"D2H_BANDWIDTH", "1G"},
                                      {"DEATH_DELAY", "20ms"}}) {
      ::setenv((std::string("GPUMUX_SIM_") + name).c_str(), value, 0);
    }
  }
  ~TestMachine() {
    if (owner_ == ::getpid()) std::filesystem::remove_all(directory_);
  }
  TestMachine(const TestMachine&) = delete;
  TestMachine& operator=(const TestMachine&) = delete;

 private:
  std::string directory_;
  pid_t owner_ = 0;
};
inline TestMachine the_test_machine;

inline constexpr std::uint64_t kContextBytes = std::uint64_t{2} << 20;
inline constexpr std::uint64_t kGpuBytes = std::uint64_t{64} << 20;

#define EXPECT_CUDA(call) EXPECT_EQ(call, cuda::CUDA_SUCCESS)
#define ASSERT_CUDA(call) ASSERT_EQ(call, cuda::CUDA_SUCCESS)

// Polls until true; false after 10 s, which nothing here takes.
template <class Condition>
bool eventually(Condition condition) {
  const base::TimePoint deadline = now() + base::Duration(10'000'000'000);
  while (!condition()) {
    if (now() > deadline) return false;
    sleep_until(now() + base::Duration(200'000));
  }
  return true;
}

inline std::uint64_t free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_CUDA(cuda::cuMemGetInfo_v2(&free, &total));
  return free;
}

// A context on a device, current on this thread, with the built-in kernels.
class SimTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_CUDA(cuda::cuInit(0));
    ASSERT_CUDA(cuda::cuCtxCreate_v2(&context_, 0, 0));
    load_kernels();
  }
  void TearDown() override {
    if (context_ != nullptr) {
      EXPECT_CUDA(cuda::cuCtxDestroy_v2(context_));
    }
    cuda::CUcontext left = nullptr;
    EXPECT_CUDA(cuda::cuCtxGetCurrent(&left));
    EXPECT_EQ(left, nullptr) << "a test left a context behind";
    while (left != nullptr) {
      cuda::cuCtxPopCurrent_v2(nullptr);
      cuda::cuCtxGetCurrent(&left);
    }
  }

  void load_kernels() { ASSERT_CUDA(cuda::cuModuleLoadData(&module_, kGpumuxSimKernelsPtx)); }

  cuda::CUfunction function(const char* name) {
    cuda::CUfunction found = nullptr;
    EXPECT_CUDA(cuda::cuModuleGetFunction(&found, module_, name));
    return found;
  }
  cuda::CUdeviceptr allocate(std::size_t bytes) {
    cuda::CUdeviceptr address = 0;
    EXPECT_CUDA(cuda::cuMemAlloc_v2(&address, bytes));
    return address;
  }
  cuda::CUstream make_stream(unsigned flags = cuda::CU_STREAM_NON_BLOCKING) {
    cuda::CUstream stream = nullptr;
    EXPECT_CUDA(cuda::cuStreamCreate(&stream, flags));
    return stream;
  }

  template <class... Parameters>
  cuda::CUresult launch(const char* name, cuda::CUstream stream, Parameters... parameters) {
    void* list[] = {&parameters...};
    return cuda::cuLaunchKernel(function(name), 1, 1, 1, 1, 1, 1, 0, stream, list, nullptr);
  }
  cuda::CUresult fill(cuda::CUstream stream, cuda::CUdeviceptr to, std::uint64_t count, std::uint32_t value) {
    return launch("gpumux_fill", stream, to, count, value);
  }
  cuda::CUresult increment(cuda::CUstream stream, cuda::CUdeviceptr data, std::uint64_t count) {
    return launch("gpumux_increment", stream, data, count);
  }
  cuda::CUresult spin(cuda::CUstream stream, std::uint64_t nanoseconds) {
    return launch("gpumux_spin", stream, nanoseconds);
  }

  std::vector<std::uint32_t> read(cuda::CUdeviceptr from, std::size_t count) {
    std::vector<std::uint32_t> words(count);
    EXPECT_CUDA(cuda::cuMemcpyDtoH_v2(words.data(), from, count * 4));
    return words;
  }

  cuda::CUcontext context_ = nullptr;
  cuda::CUmodule module_ = nullptr;
};

// A kernel or stream that waits until the test says so: a word of pinned memory.
class HeldStream {
 public:
  // Work that is submitted to `stream` from now on waits for `release`.
  explicit HeldStream(cuda::CUstream stream) {
    void* word = nullptr;
    EXPECT_CUDA(cuda::cuMemHostAlloc(&word, 4096, 0));
    word_ = static_cast<std::atomic<std::uint32_t>*>(word);
    EXPECT_CUDA(cuda::cuStreamWaitValue32_v2(stream, reinterpret_cast<cuda::CUdeviceptr>(word), 1,
                                             cuda::CU_STREAM_WAIT_VALUE_EQ));
  }
  void release() { word_->store(1); }
  ~HeldStream() { release(); }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

 private:
  std::atomic<std::uint32_t>* word_ = nullptr;  // freed with the context
};

}  // namespace gpumux::sim
