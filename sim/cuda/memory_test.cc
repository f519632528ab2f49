// SPDX-License-Identifier: Apache-2.0
// Goal: allocations, copies, fills and facts about pointers are the driver's. Method: patterns are written one way and
// read another; every limit is tried on both sides.
#include <sys/mman.h>

#include <cstring>
#include <numeric>

#include "sim/cuda/test_machine.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

class MemoryTest : public SimTest {};

std::vector<std::uint32_t> counting(std::size_t count) {
  std::vector<std::uint32_t> words(count);
  std::iota(words.begin(), words.end(), 1u);
  return words;
}

TEST_F(MemoryTest, CapacityIsEnforcedAndComesBack) {
  const std::uint64_t before = free_bytes();
  const CUdeviceptr half = allocate(32 << 20);
  EXPECT_EQ(free_bytes(), before - (32 << 20));
  CUdeviceptr none = 0;
  EXPECT_EQ(cuMemAlloc_v2(&none, 32 << 20), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc_v2(&none, std::size_t{1} << 60), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc_v2(&none, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CUDA(cuMemFree_v2(half));
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(cuMemFree_v2(half), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CUDA(cuMemFree_v2(0));
}

TEST_F(MemoryTest, FreshMemoryIsReusableAndPatternsSurvive) {
  // Freed physical memory goes back to the system, and the next allocation works.
  for (int round = 0; round < 20; ++round) {
    const CUdeviceptr data = allocate(4 << 20);
    const auto words = counting(1 << 20);
    EXPECT_CUDA(cuMemcpyHtoD_v2(data, words.data(), 4 << 20));
    ASSERT_EQ(read(data, 1 << 20), words);
    EXPECT_CUDA(cuMemFree_v2(data));
  }
}

TEST_F(MemoryTest, FreeWaitsForTheContextsWork) {
  const CUstream stream = make_stream();
  const CUdeviceptr data = allocate(4 << 20);
  // Without the wait the kernels behind the spin would hit memory that is gone.
  EXPECT_CUDA(spin(stream, 2'000'000));
  for (int i = 0; i < 4; ++i) EXPECT_CUDA(increment(stream, data, 1 << 20));
  EXPECT_CUDA(cuMemFree_v2(data));
  EXPECT_CUDA(cuStreamQuery(stream));
  EXPECT_CUDA(cuCtxSynchronize());
}

TEST_F(MemoryTest, HostProgramsCannotFollowDevicePointers) {
  const CUdeviceptr data = allocate(4096);
  // mincore would not tell; a write by the kernel into the page does: it is refused instead of raising a signal.
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  EXPECT_EQ(::write(pipe_ends[1], reinterpret_cast<const void*>(data), 4), -1);
  EXPECT_EQ(errno, EFAULT);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

TEST_F(MemoryTest, ManagedMemoryIsTheSameForHostAndKernels) {
  CUdeviceptr data = 0;
  const std::uint64_t before = free_bytes();
  ASSERT_CUDA(cuMemAllocManaged(&data, 4096, CU_MEM_ATTACH_GLOBAL));
  EXPECT_EQ(free_bytes(), before);
  auto* host = reinterpret_cast<std::uint32_t*>(data);
  host[0] = 41;
  EXPECT_CUDA(increment(nullptr, data, 1));
  EXPECT_CUDA(cuMemPrefetchAsync(data, 4096, 0, nullptr));
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(host[0], 42u);
  int managed = 0;
  EXPECT_CUDA(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, data));
  EXPECT_EQ(managed, 1);
  EXPECT_CUDA(cuMemFree_v2(data));
}

// A range has an attribute if the program has asked for it for all of the range's pages.
TEST_F(MemoryTest, ManagedMemoryRemembersWhereItWasAskedToBe) {
  constexpr std::size_t kBytes = 1 << 20;
  CUdeviceptr data = 0;
  ASSERT_CUDA(cuMemAllocManaged(&data, kBytes, CU_MEM_ATTACH_GLOBAL));
  const auto ask = [&](CUmem_range_attribute attribute, std::size_t offset, std::size_t bytes) {
    int answer = 77;
    EXPECT_CUDA(cuMemRangeGetAttribute(&answer, sizeof answer, attribute, data + offset, bytes));
    return answer;
  };
  const auto preferred = [&](std::size_t offset, std::size_t bytes) {
    return ask(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, offset, bytes);
  };
  const auto prefetched = [&](std::size_t offset, std::size_t bytes) {
    return ask(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, offset, bytes);
  };
  EXPECT_EQ(preferred(0, kBytes), kDeviceInvalid);
  EXPECT_EQ(prefetched(0, kBytes), kDeviceInvalid);
  EXPECT_CUDA(cuMemPrefetchAsync(data, kBytes, 0, nullptr));
  EXPECT_CUDA(cuMemPrefetchAsync_v2(data + 8192, 4097, {CU_MEM_LOCATION_TYPE_HOST, 0}, 0, nullptr));
  EXPECT_EQ(prefetched(0, 8192), 0);
  EXPECT_EQ(prefetched(8192, 8192), kDeviceCpu) << "whole pages are moved";
  EXPECT_EQ(prefetched(16384, kBytes - 16384), 0);
  EXPECT_EQ(prefetched(0, kBytes), kDeviceInvalid);
  EXPECT_EQ(ask(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, 8192, 1),
            static_cast<int>(CU_MEM_LOCATION_TYPE_HOST));
  EXPECT_CUDA(cuMemAdvise(data, kBytes / 2, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, kDeviceCpu));
  EXPECT_EQ(preferred(0, kBytes / 2), kDeviceCpu);
  EXPECT_EQ(preferred(0, kBytes), kDeviceInvalid);
  EXPECT_CUDA(cuMemAdvise_v2(data + kBytes / 2, kBytes / 2, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                             {CU_MEM_LOCATION_TYPE_HOST, 0}));
  EXPECT_EQ(preferred(4096, kBytes - 4096), kDeviceCpu);
  EXPECT_CUDA(cuMemAdvise(data + 4096, 1, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, kDeviceCpu));
  EXPECT_EQ(preferred(0, 4096), kDeviceCpu);
  EXPECT_EQ(preferred(4096, 4096), kDeviceInvalid);
  EXPECT_EQ(cuMemAdvise(data, kBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 99), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuMemAdvise(data, 2 * kBytes + (1 << 21), CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, 0),
            CUDA_ERROR_INVALID_VALUE);
  // Nothing is said of memory that comes to lie there later.
  EXPECT_CUDA(cuMemFree_v2(data));
  CUdeviceptr later = 0;
  ASSERT_CUDA(cuMemAllocManaged(&later, kBytes, CU_MEM_ATTACH_GLOBAL));
  data = later;
  EXPECT_EQ(preferred(0, 4096), kDeviceInvalid);
  EXPECT_EQ(prefetched(8192, 4096), kDeviceInvalid);
  EXPECT_CUDA(cuMemFree_v2(data));
}

TEST_F(MemoryTest, PinnedAndRegisteredHostMemoryIsReachedByKernels) {
  void* pinned = nullptr;
  ASSERT_CUDA(cuMemHostAlloc(&pinned, 4096, kMemHostAllocPortable));
  auto* words = static_cast<std::uint32_t*>(pinned);
  words[0] = 1;
  CUdeviceptr device = 0;
  EXPECT_CUDA(cuMemHostGetDevicePointer_v2(&device, pinned, 0));
  EXPECT_CUDA(increment(nullptr, device, 1));
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(words[0], 2u);
  unsigned flags = 0;
  EXPECT_CUDA(cuMemHostGetFlags(&flags, pinned));
  EXPECT_EQ(flags, kMemHostAllocPortable | kMemHostAllocDeviceMap);
  EXPECT_CUDA(cuMemFreeHost(pinned));
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);

  std::vector<std::uint32_t> own(1024, 7);
  EXPECT_CUDA(cuMemHostRegister_v2(own.data(), 4096, 0));
  EXPECT_EQ(cuMemHostRegister_v2(own.data(), 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_CUDA(increment(nullptr, reinterpret_cast<CUdeviceptr>(own.data()), 1024));
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(own, std::vector<std::uint32_t>(1024, 8));
  EXPECT_CUDA(cuMemHostUnregister(own.data()));
  EXPECT_EQ(cuMemHostUnregister(own.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  // Pageable memory is not the GPU's to touch.
  EXPECT_CUDA(increment(nullptr, reinterpret_cast<CUdeviceptr>(own.data()), 1));
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(MemoryTest, AsynchronousCopiesTakePageableMemoryAtOnce) {
  const CUstream stream = make_stream();
  const CUdeviceptr data = allocate(1 << 20);
  HeldStream held(stream);
  std::vector<std::uint32_t> words(16, 5);
  EXPECT_CUDA(cuMemcpyHtoDAsync_v2(data, words.data(), 64, stream));
  words.assign(16, 6);  // too late to matter
  held.release();
  EXPECT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(read(data, 16), std::vector<std::uint32_t>(16, 5));
  // To pageable memory the call waits.
  std::vector<std::uint32_t> back(16);
  EXPECT_CUDA(cuMemcpyDtoHAsync_v2(back.data(), data, 64, stream));
  EXPECT_EQ(back, std::vector<std::uint32_t>(16, 5));
}

TEST_F(MemoryTest, PinnedCopiesAreAsynchronous) {
  const CUstream stream = make_stream();
  const CUdeviceptr data = allocate(4096);
  void* pinned = nullptr;
  ASSERT_CUDA(cuMemAllocHost_v2(&pinned, 4096));
  std::memset(pinned, 0, 4096);
  EXPECT_CUDA(fill(stream, data, 1024, 3));
  EXPECT_CUDA(cuStreamSynchronize(stream));
  HeldStream held(stream);
  EXPECT_CUDA(cuMemcpyDtoHAsync_v2(pinned, data, 4096, stream));
  EXPECT_EQ(static_cast<std::uint32_t*>(pinned)[1023], 0u);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  held.release();
  EXPECT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(static_cast<std::uint32_t*>(pinned)[1023], 3u);
}

TEST_F(MemoryTest, CopiesBetweenAnyTwoPlaces) {
  CUcontext second = nullptr;
  ASSERT_CUDA(cuCtxCreate_v2(&second, 0, 1));
  const CUdeviceptr there = allocate(4096);
  ASSERT_CUDA(cuCtxPopCurrent_v2(nullptr));
  const CUdeviceptr a = allocate(4096);
  const CUdeviceptr b = allocate(4096);
  const auto words = counting(1024);
  EXPECT_CUDA(cuMemcpy(a, reinterpret_cast<CUdeviceptr>(words.data()), 4096));
  EXPECT_CUDA(cuMemcpyDtoDAsync_v2(b, a, 4096, nullptr));
  EXPECT_CUDA(cuMemcpyPeer(there, second, b, context_, 4096));
  EXPECT_CUDA(cuMemsetD32_v2(a, 0, 1024));
  EXPECT_CUDA(cuMemcpyPeerAsync(a, context_, there, second, 4096, nullptr));
  std::vector<std::uint32_t> back(1024);
  EXPECT_CUDA(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(back.data()), a, 4096, nullptr));
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(back, words);
  EXPECT_EQ(cuMemcpyPeer(there, nullptr, b, context_, 4096), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_CUDA(cuCtxPushCurrent_v2(second));
  EXPECT_CUDA(cuCtxDestroy_v2(second));
}

TEST_F(MemoryTest, BlocksOfRowsAndSlices) {
  CUdeviceptr pitched = 0;
  std::size_t pitch = 0;
  ASSERT_CUDA(cuMemAllocPitch_v2(&pitched, &pitch, 100, 8, 4));
  EXPECT_EQ(pitch % 512, 0u);
  const auto words = counting(std::size_t{25} * 8);
  CUDA_MEMCPY2D in{};
  in.srcMemoryType = CU_MEMORYTYPE_HOST;
  in.srcHost = words.data();
  in.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  in.dstDevice = pitched;
  in.dstPitch = pitch;
  in.WidthInBytes = 100;
  in.Height = 8;
  EXPECT_CUDA(cuMemcpy2D_v2(&in));
  EXPECT_EQ(read(pitched + 3 * pitch, 1)[0], 3 * 25 + 1u);
  // The same rows as two slices of four, of which one part is taken out.
  std::vector<std::uint32_t> part(std::size_t{2} * 2 * 5);
  CUDA_MEMCPY3D out{};
  out.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  out.srcDevice = pitched;
  out.srcPitch = pitch;
  out.srcHeight = 4;
  out.srcXInBytes = 8;
  out.srcY = 1;
  out.dstMemoryType = CU_MEMORYTYPE_HOST;
  out.dstHost = part.data();
  out.dstPitch = 20;
  out.dstHeight = 2;
  out.WidthInBytes = 20;
  out.Height = 2;
  out.Depth = 2;
  EXPECT_CUDA(cuMemcpy3D_v2(&out));
  for (std::uint32_t z = 0; z < 2; ++z) {
    for (std::uint32_t y = 0; y < 2; ++y) {
      for (std::uint32_t x = 0; x < 5; ++x)
        EXPECT_EQ(part[(z * 2 + y) * 5 + x], (z * 4 + y + 1) * 25 + x + 2 + 1) << z << y << x;
    }
  }
  out.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  EXPECT_EQ(cuMemcpy3D_v2(&out), CUDA_ERROR_NOT_SUPPORTED);
  out.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  out.dstPitch = 19;
  EXPECT_EQ(cuMemcpy3D_v2(&out), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, FillsOfEveryWidth) {
  const CUdeviceptr data = allocate(4096);
  EXPECT_CUDA(cuMemsetD8_v2(data, 0xab, 4096));
  EXPECT_CUDA(cuMemsetD16_v2(data + 2, 0x1234, 1));
  EXPECT_CUDA(cuMemsetD32Async(data + 8, 0xdeadbeef, 2, nullptr));
  EXPECT_CUDA(cuMemsetD2D8_v2(data + 16, 8, 0, 4, 2));
  EXPECT_EQ(read(data, 8),
            (std::vector<std::uint32_t>{0x1234abab, 0xabababab, 0xdeadbeef, 0xdeadbeef, 0, 0xabababab, 0, 0xabababab}));
  EXPECT_EQ(cuMemsetD32_v2(data + 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD2D32_v2(data, 4, 0, 2, 2), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, CopiesLookWhenSubmittedFillsWhenTheyRun) {
  const CUdeviceptr data = allocate(4096);
  std::uint32_t word = 0;
  EXPECT_EQ(cuMemcpyDtoH_v2(&word, data + (1 << 30), 4), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoH_v2(&word, data + 4092, 8), CUDA_ERROR_INVALID_VALUE) << "the end counts";
  EXPECT_CUDA(cuCtxSynchronize()) << "and that breaks nothing";
  EXPECT_CUDA(cuMemsetD8_v2(data + (1 << 30), 0, 1));
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(MemoryTest, PeersMustBeEnabledForKernels) {
  CUcontext second = nullptr;
  ASSERT_CUDA(cuCtxCreate_v2(&second, 0, 1));
  load_kernels();
  const CUdeviceptr here = allocate(4);
  ASSERT_CUDA(cuCtxPushCurrent_v2(context_));
  load_kernels();
  const CUdeviceptr there = allocate(4);
  EXPECT_CUDA(fill(nullptr, there, 1, 1));
  EXPECT_CUDA(cuCtxSynchronize());
  ASSERT_CUDA(cuCtxPopCurrent_v2(nullptr));
  load_kernels();
  int can = 0;
  EXPECT_CUDA(cuDeviceCanAccessPeer(&can, 1, 0));
  EXPECT_EQ(can, 1);
  EXPECT_CUDA(cuDeviceCanAccessPeer(&can, 0, 0));
  EXPECT_EQ(can, 0);
  EXPECT_CUDA(cuCtxEnablePeerAccess(context_, 0));
  EXPECT_EQ(cuCtxEnablePeerAccess(context_, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_CUDA(increment(nullptr, there, 1));
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(read(there, 1)[0], 2u);
  EXPECT_CUDA(cuCtxDisablePeerAccess(context_));
  EXPECT_EQ(cuCtxDisablePeerAccess(context_), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  EXPECT_CUDA(fill(nullptr, here, 1, 1));
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_CUDA(increment(nullptr, there, 1));
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_CUDA(cuCtxDestroy_v2(second));
}

TEST_F(MemoryTest, FactsAboutPointers) {
  const CUdeviceptr data = allocate(1000);
  CUdeviceptr base = 0;
  std::size_t size = 0;
  EXPECT_CUDA(cuMemGetAddressRange_v2(&base, &size, data + 10));
  EXPECT_EQ(base, data);
  EXPECT_EQ(size, 1000u);
  CUcontext context = nullptr;
  EXPECT_CUDA(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, data + 10));
  EXPECT_EQ(context, context_);
  CUmemorytype type{};
  EXPECT_CUDA(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, data));
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  int ordinal = -1;
  EXPECT_CUDA(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, data));
  EXPECT_EQ(ordinal, 0);
  int on_stack = 0;
  const auto unknown = reinterpret_cast<CUdeviceptr>(&on_stack);
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, unknown), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemGetAddressRange_v2(&base, &size, unknown), CUDA_ERROR_NOT_FOUND);
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* answers[] = {&type, &ordinal};
  EXPECT_CUDA(cuPointerGetAttributes(2, attributes, answers, unknown));
  EXPECT_EQ(static_cast<int>(type), 0);
  EXPECT_EQ(ordinal, int{kDeviceInvalid});
  unsigned long long first = 0;
  unsigned long long second = 0;
  EXPECT_CUDA(cuPointerGetAttribute(&first, CU_POINTER_ATTRIBUTE_BUFFER_ID, data));
  EXPECT_CUDA(cuPointerGetAttribute(&second, CU_POINTER_ATTRIBUTE_BUFFER_ID, allocate(4)));
  EXPECT_NE(first, second);
}

TEST_F(MemoryTest, TransfersTakeTheirTimeAndShareTheBandwidth) {
  // At 1 GiB/s, 4 MiB take 3.9 ms; two at once in one direction take twice as long. Only lower bounds hold on a busy
  // machine.
  const CUdeviceptr data = allocate(16 << 20);
  void* pinned = nullptr;
  ASSERT_CUDA(cuMemAllocHost_v2(&pinned, 16 << 20));
  CUevent start = nullptr;
  CUevent end = nullptr;
  ASSERT_CUDA(cuEventCreate(&start, 0));
  ASSERT_CUDA(cuEventCreate(&end, 0));
  const CUstream first = make_stream();
  const CUstream second = make_stream();
  const auto second_half = static_cast<char*>(pinned) + (8 << 20);
  float one = 0;
  EXPECT_CUDA(cuEventRecord(start, first));
  EXPECT_CUDA(cuMemcpyHtoDAsync_v2(data, pinned, 4 << 20, first));
  EXPECT_CUDA(cuEventRecord(end, first));
  EXPECT_CUDA(cuEventSynchronize(end));
  EXPECT_CUDA(cuEventElapsedTime(&one, start, end));
  EXPECT_GE(one, 3.8f);
  float both = 0;
  EXPECT_CUDA(cuEventRecord(start, first));
  EXPECT_CUDA(cuMemcpyHtoDAsync_v2(data, pinned, 4 << 20, first));
  EXPECT_CUDA(cuMemcpyHtoDAsync_v2(data + (8 << 20), second_half, 4 << 20, second));
  EXPECT_CUDA(cuStreamSynchronize(second));
  EXPECT_CUDA(cuEventRecord(end, first));
  EXPECT_CUDA(cuEventSynchronize(end));
  EXPECT_CUDA(cuEventElapsedTime(&both, start, end));
  EXPECT_GE(both, 6.5f) << "8 MiB at 1 GiB/s, less what the first did before the second began";
}

TEST_F(MemoryTest, PoolsReuseInStreamOrderAndGiveBackBeyondTheirThreshold) {
  const CUstream stream = make_stream();
  const CUstream other = make_stream();
  CUmemoryPool pool = nullptr;
  ASSERT_CUDA(cuDeviceGetDefaultMemPool(&pool, 0));
  const std::uint64_t before = free_bytes();
  CUdeviceptr first = 0;
  CUdeviceptr again = 0;
  ASSERT_CUDA(cuMemAllocAsync(&first, 5 << 20, stream));
  EXPECT_CUDA(fill(stream, first, 1024, 1));
  EXPECT_EQ(free_bytes(), before - (6 << 20));
  {
    HeldStream held(stream);
    EXPECT_CUDA(cuMemFreeAsync(first, stream));
    EXPECT_CUDA(cuMemAllocAsync(&again, 5 << 20, stream));
    EXPECT_EQ(again, first) << "the same stream may have it at once";
    EXPECT_CUDA(cuMemFreeAsync(again, stream));
    CUdeviceptr elsewhere = 0;
    EXPECT_CUDA(cuMemAllocAsync(&elsewhere, 5 << 20, other));
    EXPECT_NE(elsewhere, first) << "another stream may not, as long as the free is not reached";
    EXPECT_CUDA(cuMemFreeAsync(elsewhere, other));
  }
  EXPECT_CUDA(cuStreamSynchronize(stream));
  EXPECT_CUDA(cuStreamSynchronize(other));
  EXPECT_EQ(free_bytes(), before) << "the threshold is 0";
  std::uint64_t threshold = 32 << 20;
  EXPECT_CUDA(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  ASSERT_CUDA(cuMemAllocAsync(&first, 4 << 20, stream));
  EXPECT_CUDA(cuMemFreeAsync(first, stream));
  EXPECT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(free_bytes(), before - (4 << 20)) << "below the threshold the pool keeps it";
  std::uint64_t reserved = 0;
  std::uint64_t used = 1;
  EXPECT_CUDA(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
  EXPECT_CUDA(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(reserved, std::uint64_t{4} << 20);
  EXPECT_EQ(used, 0u);
  // An allocation that needs it all gets it all.
  ASSERT_CUDA(cuMemAllocAsync(&first, before, stream));
  EXPECT_CUDA(cuMemFreeAsync(first, stream));
  EXPECT_CUDA(cuStreamSynchronize(stream));
  EXPECT_CUDA(cuMemPoolTrimTo(pool, 0));
  EXPECT_EQ(free_bytes(), before);
  threshold = 0;
  EXPECT_CUDA(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
}

TEST_F(MemoryTest, PoolsOfOnesOwn) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  properties.maxSize = 4 << 20;
  CUmemoryPool pool = nullptr;
  ASSERT_CUDA(cuMemPoolCreate(&pool, &properties));
  const std::uint64_t before = free_bytes();
  CUdeviceptr data = 0;
  EXPECT_EQ(cuMemAllocFromPoolAsync(&data, 8 << 20, pool, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_CUDA(cuMemAllocFromPoolAsync(&data, 2 << 20, pool, nullptr));
  EXPECT_CUDA(cuMemsetD32_v2(data, 7, 1));
  EXPECT_EQ(read(data, 1)[0], 7u);
  EXPECT_CUDA(cuMemFree_v2(data)) << "the plain free works too";
  EXPECT_CUDA(cuMemPoolDestroy(pool));
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(cuMemPoolTrimTo(pool, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, ADestroyedPoolsAllocationsLiveUntilTheyAreFreed) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool = nullptr;
  ASSERT_CUDA(cuMemPoolCreate(&pool, &properties));
  const std::uint64_t before = free_bytes();
  CUdeviceptr data = 0;
  ASSERT_CUDA(cuMemAllocFromPoolAsync(&data, 2 << 20, pool, nullptr));
  EXPECT_CUDA(cuMemPoolDestroy(pool));
  EXPECT_EQ(cuMemPoolTrimTo(pool, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CUDA(cuMemsetD32_v2(data, 7, 1));
  EXPECT_EQ(read(data, 1)[0], 7u);
  EXPECT_CUDA(cuMemFreeAsync(data, nullptr));
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(cuMemFreeAsync(data, nullptr), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace gpumux::sim
