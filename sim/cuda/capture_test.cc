// SPDX-License-Identifier: Apache-2.0
// Goal: stream capture follows the driver's rules, the forbidden calls among them. Method: one test per rule; nothing
// may have executed while a capture went on.
#include <thread>

#include "sim/cuda/test_machine.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

class CaptureTest : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    data_ = allocate(4096);
    stream_ = make_stream();
    other_ = make_stream();
    EXPECT_CUDA(cuMemsetD32_v2(data_, 0, 1024));
    EXPECT_CUDA(cuCtxSynchronize());
  }
  CUstreamCaptureStatus status(CUstream stream) {
    CUstreamCaptureStatus found{};
    EXPECT_CUDA(cuStreamIsCapturing(stream, &found));
    return found;
  }
  CUresult begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    return cuStreamBeginCapture_v2(stream_, mode);
  }
  // Ends the capture; the result, which must come with a graph exactly when it is success.
  CUresult end() {
    const CUresult result = cuStreamEndCapture(stream_, &graph_);
    EXPECT_EQ(graph_ != nullptr, result == CUDA_SUCCESS);
    return result;
  }
  void run() {
    CUgraphExec exec = nullptr;
    ASSERT_CUDA(cuGraphInstantiateWithFlags(&exec, graph_, 0));
    EXPECT_CUDA(cuGraphLaunch(exec, stream_));
    EXPECT_CUDA(cuStreamSynchronize(stream_));
    EXPECT_CUDA(cuGraphExecDestroy(exec));
  }

  CUdeviceptr data_ = 0;
  CUstream stream_ = nullptr;
  CUstream other_ = nullptr;
  CUgraph graph_ = nullptr;
};

