// SPDX-License-Identifier: Apache-2.0
// Goal: a seat is called done exactly when everything that it submitted has finished, even if its streams have died
// since. No capture is broken by asking. Method: streams of the simulated driver. Their work is done when the test says
// so.
#include "gate/stream_set.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>

#include "cuda/relaxed_capture.h"
#include "sim/cuda/process.h"
#include "sim/cuda/test_driver.h"
#include "sim/cuda/test_machine.h"

namespace gpumux::gate {
namespace {

using namespace cuda;  // the tests call the simulated driver

// Work in a stream of the current context, from now until finish().
class HeldWork {
 public:
  explicit HeldWork(CUstream handle) : stream_(named(handle)), held_(std::in_place, handle) {}
  void release() { held_.reset(); }
  // Afterwards all is done that the stream was given, fences behind the work included.
  void finish() {
    release();
    stream_->tail()->wait();
  }

 private:
  static std::shared_ptr<sim::Stream> named(CUstream handle) {
    if (handle == nullptr) return sim::thread_state().current()->legacy_stream();
    if (handle == kPerThreadStream) return sim::thread_state().current()->thread_stream();
    return sim::Process::get()->streams.find(handle);
  }

  const std::shared_ptr<sim::Stream> stream_;
  std::optional<sim::HeldStream> held_;
};

class StreamSetTest : public sim::SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    a_ = make_stream(CU_STREAM_DEFAULT);
    b_ = make_stream(CU_STREAM_DEFAULT);
    for (sim::Tap* const tap : {&queries_, &events_made_, &events_unmade_}) tap->clear();
  }

  // A second context, of which the test makes streams; the first one stays current.
  CUcontext make_context() {
    CUcontext made = nullptr;
    EXPECT_CUDA(cuCtxCreate_v2(&made, 0, 0));
    EXPECT_CUDA(cuCtxPopCurrent_v2(nullptr));
    return made;
  }

