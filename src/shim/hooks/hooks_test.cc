// SPDX-License-Identifier: Apache-2.0
// Unusual calls: ones that fail, or end something in an unusual way, or use two GPUs. The program gets the driver's
// answer and keeps what it has, and what it has is counted where it is. The process's tenant runs without a daemon
// here.
#include <gtest/gtest.h>

#include <cstdlib>

// Before the machine is made.
inline const bool kHasTwoGpus = ::setenv("GPUMUX_SIM_GPUS", "2", 1) == 0;

#include "pager/pager_test_support.h"
#include "shim/hooks/hooks.gen.h"
#include "shim/hooks/submit.h"
#include "shim/process/real_driver.h"
#include "shim/tenant/tenant.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux::shim {

constinit cuda::Driver g_driver;
constinit std::atomic<bool> g_driver_loaded{false};

void load_real_driver() {
  g_driver = sim::simulated_driver();
  g_driver_loaded.store(true, std::memory_order_release);
}

namespace {

using namespace cuda;

class HooksTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_EQ(::setenv("GPUMUX_RUNTIME_DIR", directory().path().c_str(), 1), 0);
    ASSERT_EQ(::setenv("GPUMUX_CONNECT_TIMEOUT", "0", 1), 0);
    ASSERT_EQ(::unsetenv("GPUMUX_DISABLE"), 0);
    ASSERT_EQ(driver().cuInit(0), CUDA_SUCCESS);
  }
  static const TemporaryDirectory& directory() {
    static const TemporaryDirectory made;
    return made;
  }
  static CUdeviceptr allocate(std::uint32_t value) {
    CUdeviceptr address = 0;
    EXPECT_EQ(hooks::cuMemAlloc_v2(&address, kWords * 4), CUDA_SUCCESS);
    EXPECT_EQ(driver().cuMemsetD32_v2(address, value, kWords), CUDA_SUCCESS);
    return address;
  }
  static void expect_value(CUdeviceptr address, std::uint32_t value) {
    std::vector<std::uint32_t> words(kWords);
    ASSERT_EQ(driver().cuMemcpyDtoH_v2(words.data(), address, kWords * 4), CUDA_SUCCESS);
    EXPECT_EQ(words, std::vector<std::uint32_t>(kWords, value));
  }
  static constexpr std::size_t kWords = std::size_t{1} << 20;
};