TEST_F(CaptureTest, WhatIsCapturedRunsWhenTheGraphDoes) {
  ASSERT_CUDA(begin());
  EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(status(other_), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_CUDA(fill(stream_, data_, 1, 5));
  EXPECT_CUDA(increment(stream_, data_, 1));
  EXPECT_CUDA(cuMemcpyDtoDAsync_v2(data_ + 4, data_, 4, stream_));
  EXPECT_CUDA(cuMemsetD32Async(data_ + 8, 9, 1, stream_));
  std::size_t count = 0;
  std::uint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* tail = nullptr;
  CUstreamCaptureStatus found{};
  EXPECT_CUDA(cuStreamGetCaptureInfo_v2(stream_, &found, &id, &graph, &tail, &count));
  EXPECT_EQ(count, 1u);
  EXPECT_NE(id, 0u);
  EXPECT_CUDA(end());
  EXPECT_EQ(graph, graph_);
  EXPECT_EQ(read(data_, 3), (std::vector<std::uint32_t>{0, 0, 0})) << "nothing may have run";
  EXPECT_CUDA(cuGraphGetNodes(graph_, nullptr, &count));
  EXPECT_EQ(count, 4u);
  run();
  EXPECT_EQ(read(data_, 3), (std::vector<std::uint32_t>{6, 6, 9}));
}

TEST_F(CaptureTest, ForksAndJoinsByEvents) {
  CUevent fork = nullptr;
  CUevent join = nullptr;
  ASSERT_CUDA(cuEventCreate(&fork, 0));
  ASSERT_CUDA(cuEventCreate(&join, 0));
  ASSERT_CUDA(begin());
  EXPECT_CUDA(fill(stream_, data_, 1, 5));
  EXPECT_CUDA(cuEventRecord(fork, stream_));
  EXPECT_CUDA(cuStreamWaitEvent(other_, fork, 0));
  EXPECT_EQ(status(other_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_CUDA(cuMemcpyDtoDAsync_v2(data_ + 4, data_, 4, other_));
  EXPECT_CUDA(cuMemsetD32Async(data_ + 8, 7, 1, stream_));
  EXPECT_CUDA(cuEventRecord(join, other_));
  EXPECT_CUDA(cuStreamWaitEvent(stream_, join, 0));
  EXPECT_CUDA(increment(stream_, data_ + 4, 1));
  EXPECT_CUDA(end());
  EXPECT_EQ(status(other_), CU_STREAM_CAPTURE_STATUS_NONE);
  std::size_t edges = 0;
  EXPECT_CUDA(cuGraphGetEdges(graph_, nullptr, nullptr, &edges));
  EXPECT_EQ(edges, 4u);
  run();
  EXPECT_EQ(read(data_, 3), (std::vector<std::uint32_t>{5, 6, 7}));
}

TEST_F(CaptureTest, UnjoinedStreamsAreAnError) {
  CUevent fork = nullptr;
  ASSERT_CUDA(cuEventCreate(&fork, 0));
  ASSERT_CUDA(begin());
  EXPECT_CUDA(cuEventRecord(fork, stream_));
  EXPECT_CUDA(cuStreamWaitEvent(other_, fork, 0));
  EXPECT_CUDA(fill(other_, data_, 1, 5));
  EXPECT_EQ(cuStreamEndCapture(other_, &graph_), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  ASSERT_CUDA(begin());
  EXPECT_CUDA(cuEventRecord(fork, stream_));
  EXPECT_CUDA(cuStreamWaitEvent(other_, fork, 0));
  EXPECT_CUDA(fill(other_, data_, 1, 5));
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(status(other_), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_CUDA(cuStreamSynchronize(other_));
}

TEST_F(CaptureTest, ForbiddenWaitsInvalidate) {
  const auto expect_invalidated = [&](CUresult call, CUresult expected, const char* what) {
    EXPECT_EQ(call, expected) << what;
    EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_INVALIDATED) << what;
    EXPECT_EQ(fill(stream_, data_, 1, 1), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) << what;
    EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) << what;
    EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_NONE) << what;
  };
  CUevent event = nullptr;
  ASSERT_CUDA(cuEventCreate(&event, 0));
  ASSERT_CUDA(begin());
  expect_invalidated(cuStreamSynchronize(stream_), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "synchronise");
  ASSERT_CUDA(begin());
  expect_invalidated(cuStreamQuery(stream_), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "query");
  ASSERT_CUDA(begin(CU_STREAM_CAPTURE_MODE_RELAXED));
  expect_invalidated(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "context");
  ASSERT_CUDA(begin());
  EXPECT_CUDA(cuEventRecord(event, stream_));
  expect_invalidated(cuEventSynchronize(event), CUDA_ERROR_CAPTURED_EVENT, "captured event");
  ASSERT_CUDA(begin());
  CUevent outside = nullptr;
  ASSERT_CUDA(cuEventCreate(&outside, 0));
  EXPECT_CUDA(cuEventRecord(outside, other_));
  expect_invalidated(cuStreamWaitEvent(stream_, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "uncaptured event");
  // An event that was captured is like any other once it is recorded again.
  EXPECT_CUDA(cuEventRecord(event, other_));
  EXPECT_CUDA(cuEventSynchronize(event));
}

TEST_F(CaptureTest, TheLegacyStreamMustNotDependOnACapture) {
  stream_ = make_stream(CU_STREAM_DEFAULT);
  ASSERT_CUDA(begin(CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(fill(nullptr, data_, 1, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  stream_ = make_stream(CU_STREAM_NON_BLOCKING);
  ASSERT_CUDA(begin(CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_CUDA(fill(nullptr, data_, 1, 1)) << "a non-blocking stream has nothing to do with it";
  EXPECT_CUDA(cuStreamSynchronize(nullptr));
  EXPECT_CUDA(end());
  EXPECT_EQ(cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_F(CaptureTest, TheLegacyStreamSaysThatACaptureSilencesIt) {
  stream_ = make_stream(CU_STREAM_DEFAULT);
  ASSERT_CUDA(begin(CU_STREAM_CAPTURE_MODE_RELAXED));
  CUstreamCaptureStatus status{};
  EXPECT_EQ(cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_CUDA(end()) << "the question breaks nothing";
  EXPECT_CUDA(cuStreamIsCapturing(nullptr, &status));
}

TEST_F(CaptureTest, UnsafeCallsDependOnModesAndThreads) {
  CUdeviceptr address = 0;
  const auto allocate_elsewhere = [&](CUstreamCaptureMode mode) {
    CUresult result = CUDA_ERROR_UNKNOWN;
    std::thread other([&] {
      EXPECT_CUDA(cuCtxSetCurrent(context_));
      EXPECT_CUDA(cuThreadExchangeStreamCaptureMode(&mode));
      result = cuMemAlloc_v2(&address, 4);
    });
    other.join();
    return result;
  };
  ASSERT_CUDA(begin(CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(allocate_elsewhere(CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  ASSERT_CUDA(begin(CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_CUDA(allocate_elsewhere(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  EXPECT_CUDA(allocate_elsewhere(CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_CUDA(end());
  ASSERT_CUDA(begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  EXPECT_CUDA(allocate_elsewhere(CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(cuMemAlloc_v2(&address, 4), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) << "the capturing thread itself";
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  ASSERT_CUDA(begin(CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_CUDA(cuMemAlloc_v2(&address, 4));
  EXPECT_CUDA(end());
  CUevent event = nullptr;
  ASSERT_CUDA(cuEventCreate(&event, 0));
  ASSERT_CUDA(begin(CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  EXPECT_CUDA(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  ASSERT_CUDA(begin(CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_CUDA(cuEventQuery(event));
  EXPECT_CUDA(cuMemAlloc_v2(&address, 4));
  EXPECT_CUDA(end());
  EXPECT_CUDA(cuThreadExchangeStreamCaptureMode(&mode));
}

TEST_F(CaptureTest, AnotherThreadMayEndOnlyARelaxedCapture) {
  const auto end_elsewhere = [&] {
    CUresult result = CUDA_ERROR_UNKNOWN;
    std::thread other([&] {
      EXPECT_CUDA(cuCtxSetCurrent(context_));
      result = cuStreamEndCapture(stream_, &graph_);
    });
    other.join();
    return result;
  };
  ASSERT_CUDA(begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  EXPECT_EQ(end_elsewhere(), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  ASSERT_CUDA(begin(CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_CUDA(end_elsewhere());
  EXPECT_EQ(end(), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_F(CaptureTest, CopiesOfUnmappedMemoryAreRefusedKernelsAndFillsAreNot) {
  const CUdeviceptr nowhere = data_ + (std::uint64_t{1} << 30);
  ASSERT_CUDA(begin());
  EXPECT_EQ(cuMemcpyDtoDAsync_v2(data_, nowhere, 4, stream_), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CUDA(fill(stream_, nowhere, 1, 1));
  EXPECT_CUDA(cuMemsetD8Async(nowhere, 0, 1, stream_));
  EXPECT_CUDA(end());
}

TEST_F(CaptureTest, IntoAnExistingGraph) {
  ASSERT_CUDA(cuGraphCreate(&graph_, 0));
  CUDA_MEMSET_NODE_PARAMS params{data_, 0, 30, 4, 1, 1};
  CUgraphNode first = nullptr;
  ASSERT_CUDA(cuGraphAddMemsetNode(&first, graph_, nullptr, 0, &params, context_));
  ASSERT_CUDA(cuStreamBeginCaptureToGraph(stream_, graph_, &first, nullptr, 1, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_CUDA(increment(stream_, data_, 1));
  const CUgraph same = graph_;
  EXPECT_CUDA(end());
  EXPECT_EQ(graph_, same);
  run();
  EXPECT_EQ(read(data_, 1)[0], 31u);
}

TEST_F(CaptureTest, HostFunctionsMemoryOperationsAndGraphsAreCaptured) {
  static std::atomic<int> calls;
  calls.store(0);
  ASSERT_CUDA(begin());
  EXPECT_CUDA(cuMemsetD32Async(data_, 1, 1, stream_));
  EXPECT_CUDA(end());
  CUgraphExec inner = nullptr;
  ASSERT_CUDA(cuGraphInstantiateWithFlags(&inner, graph_, 0));
  ASSERT_CUDA(begin());
  EXPECT_CUDA(cuGraphLaunch(inner, stream_));
  EXPECT_CUDA(cuLaunchHostFunc(
      stream_, [](void* count) { static_cast<std::atomic<int>*>(count)->fetch_add(1); }, &calls));
  EXPECT_CUDA(cuStreamWriteValue32_v2(stream_, data_ + 4, 2, 0));
  EXPECT_CUDA(increment(stream_, data_, 2));
  EXPECT_CUDA(end());
  EXPECT_EQ(calls.load(), 0);
  EXPECT_CUDA(cuGraphExecDestroy(inner));
  run();
  EXPECT_EQ(calls.load(), 1);
  EXPECT_EQ(read(data_, 2), (std::vector<std::uint32_t>{2, 3}));
}

TEST_F(CaptureTest, ADestroyedStreamLeavesNothingBehind) {
  ASSERT_CUDA(begin());
  EXPECT_CUDA(cuStreamDestroy_v2(stream_));
  CUdeviceptr address = 0;
  EXPECT_CUDA(cuMemAlloc_v2(&address, 4));
}

}  // namespace
}  // namespace gpumux::sim