  void begin_capture(CUstream stream) {
    const StreamSet::EnteringCapture entering(set_, context_, stream);
    EXPECT_CUDA(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  }
  static void end_capture(CUstream stream) {
    CUgraph graph = nullptr;
    EXPECT_CUDA(cuStreamEndCapture(stream, &graph)) << "the set has broken the capture";
    EXPECT_CUDA(cuGraphDestroy(graph));
  }

  WorkState drain() {
    set_.begin_drain();
    return set_.poll(true);
  }

  std::uint64_t events() const { return events_made_.calls - events_unmade_.calls; }

  cuda::Driver driver_ = sim::simulated_driver();
  sim::Tap& queries_ = sim::tap<&cuda::Driver::cuStreamQuery>(driver_);
  sim::Tap& events_made_ = sim::tap<&cuda::Driver::cuEventCreate>(driver_);
  sim::Tap& events_unmade_ = sim::tap<&cuda::Driver::cuEventDestroy_v2>(driver_);
  StreamSet set_{driver_};
  CUstream a_ = nullptr;
  CUstream b_ = nullptr;
};

TEST_F(StreamSetTest, IsDoneWhenEveryNotedStreamIs) {
  EXPECT_EQ(drain(), WorkState::kDone);
  set_.note(context_, a_);
  set_.note(context_, b_);
  set_.note(context_, a_);
  HeldWork in_a(a_);
  HeldWork in_b(b_);
  EXPECT_EQ(drain(), WorkState::kRunning);
  in_a.finish();
  EXPECT_EQ(drain(), WorkState::kRunning);
  in_b.finish();
  EXPECT_EQ(drain(), WorkState::kDone);
}

TEST_F(StreamSetTest, TellsThreadsToNoteAgainWhatItForgot) {
  set_.note(context_, a_);
  const std::uint64_t before = memo_generation();
  EXPECT_EQ(set_.poll(false), WorkState::kDone);
  EXPECT_EQ(memo_generation(), before);
  EXPECT_EQ(drain(), WorkState::kDone);
  EXPECT_NE(memo_generation(), before);
}

TEST_F(StreamSetTest, KeepsWhatWasNotedWhileItWasLooking) {
  set_.note(context_, a_);
  set_.begin_drain();
  set_.note(context_, a_);  // the gate was opened again, and a thread is about to submit
  EXPECT_EQ(set_.poll(true), WorkState::kDone);
  const HeldWork work(a_);
  EXPECT_EQ(drain(), WorkState::kRunning);
}

TEST_F(StreamSetTest, WorkBeforeACaptureStillCounts) {
  set_.note(context_, a_);
  HeldWork work(a_);
  begin_capture(a_);
  EXPECT_EQ(drain(), WorkState::kRunning);
  work.finish();
  EXPECT_EQ(drain(), WorkState::kDone);
  end_capture(a_);
}

TEST_F(StreamSetTest, ACaptureSilencesTheLegacyStreamToo) {
  set_.note(context_, nullptr);
  HeldWork work(nullptr);
  begin_capture(a_);
  EXPECT_EQ(events(), 1u);
  EXPECT_EQ(drain(), WorkState::kRunning);
  work.finish();
  EXPECT_EQ(drain(), WorkState::kDone);
  end_capture(a_);
}

// A look that overlaps the beginning of a capture finds no stream capturing, asks it, and has broken the capture.
TEST_F(StreamSetTest, AStreamThatIsAboutToCaptureIsNotAsked) {
  set_.note(context_, a_);
  set_.note(context_, nullptr);
  HeldWork in_a(a_);
  HeldWork in_legacy(nullptr);
  {
    const StreamSet::EnteringCapture entering(set_, context_, a_);
    queries_.clear();
    EXPECT_EQ(set_.poll(false), WorkState::kRunning) << "what came before is fenced";
    in_legacy.release();  // each stream waits for the other one
    in_a.finish();
    in_legacy.finish();
    EXPECT_EQ(set_.poll(false), WorkState::kDone);
    EXPECT_EQ(set_.look(context_), WorkState::kDone);
    EXPECT_EQ(queries_.calls, 0u);
  }
  const HeldWork later(a_);  // the call failed, or the capture has ended
  EXPECT_EQ(set_.poll(false), WorkState::kRunning) << "it is asked again";
}

TEST_F(StreamSetTest, OneContextsWorkIsNotAnothers) {
  const CUcontext other = make_context();
  EXPECT_CUDA(cuCtxPushCurrent_v2(other));
  const CUstream there = make_stream();
  HeldWork work(there);
  EXPECT_CUDA(cuCtxPopCurrent_v2(nullptr));
  set_.note(context_, a_);
  set_.note(other, there);
  EXPECT_EQ(set_.look(context_), WorkState::kDone);
  EXPECT_EQ(set_.look(other), WorkState::kRunning);
  work.finish();
  EXPECT_CUDA(cuCtxDestroy_v2(other));
}

TEST_F(StreamSetTest, ADestroyedStreamsWorkStillCounts) {
  set_.note(context_, a_);
  HeldWork work(a_);
  set_.retire(a_);
  EXPECT_CUDA(cuStreamDestroy_v2(a_));
  EXPECT_EQ(drain(), WorkState::kRunning);
  work.finish();
  EXPECT_EQ(drain(), WorkState::kDone);
  EXPECT_EQ(events(), 0u) << "the fence's event leaks";
}

TEST_F(StreamSetTest, AnIdleStreamNeedsNoFence) {
  set_.note(context_, a_);
  set_.retire(a_);
  set_.note(context_, b_);
  begin_capture(b_);
  EXPECT_EQ(events(), 0u);
  end_capture(b_);
}

TEST_F(StreamSetTest, TheLegacyStreamAnswersForPerThreadStreams) {
  set_.note(context_, kPerThreadStream);
  set_.note(context_, kPerThreadStream);
  HeldWork work(kPerThreadStream);
  EXPECT_EQ(drain(), WorkState::kRunning);
  work.finish();
  EXPECT_EQ(drain(), WorkState::kDone);
  EXPECT_EQ(events(), 0u);
  const HeldWork later(kPerThreadStream);
  EXPECT_EQ(drain(), WorkState::kDone) << "it was forgotten, and nobody has noted one again";
}

// Another thread's per-thread stream may go on working while one captures, and then no stream can be asked.
TEST_F(StreamSetTest, PerThreadStreamsCountAsRunningWhileOneCaptures) {
  set_.note(context_, kPerThreadStream);
  begin_capture(kPerThreadStream);
  EXPECT_EQ(drain(), WorkState::kRunning);
  end_capture(kPerThreadStream);
  EXPECT_EQ(drain(), WorkState::kDone);
}

// A thread that frees memory in the middle of a capture would wait for its own capture otherwise.
TEST_F(StreamSetTest, WhatPerThreadStreamsRanIsKnownToOneThatWaitsDuringACapture) {
  const RelaxedCapture relaxed(sim::simulated_driver());  // a capture forbids some of the test's calls otherwise
  set_.note(context_, kPerThreadStream);
  HeldWork before(kPerThreadStream);
  begin_capture(a_);
  begin_capture(b_);
  EXPECT_EQ(set_.look(context_), WorkState::kRunning);
  before.finish();
  while (set_.look(context_) != WorkState::kDone) std::this_thread::yield();  // the fence is another stream's
  for (int i = 0; i < 3; ++i) {
    HeldWork meanwhile(kPerThreadStream);
    set_.fence_own(context_);
    EXPECT_EQ(set_.look(context_), WorkState::kRunning);
    meanwhile.finish();
    EXPECT_EQ(set_.look(context_), WorkState::kDone);
  }
  EXPECT_EQ(events(), 2u) << "one before the capture, one of this thread";
  EXPECT_EQ(drain(), WorkState::kRunning) << "another thread may be about to submit";
  end_capture(a_);
  end_capture(b_);
  EXPECT_EQ(drain(), WorkState::kDone);
  EXPECT_EQ(events(), 0u);
}

TEST_F(StreamSetTest, ADyingContextCountsAsRunningAndThenAsNothing) {
  const CUcontext other = make_context();
  EXPECT_CUDA(cuCtxPushCurrent_v2(other));
  const CUstream there = make_stream();
  EXPECT_CUDA(cuCtxPopCurrent_v2(nullptr));
  set_.note(other, there);
  set_.note(context_, b_);
  set_.begin_teardown();
  EXPECT_EQ(drain(), WorkState::kRunning);
  EXPECT_CUDA(cuCtxDestroy_v2(other));
  EXPECT_EQ(drain(), WorkState::kRunning);
  EXPECT_EQ(queries_.calls, 0u);
  set_.end_teardown(other);
  EXPECT_EQ(drain(), WorkState::kDone);
  EXPECT_EQ(queries_.calls, 1u) << "the other context's stream was asked";
}

TEST_F(StreamSetTest, AStickyErrorIsPoisonNotWork) {
  set_.note(context_, a_);
  EXPECT_CUDA(fill(a_, 4096, 1, 1));  // where nothing is
  EXPECT_EQ(cuStreamSynchronize(a_), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(drain(), WorkState::kPoisoned);
}

TEST_F(StreamSetTest, FencesOfManyDestroyedStreamsDoNotPileUp) {
  for (int i = 0; i < 600; ++i) {
    const CUstream stream = make_stream();
    set_.note(context_, stream);
    HeldWork work(stream);
    set_.retire(stream);
    EXPECT_CUDA(cuStreamDestroy_v2(stream));
    work.finish();
  }
  EXPECT_LT(events(), 300u);
}

}  // namespace
}  // namespace gpumux::gate
