// SPDX-License-Identifier: Apache-2.0
// Goal: streams run asynchronously and in the order that the driver promises. Method: a wait for a word in host memory
// holds a stream. The test looks at the operations that may and may not have happened, then writes the word. Nothing
// depends on how long anything takes.
#include <cstring>
#include <filesystem>
#include <thread>

#include "sim/cuda/stream.h"
#include "sim/cuda/test_machine.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

class StreamTest : public SimTest {};

TEST_F(StreamTest, KernelsComputeInOrder) {
  const CUstream stream = make_stream();
  const CUdeviceptr data = allocate(std::size_t{4000} * 4);
  EXPECT_CUDA(fill(stream, data, 4000, 41));
  EXPECT_CUDA(increment(stream, data, 4000));
  EXPECT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(read(data, 4000), std::vector<std::uint32_t>(4000, 42));
}

TEST_F(StreamTest, SaxpyAndChecksumComputeWhatTheySay) {
  constexpr std::uint64_t kCount = 300'000;  // several pieces
  std::vector<float> x(kCount);
  std::vector<float> y(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    x[i] = static_cast<float>(i % 1000);
    y[i] = static_cast<float>(i % 7);
  }
  const CUdeviceptr device_x = allocate(kCount * 4);
  const CUdeviceptr device_y = allocate(kCount * 4);
  const CUdeviceptr out = allocate(8);
  EXPECT_CUDA(cuMemcpyHtoD_v2(device_x, x.data(), kCount * 4));
  EXPECT_CUDA(cuMemcpyHtoD_v2(device_y, y.data(), kCount * 4));
  EXPECT_CUDA(launch("gpumux_saxpy", nullptr, device_y, device_x, 0.5f, kCount));
  EXPECT_CUDA(launch("gpumux_checksum", nullptr, device_x, kCount, out));
  std::vector<float> result(kCount);
  EXPECT_CUDA(cuMemcpyDtoH_v2(result.data(), device_y, kCount * 4));
  std::uint64_t expected = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(result[i], 0.5f * x[i] + y[i]) << i;
    std::uint32_t word = 0;
    std::memcpy(&word, &x[i], sizeof word);
    expected += word * (2 * std::uint64_t{i} + 1);
  }
  std::uint64_t sum = 0;
  EXPECT_CUDA(cuMemcpyDtoH_v2(&sum, out, sizeof sum));
  EXPECT_EQ(sum, expected);
}

TEST_F(StreamTest, SubmittingDoesNotWait) {
  const CUstream stream = make_stream();
  const CUdeviceptr data = allocate(4);
  EXPECT_CUDA(fill(stream, data, 1, 1));
  EXPECT_CUDA(cuStreamSynchronize(stream));
  HeldStream held(stream);
  EXPECT_CUDA(fill(stream, data, 1, 2));
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  // Another stream goes on at the same time.
  const CUstream other = make_stream();
  EXPECT_CUDA(spin(other, 1000));
  EXPECT_CUDA(cuStreamSynchronize(other));
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  held.release();
  EXPECT_CUDA(cuStreamSynchronize(stream));
  EXPECT_CUDA(cuStreamQuery(stream));
  EXPECT_EQ(read(data, 1)[0], 2u);
}

