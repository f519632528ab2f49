// SPDX-License-Identifier: Apache-2.0
// Goal: a seat is called done exactly when everything that it submitted has finished, whatever became of the streams
// meanwhile. Method: a driver of a few functions, whose streams finish when the test says so.
#include "gate/stream_set.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace gpumux::gate {
namespace {

using namespace cuda;  // the fake's functions are the driver's

struct FakeStream {
  bool running = false;
  bool capturing = false;
  bool destroyed = false;
  CUresult error = CUDA_SUCCESS;
};

// What the functions below act on; the driver's functions have no room for a pointer to it.
struct Fake {
  std::map<CUstream, FakeStream> streams;
  std::map<CUevent, CUstream> events;  // an event is finished when its stream's work is
  std::map<CUevent, bool> event_done;
  int next_event = 1;
  CUstream begins_after_look = nullptr;  // begins to capture as soon as it was asked whether it does
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  int strict_calls = 0;  // calls made while some stream captures, without relaxed mode
};
Fake* fake = nullptr;

void look_strict() {
  for (const auto& [stream, state] : fake->streams) {
    if (state.capturing && fake->mode != CU_STREAM_CAPTURE_MODE_RELAXED) ++fake->strict_calls;
  }
}

CUstream stream_number(std::uintptr_t n) { return reinterpret_cast<CUstream>(n * 256); }
CUcontext context_number(std::uintptr_t n) { return reinterpret_cast<CUcontext>(n * 4096); }

class StreamSetTest : public ::testing::Test {
 protected:
  StreamSetTest() {
    fake = &fake_;
    driver_.cuCtxPushCurrent_v2 = [](CUcontext) { return CUDA_SUCCESS; };
    driver_.cuCtxPopCurrent_v2 = [](CUcontext*) { return CUDA_SUCCESS; };
    driver_.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode* mode) {
      std::swap(*mode, fake->mode);
      return CUDA_SUCCESS;
    };
    driver_.cuStreamIsCapturing = [](CUstream s, CUstreamCaptureStatus* status) {
      *status = fake->streams[s].capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
      if (fake->begins_after_look != nullptr) fake->streams[fake->begins_after_look].capturing = true;
      return CUDA_SUCCESS;
    };
    driver_.cuStreamQuery = [](CUstream s) {
      look_strict();
      const FakeStream& state = fake->streams[s];
      EXPECT_FALSE(state.capturing) << "a capturing stream was asked, which would break its capture";
      if (state.destroyed) return CUDA_ERROR_INVALID_HANDLE;
      if (state.error != CUDA_SUCCESS) return state.error;
      return state.running ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    };
    driver_.cuEventCreate = [](CUevent* event, unsigned int) {
      *event = reinterpret_cast<CUevent>(static_cast<std::uintptr_t>(fake->next_event++) * 16);
      return CUDA_SUCCESS;
    };
    driver_.cuEventRecord = [](CUevent event, CUstream s) {
      EXPECT_FALSE(fake->streams[s].capturing) << "an event was recorded into a capture";
      fake->events[event] = s;
      fake->event_done[event] = !fake->streams[s].running;
      return CUDA_SUCCESS;
    };
    driver_.cuEventQuery = [](CUevent event) { return fake->event_done[event] ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; };
    driver_.cuEventDestroy_v2 = [](CUevent event) {
      fake->events.erase(event);
      fake->event_done.erase(event);
      return CUDA_SUCCESS;
    };
  }

  void finish(CUstream stream) {
    fake_.streams[stream].running = false;
    for (const auto& [event, of] : fake_.events) {
      if (of == stream) fake_.event_done[event] = true;
    }
  }

  // `stream` enters a capture, which silences `silent`.
  void capture(CUstream stream, const std::vector<CUstream>& silent) {
    const StreamSet::EnteringCapture entering(set_, context_, stream);
    for (const CUstream each : silent) fake_.streams[each].capturing = true;
  }

  WorkState drain() {
    set_.begin_drain();
    return set_.poll(true);
  }

  Fake fake_;
  cuda::Driver driver_;
  StreamSet set_{driver_};
  const CUcontext context_ = context_number(1);
  const CUstream a_ = stream_number(1);
  const CUstream b_ = stream_number(2);
};

TEST_F(StreamSetTest, IsDoneWhenEveryNotedStreamIs) {
  EXPECT_EQ(drain(), WorkState::kDone);
  set_.note(context_, a_);
  set_.note(context_, b_);
  set_.note(context_, a_);
  fake_.streams[a_].running = fake_.streams[b_].running = true;
  EXPECT_EQ(drain(), WorkState::kRunning);
  finish(a_);
  EXPECT_EQ(drain(), WorkState::kRunning);
  finish(b_);
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
  fake_.streams[a_].running = true;
  EXPECT_EQ(drain(), WorkState::kRunning);
}

TEST_F(StreamSetTest, WorkBeforeACaptureStillCounts) {
  set_.note(context_, a_);
  fake_.streams[a_].running = true;
  capture(a_, {a_});
  EXPECT_EQ(drain(), WorkState::kRunning);
  finish(a_);
  EXPECT_EQ(drain(), WorkState::kDone);
  EXPECT_EQ(fake_.strict_calls, 0);
}