TEST_F(HooksTest, APrimaryContextThatIsDestroyedAsAnOrdinaryOneKeepsItsMemory) {
  CUcontext context = nullptr;
  ASSERT_EQ(hooks::cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuCtxSetCurrent(context), CUDA_SUCCESS);
  const CUdeviceptr address = allocate(7);
  EXPECT_EQ(hooks::cuCtxDestroy_v2(context), CUDA_ERROR_INVALID_CONTEXT);
  expect_value(address, 7);
  EXPECT_EQ(hooks::cuMemFree_v2(address), CUDA_SUCCESS);
  EXPECT_EQ(hooks::cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
}

TEST_F(HooksTest, AContextThatIsDetachedAndLivesOnKeepsItsMemory) {
  CUcontext context = nullptr;
  ASSERT_EQ(hooks::cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  const CUdeviceptr address = allocate(7);
  EXPECT_EQ(hooks::cuCtxDetach(context), CUDA_ERROR_NOT_SUPPORTED);
  expect_value(address, 7);
  EXPECT_EQ(hooks::cuMemFree_v2(address), CUDA_SUCCESS);
  EXPECT_EQ(hooks::cuCtxDestroy_v2(context), CUDA_SUCCESS);
}

TEST_F(HooksTest, MemoryOfAPoolCountsOnThePoolsGpu) {
  CUcontext contexts[2] = {};
  for (CUdevice device : {0, 1}) ASSERT_EQ(hooks::cuCtxCreate_v2(&contexts[device], 0, device), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuCtxSetCurrent(contexts[0]), CUDA_SUCCESS);
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  CUmemoryPool pool = nullptr;
  CUdeviceptr address = 0;
  CUstream stream = nullptr;
  ASSERT_EQ(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(hooks::cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  ASSERT_EQ(hooks::cuMemAllocFromPoolAsync(&address, kWords * 4, pool, stream), CUDA_SUCCESS);
  const auto counted = [](CUdevice device) {
    DeviceMemory& memory = tenant()->memories().of(*tenant()->seat_of_device(device));
    memory.count_pools();
    return memory.report(0, 0).unpageable[static_cast<std::size_t>(wire::Unpageable::kPool)];
  };
  EXPECT_EQ(counted(0), 0u);
  EXPECT_GE(counted(1), kWords * 4);
  EXPECT_EQ(hooks::cuMemFreeAsync(address, stream), CUDA_SUCCESS);
  EXPECT_EQ(driver().cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(hooks::cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(counted(1), 0u);
  for (const CUcontext context : contexts) EXPECT_EQ(hooks::cuCtxDestroy_v2(context), CUDA_SUCCESS);
}

TEST_F(HooksTest, ACaptureEndsWithItsStream) {
  CUcontext context = nullptr;
  ASSERT_EQ(hooks::cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  CUstream stream = nullptr;
  ASSERT_EQ(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(hooks::cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_TRUE(tenant()->captures().any());
  EXPECT_EQ(hooks::cuStreamDestroy_v2(stream), CUDA_SUCCESS);
  EXPECT_FALSE(tenant()->captures().any());

  ASSERT_EQ(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(hooks::cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(hooks::cuCtxDestroy_v2(context), CUDA_SUCCESS);
  EXPECT_FALSE(tenant()->captures().any());
}

TEST_F(HooksTest, WhatWasUsedDuringACaptureTakesTheShortWayAfterIt) {
  CUcontext context = nullptr;
  ASSERT_EQ(hooks::cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  const CUdeviceptr address = allocate(7);
  CUstream captured = nullptr;
  CUstream other = nullptr;
  CUgraph graph = nullptr;
  ASSERT_EQ(driver().cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  const auto submit_to_other = [&] {
    EXPECT_EQ(submit(at_stream(other, StreamVariant::kLegacy), driver().cuMemsetD32Async, address, 8u, kWords, other),
              CUDA_SUCCESS);
    return gate::t_record->memo_of(other).direct_generation == gate::memo_generation();
  };
  ASSERT_EQ(hooks::cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_FALSE(submit_to_other());
  ASSERT_EQ(hooks::cuStreamEndCapture(captured, &graph), CUDA_SUCCESS);
  EXPECT_EQ(submit_to_other(), tenant()->gate().has_short_way());
  EXPECT_EQ(hooks::cuMemFree_v2(address), CUDA_SUCCESS);
  EXPECT_EQ(hooks::cuCtxDestroy_v2(context), CUDA_SUCCESS);
}

TEST_F(HooksTest, ACaptureDoesNotEndByAnErrorOfAnotherStream) {
  CUcontext context = nullptr;
  ASSERT_EQ(hooks::cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  CUstream stream = nullptr;
  CUstream other = nullptr;
  CUevent event = nullptr;
  CUgraph graph = nullptr;
  ASSERT_EQ(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuEventCreate(&event, 0), CUDA_SUCCESS);
  ASSERT_EQ(hooks::cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  ASSERT_EQ(driver().cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(hooks::cuStreamEndCapture(other, &graph), CUDA_ERROR_ILLEGAL_STATE);
  EXPECT_TRUE(tenant()->captures().any());
  ASSERT_EQ(hooks::cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
  EXPECT_EQ(hooks::cuStreamEndCapture(other, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  EXPECT_TRUE(tenant()->captures().any());
  EXPECT_EQ(hooks::cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_FALSE(tenant()->captures().any());
  EXPECT_EQ(hooks::cuCtxDestroy_v2(context), CUDA_SUCCESS);
}

// The thread has used its own default stream, which cannot be asked while something captures.
TEST_F(HooksTest, MemoryAndContextsGoInTheMiddleOfACapture) {
  CUcontext context = nullptr;
  ASSERT_EQ(hooks::cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  const CUdeviceptr address = allocate(7);
  EXPECT_EQ(
      (submit(at_stream(nullptr, StreamVariant::kPtsz), driver().cuMemsetD32Async_ptsz, address, 8u, kWords, nullptr)),
      CUDA_SUCCESS);
  EXPECT_EQ(driver().cuStreamSynchronize_ptsz(nullptr), CUDA_SUCCESS);
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  ASSERT_EQ(driver().cuStreamCreate(&stream, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  ASSERT_EQ(hooks::cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(hooks::cuMemFree_v2(address), CUDA_SUCCESS);
  EXPECT_EQ(hooks::cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  ASSERT_EQ(hooks::cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(hooks::cuCtxDestroy_v2(context), CUDA_SUCCESS);
}

}  // namespace
}  // namespace gpumux::shim