TEST_F(StreamTest, EventsOrderStreams) {
  const CUstream first = make_stream();
  const CUstream second = make_stream();
  const CUdeviceptr data = allocate(4);
  CUevent event = nullptr;
  ASSERT_CUDA(cuEventCreate(&event, 0));
  EXPECT_CUDA(cuEventQuery(event)) << "an event that was never recorded is over";
  HeldStream held(first);
  EXPECT_CUDA(fill(first, data, 1, 10));
  EXPECT_CUDA(cuEventRecord(event, first));
  EXPECT_CUDA(cuStreamWaitEvent(second, event, 0));
  EXPECT_CUDA(increment(second, data, 1));
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
  held.release();
  EXPECT_CUDA(cuStreamSynchronize(second));
  EXPECT_CUDA(cuEventSynchronize(event));
  EXPECT_EQ(read(data, 1)[0], 11u);
  EXPECT_CUDA(cuEventDestroy_v2(event));
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(StreamTest, EventsMeasureSimulatedTime) {
  CUevent start = nullptr;
  CUevent end = nullptr;
  CUevent untimed = nullptr;
  ASSERT_CUDA(cuEventCreate(&start, 0));
  ASSERT_CUDA(cuEventCreate(&end, 0));
  ASSERT_CUDA(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
  const CUstream stream = make_stream();
  float milliseconds = 0;
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_CUDA(cuEventRecord(start, stream));
  for (int i = 0; i < 500; ++i) EXPECT_CUDA(spin(stream, 10'000));
  HeldStream held(stream);
  EXPECT_CUDA(cuEventRecord(end, stream));
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
  held.release();
  EXPECT_CUDA(cuEventSynchronize(end));
  EXPECT_CUDA(cuEventElapsedTime_v2(&milliseconds, start, end));
  // Waiting can take longer than it should, never shorter.
  EXPECT_GE(milliseconds, 5.0f);
  EXPECT_CUDA(cuEventRecord(untimed, stream));
  EXPECT_CUDA(cuEventSynchronize(untimed));
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, start, untimed), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(StreamTest, LegacyStreamWaitsForBlockingStreamsAndTheyForIt) {
  const CUstream blocking = make_stream(CU_STREAM_DEFAULT);
  const CUstream free = make_stream(CU_STREAM_NON_BLOCKING);
  const CUdeviceptr data = allocate(8);
  {
    HeldStream held(blocking);
    EXPECT_CUDA(fill(nullptr, data, 1, 1));
    EXPECT_EQ(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
    EXPECT_CUDA(fill(free, data + 4, 1, 1));
    EXPECT_CUDA(cuStreamSynchronize(free)) << "a non-blocking stream has nothing to do with it";
  }
  EXPECT_CUDA(cuStreamSynchronize(nullptr));
  HeldStream held(legacy_stream());
  EXPECT_CUDA(fill(blocking, data, 1, 2));
  EXPECT_EQ(cuStreamQuery(blocking), CUDA_ERROR_NOT_READY);
  EXPECT_CUDA(cuStreamSynchronize(free));
  held.release();
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(read(data, 1)[0], 2u);
}

TEST_F(StreamTest, PerThreadStreamsAreTheThreadsOwn) {
  const CUdeviceptr data = allocate(4);
  unsigned long long own = 0;
  unsigned long long by_handle = 0;
  EXPECT_CUDA(cuStreamGetId_ptsz(nullptr, &own));
  EXPECT_CUDA(cuStreamGetId(per_thread_stream(), &by_handle));
  EXPECT_EQ(own, by_handle);
  HeldStream held(per_thread_stream());
  std::thread other([&] {
    EXPECT_CUDA(cuCtxSetCurrent(context_));
    unsigned long long others = 0;
    EXPECT_CUDA(cuStreamGetId(per_thread_stream(), &others));
    EXPECT_NE(others, own);
    void* parameters[] = {nullptr, nullptr, nullptr};
    std::uint64_t count = 1;
    std::uint32_t value = 7;
    CUdeviceptr address = data;
    parameters[0] = &address;
    parameters[1] = &count;
    parameters[2] = &value;
    EXPECT_CUDA(cuLaunchKernel_ptsz(function("gpumux_fill"), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    EXPECT_CUDA(cuStreamSynchronize_ptsz(nullptr)) << "another thread's stream is held, not this one's";
  });
  other.join();
  EXPECT_EQ(cuStreamQuery(per_thread_stream()), CUDA_ERROR_NOT_READY);
  held.release();
  EXPECT_CUDA(cuStreamSynchronize(per_thread_stream()));
  EXPECT_EQ(read(data, 1)[0], 7u);
}

TEST_F(StreamTest, AFullQueueMakesTheLaunchWait) {
  const CUstream stream = make_stream();
  HeldStream held(stream);
  std::atomic<int> launched{0};
  constexpr int kLaunches = static_cast<int>(kQueueDepth) + 50;
  std::thread launcher([&] {
    EXPECT_CUDA(cuCtxSetCurrent(context_));
    for (int i = 0; i < kLaunches; ++i) {
      EXPECT_CUDA(spin(stream, 0));
      launched.fetch_add(1);
    }
  });
  // The wait itself takes a place in the queue.
  EXPECT_TRUE(eventually([&] { return launched.load() == static_cast<int>(kQueueDepth) - 1; }));
  EXPECT_EQ(launched.load(), static_cast<int>(kQueueDepth) - 1);
  held.release();
  launcher.join();
  EXPECT_EQ(launched.load(), kLaunches);
  EXPECT_CUDA(cuStreamSynchronize(stream));
}

TEST_F(StreamTest, HostFunctionsRunOnAnotherThreadAndHoldTheirStreamOnly) {
  struct Shared {
    std::atomic<bool> go{false};
    std::atomic<bool> called{false};
    std::thread::id thread;
  } shared;
  const CUstream stream = make_stream();
  const CUdeviceptr data = allocate(4);
  EXPECT_CUDA(cuLaunchHostFunc(
      stream,
      [](void* raw) {
        auto& there = *static_cast<Shared*>(raw);
        there.thread = std::this_thread::get_id();
        there.called.store(true);
        while (!there.go.load()) std::this_thread::yield();
      },
      &shared));
  EXPECT_CUDA(fill(stream, data, 1, 5));
  EXPECT_TRUE(eventually([&] { return shared.called.load(); }));
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  const CUstream other = make_stream();
  EXPECT_CUDA(spin(other, 1000));
  EXPECT_CUDA(cuStreamSynchronize(other));
  shared.go.store(true);
  EXPECT_CUDA(cuStreamSynchronize(stream));
  EXPECT_NE(shared.thread, std::this_thread::get_id());
  EXPECT_EQ(read(data, 1)[0], 5u);
}

TEST_F(StreamTest, CallbacksHearTheStatus) {
  struct Heard {
    std::atomic<int> status{-1};
  } heard;
  EXPECT_CUDA(cuStreamAddCallback(
      nullptr,
      [](CUstream, CUresult status, void* raw) { static_cast<Heard*>(raw)->status.store(static_cast<int>(status)); },
      &heard, 0));
  EXPECT_CUDA(cuStreamSynchronize(nullptr));
  EXPECT_EQ(heard.status.load(), 0);
}

TEST_F(StreamTest, WaitingForValuesComparesAsTheDriverDoes) {
  void* host = nullptr;
  ASSERT_CUDA(cuMemHostAlloc(&host, 64, 0));
  auto* word = static_cast<std::atomic<std::uint64_t>*>(host);
  const auto address = reinterpret_cast<CUdeviceptr>(host);
  struct Case {
    unsigned flags;
    std::uint64_t wanted;
    std::uint64_t not_yet;
    std::uint64_t reached;
  };
  const CUstream stream = make_stream();
  for (const Case& c : {Case{CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 9}, Case{CU_STREAM_WAIT_VALUE_EQ, 5, 9, 5},
                        Case{CU_STREAM_WAIT_VALUE_AND, 6, 8, 2}, Case{CU_STREAM_WAIT_VALUE_NOR, ~1ull, 1, 0},
                        Case{CU_STREAM_WAIT_VALUE_GEQ, 1, ~0ull, 1}}) {
    word->store(c.not_yet);
    EXPECT_CUDA(cuStreamWaitValue64_v2(stream, address, c.wanted, c.flags));
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    word->store(c.reached);
    EXPECT_CUDA(cuStreamSynchronize(stream)) << "flags " << c.flags;
  }
  CUstreamBatchMemOpParams operations[2] = {};
  operations[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  operations[0].writeValue.address = address;
  operations[0].writeValue.value64 = 77;
  operations[1].memoryBarrier.operation = CU_STREAM_MEM_OP_BARRIER;
  EXPECT_CUDA(cuStreamBatchMemOp_v2(stream, 2, operations, 0));
  EXPECT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(word->load(), 77u);
  EXPECT_CUDA(cuStreamWriteValue32_v2(stream, address, 78, 0));
  EXPECT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(word->load(), 78u);
  EXPECT_EQ(cuStreamWaitValue32_v2(stream, address + 1, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(StreamTest, ADestroyedStreamStillDoesItsWork) {
  const CUdeviceptr data = allocate(4);
  const CUstream stream = make_stream();
  HeldStream held(stream);
  EXPECT_CUDA(fill(stream, data, 1, 3));
  EXPECT_CUDA(cuStreamDestroy_v2(stream));
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
  held.release();
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(read(data, 1)[0], 3u);
}

TEST_F(StreamTest, DestroyedStreamsLeaveNoThreads) {
  const auto threads = [] {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/task")) ++count;
    return count;
  };
  const std::size_t before = threads();
  for (int i = 0; i < 50; ++i) {
    const CUstream stream = make_stream();
    EXPECT_CUDA(spin(stream, 1000));
    EXPECT_CUDA(cuStreamDestroy_v2(stream));
    // A thread's own default stream goes with the thread.
    std::thread([&] {
      EXPECT_CUDA(cuCtxSetCurrent(context_));
      EXPECT_CUDA(spin(per_thread_stream(), 1000));
    }).join();
  }
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_TRUE(eventually([&] { return threads() <= before; }));
}

TEST_F(StreamTest, ThingsSaidOfStreams) {
  const CUstream stream = make_stream();
  CUcontext context = nullptr;
  CUdevice device = -1;
  unsigned flags = 0;
  EXPECT_CUDA(cuStreamGetCtx(stream, &context));
  EXPECT_EQ(context, context_);
  EXPECT_CUDA(cuStreamGetDevice(stream, &device));
  EXPECT_EQ(device, 0);
  EXPECT_CUDA(cuStreamGetFlags(stream, &flags));
  EXPECT_EQ(flags, unsigned{CU_STREAM_NON_BLOCKING});
  CUstream urgent = nullptr;
  int priority = 1;
  EXPECT_CUDA(cuStreamCreateWithPriority(&urgent, 0, -100));
  EXPECT_CUDA(cuStreamGetPriority(urgent, &priority));
  EXPECT_EQ(priority, -5) << "clamped to what cuCtxGetStreamPriorityRange says";
}

}  // namespace
}  // namespace gpumux::sim