TEST_F(StreamSetTest, ACaptureSilencesTheLegacyStreamToo) {
  set_.note(context_, nullptr);
  fake_.streams[nullptr].running = true;
  capture(a_, {a_, nullptr});  // the legacy stream: as IMPLICIT is read
  EXPECT_EQ(fake_.events.size(), 1u);
  EXPECT_EQ(drain(), WorkState::kRunning);
  finish(nullptr);
  EXPECT_EQ(drain(), WorkState::kDone);
}

// A look that overlaps the beginning of a capture finds no stream capturing, asks it, and has broken the capture.
TEST_F(StreamSetTest, AStreamThatIsAboutToCaptureIsNotAsked) {
  set_.note(context_, a_);
  set_.note(context_, nullptr);
  fake_.streams[a_].running = fake_.streams[nullptr].running = true;
  {
    const StreamSet::EnteringCapture entering(set_, context_, a_);
    fake_.begins_after_look = a_;
    EXPECT_EQ(set_.poll(false), WorkState::kRunning) << "what came before is fenced";
    finish(a_);
    finish(nullptr);
    EXPECT_EQ(set_.poll(false), WorkState::kDone);
    EXPECT_EQ(set_.look(context_), WorkState::kDone);
  }
  fake_.begins_after_look = nullptr;
  fake_.streams[a_].capturing = false;  // the call failed, or the capture has ended
  fake_.streams[a_].running = true;
  EXPECT_EQ(set_.poll(false), WorkState::kRunning) << "it is asked again";
}

TEST_F(StreamSetTest, OneContextsWorkIsNotAnothers) {
  set_.note(context_, a_);
  set_.note(context_number(2), b_);
  fake_.streams[b_].running = true;
  EXPECT_EQ(set_.look(context_), WorkState::kDone);
  EXPECT_EQ(set_.look(context_number(2)), WorkState::kRunning);
}

TEST_F(StreamSetTest, ADestroyedStreamsWorkStillCounts) {
  set_.note(context_, a_);
  fake_.streams[a_].running = true;
  set_.retire(a_);
  fake_.streams[a_].destroyed = true;
  EXPECT_EQ(drain(), WorkState::kRunning);
  finish(a_);
  EXPECT_EQ(drain(), WorkState::kDone);
  EXPECT_TRUE(fake_.events.empty()) << "the fence's event leaks";
}

TEST_F(StreamSetTest, AnIdleStreamNeedsNoFence) {
  set_.note(context_, a_);
  set_.retire(a_);
  set_.note(context_, b_);
  capture(b_, {b_});
  EXPECT_TRUE(fake_.events.empty());
}

TEST_F(StreamSetTest, TheLegacyStreamAnswersForPerThreadStreams) {
  set_.note(context_, kPerThreadStream);
  set_.note(context_, kPerThreadStream);
  fake_.streams[nullptr].running = true;  // as the driver says while any stream that synchronises with it works
  EXPECT_EQ(drain(), WorkState::kRunning);
  finish(nullptr);
  EXPECT_EQ(drain(), WorkState::kDone);
  EXPECT_TRUE(fake_.events.empty());
  fake_.streams[nullptr].running = true;
  EXPECT_EQ(drain(), WorkState::kDone) << "it was forgotten, and nobody has noted one again";
}

// Another thread's per-thread stream may go on working while one captures, and then nobody can be asked.
TEST_F(StreamSetTest, PerThreadStreamsCountAsRunningWhileOneCaptures) {
  set_.note(context_, kPerThreadStream);
  capture(kPerThreadStream, {nullptr});
  EXPECT_EQ(drain(), WorkState::kRunning);
  fake_.streams[nullptr].capturing = false;
  EXPECT_EQ(drain(), WorkState::kDone);
  EXPECT_EQ(fake_.strict_calls, 0);
}

TEST_F(StreamSetTest, ADyingContextCountsAsRunningAndThenAsNothing) {
  set_.note(context_, a_);
  set_.note(context_number(2), b_);
  fake_.streams[a_].running = fake_.streams[b_].running = true;
  set_.begin_teardown();
  finish(b_);
  EXPECT_EQ(drain(), WorkState::kRunning);
  set_.end_teardown(context_);
  EXPECT_EQ(drain(), WorkState::kDone);
}

TEST_F(StreamSetTest, AStickyErrorIsPoisonNotWork) {
  set_.note(context_, a_);
  fake_.streams[a_].error = CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_EQ(drain(), WorkState::kPoisoned);
}

TEST_F(StreamSetTest, FencesOfManyDestroyedStreamsDoNotPileUp) {
  for (std::uintptr_t i = 10; i < 2000; ++i) {
    const CUstream stream = stream_number(i);
    set_.note(context_, stream);
    fake_.streams[stream].running = true;
    set_.retire(stream);
    finish(stream);
  }
  EXPECT_LT(fake_.events.size(), 300u);
}

}  // namespace
}  // namespace gpumux::gate
