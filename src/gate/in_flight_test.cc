// SPDX-License-Identifier: Apache-2.0
// Goal: a stream's queue stays within the bound, or one submission that takes longer, while the work's times change.
// The GPU never runs dry for it, and no thread waits for ever. Method: a GPU that is arithmetic, in virtual time: a
// stream is the time until which it is busy. The program submits as fast as it is let.
#include "gate/in_flight.h"

#include <gtest/gtest.h>

#include <map>

#include "gate/stream_set.h"

namespace gpumux::gate {
namespace {

using namespace cuda;  // the fake's functions are the driver's
using namespace std::chrono_literals;

struct Fake {
  base::TimePoint now{};
  std::map<CUstream, base::TimePoint> busy_until;
  std::map<CUevent, base::TimePoint> events;
  CUresult record_result = CUDA_SUCCESS;
  CUresult query_result = CUDA_SUCCESS;
  std::uintptr_t next_event = 16;
  std::size_t records = 0;
};
Fake* fake = nullptr;

constexpr base::Duration kBound = 4ms;
constexpr base::Duration kHostTime = 3us;  // of a launch
constexpr base::Duration kPause = 100us;   // of a thread that waits, between two looks

class InFlightTest : public ::testing::Test {
 protected:
  InFlightTest() {
    fake = &fake_;
    driver_.cuCtxPushCurrent_v2 = [](CUcontext) { return CUDA_SUCCESS; };
    driver_.cuCtxPopCurrent_v2 = [](CUcontext*) { return CUDA_SUCCESS; };
    driver_.cuEventCreate = [](CUevent* event, unsigned int) {
      *event = reinterpret_cast<CUevent>(fake->next_event);
      fake->next_event += 16;
      fake->events[*event] = {};
      return CUDA_SUCCESS;
    };
    driver_.cuEventRecord = [](CUevent event, CUstream stream) {
      ++fake->records;
      EXPECT_TRUE(fake->events.contains(event));
      fake->events[event] = std::max(fake->now, fake->busy_until[stream]);
      return fake->record_result;
    };
    driver_.cuEventQuery = [](CUevent event) {
      EXPECT_TRUE(fake->events.contains(event));
      if (fake->query_result != CUDA_SUCCESS) return fake->query_result;
      return fake->events[event] <= fake->now ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    };
    driver_.cuEventElapsedTime = [](float* milliseconds, CUevent from, CUevent to) {
      *milliseconds = std::chrono::duration<float, std::milli>(fake->events[to] - fake->events[from]).count();
      return CUDA_SUCCESS;
    };
    driver_.cuEventDestroy_v2 = [](CUevent event) {
      EXPECT_EQ(fake->events.erase(event), 1u);
      return CUDA_SUCCESS;
    };
    in_flight_.set_bound(kBound);
  }

  base::Duration queued(CUstream stream) { return std::max<base::Duration>(fake_.busy_until[stream] - fake_.now, 0ns); }

  // Submits work of so long as soon as it may. Returns what was queued then.
  base::Duration submit(CUstream stream, base::Duration work) {
    while (in_flight_.is_full(context_, stream, clock_)) fake_.now += kPause;
    base::TimePoint& busy = fake_.busy_until[stream];
    idle_ += std::max<base::Duration>(fake_.now - std::max(busy, begin_), 0ns);
    busy = std::max(busy, fake_.now) + work;
    fake_.now += kHostTime;
    in_flight_.submitted(context_, stream, clock_);
    return queued(stream);
  }

  // The most that was queued, after the first few that teach what they take.
  base::Duration most_queued(CUstream stream, base::Duration work, int count) {
    for (int i = 0; i < 1000; ++i) submit(stream, work);
    begin_ = fake_.now;
    idle_ = 0ns;
    base::Duration most = 0ns;
    for (int i = 0; i < count; ++i) most = std::max(most, submit(stream, work));
    return most;
  }

  struct FakeClock : base::Clock {
    base::TimePoint now() const override { return fake->now; }
  };

  Fake fake_;
  FakeClock clock_;
  cuda::Driver driver_;
  InFlight in_flight_{driver_};
  const CUcontext context_ = reinterpret_cast<CUcontext>(4096);
  const CUstream a_ = reinterpret_cast<CUstream>(256);
  const CUstream b_ = reinterpret_cast<CUstream>(512);
  base::TimePoint begin_{};
  base::Duration idle_{0};
};

TEST_F(InFlightTest, KeepsTheQueueWithinTheBoundAndTheGpuBusy) {
  for (const base::Duration work : {5us, 50us, 300us, 1'000us, 2'500us}) {
    SCOPED_TRACE(work.count());
    EXPECT_LE(most_queued(a_, work, 3000), kBound + 2 * std::max<base::Duration>(work, kBound / 8));
    EXPECT_LE(idle_.count(), 0);
    EXPECT_GE(queued(a_), kBound / 8);
  }
}

TEST_F(InFlightTest, QueuesOneOfWhatTakesLongerThanTheBound) {
  EXPECT_LE(most_queued(a_, 50ms, 30), 100ms);
  // The next one comes within a look after the last one is done.
  EXPECT_LE(idle_, 30 * (kPause + kHostTime));
}

TEST_F(InFlightTest, FollowsWorkThatChanges) {
  most_queued(a_, 5us, 3000);
  // The marks under way still stand for as many submissions as when these were short.
  EXPECT_LE(most_queued(a_, 1ms, 300), kBound + 1ms);
  EXPECT_LE(most_queued(a_, 50ms, 30), 100ms);
  EXPECT_LE(most_queued(a_, 20us, 3000), kBound + kBound / 4);
}

// A turn that ends leaves work to run together with another seat's, which has nearly all of the GPU. That does not tell
// how long the work takes by itself: the next step queues the same amount as before.
TEST_F(InFlightTest, DoesNotLearnFromWhatRanBesideOthers) {
  constexpr base::Duration kOthers = 20ms;
  const auto step = [&] {
    base::Duration least = kBound;
    for (int i = 1; i <= 200; ++i) {
      const base::Duration queue = submit(a_, 100us);
      if (i > 60) least = std::min(least, queue);  // it has been filled
    }
    return least;
  };
  for (int i = 0; i < 5; ++i) step();
  EXPECT_GE(step(), kBound / 2);
  for (int turn = 0; turn < 5; ++turn) {
    in_flight_.turn_ended();
    fake_.busy_until[a_] += kOthers;
    for (auto& [event, done] : fake_.events) {
      if (done > fake_.now) done += kOthers;
    }
    step();
    EXPECT_GE(step(), kBound / 2) << turn;
  }
}

// Work submitted after a pause is known only to have taken no longer than the time measured across the pause.
TEST_F(InFlightTest, DoesNotTakeAPauseForWork) {
  for (int step = 0; step < 50; ++step) {
    fake_.now = std::max(fake_.now, fake_.busy_until[a_]) + 30ms;
    begin_ = fake_.now;
    idle_ = 0ns;
    for (int i = 0; i < 30; ++i) submit(a_, 100us);
    if (step >= 5) {
      EXPECT_LE(idle_.count(), 0) << step;
    }
  }
}

TEST_F(InFlightTest, LetsFewInBeforeTheFirstIsDone) {
  for (int i = 0; i < 20; ++i) EXPECT_LE(submit(a_, 1ms), kBound + 1ms);
}

TEST_F(InFlightTest, CostsFewEventsWhereWorkIsShort) {
  most_queued(a_, 5us, 1000);
  fake_.records = 0;
  most_queued(a_, 5us, 10'000);
  EXPECT_LE(fake_.records, 11'000u / 30);
}

TEST_F(InFlightTest, LetsAProgramThatWaitsForItsWorkAlone) {
  for (int i = 0; i < 500; ++i) {
    EXPECT_FALSE(in_flight_.is_full(context_, a_, clock_));
    submit(a_, 20us);
    fake_.now += 80us;
  }
  // Far fewer events than submissions, although nothing was ever queued.
  EXPECT_LE(fake_.records, 100u);
}

TEST_F(InFlightTest, BoundsEachStreamByItself) {
  EXPECT_LE(most_queued(a_, 1ms, 100), kBound + 1ms);
  EXPECT_FALSE(in_flight_.is_full(context_, b_, clock_));
}

TEST_F(InFlightTest, LetsThroughWhatTheGpuMayBeWaitingFor) {
  const base::TimePoint never = fake_.now + 1h;
  for (unsigned stall = 1; stall <= InFlight::kMostStalls; ++stall) {
    while (!in_flight_.is_full(context_, a_, clock_)) submit(a_, 1ms);
    for (auto& [event, at] : fake_.events) at = std::max(at, never);
    fake_.busy_until[a_] = never;
    fake_.now += InFlight::kPatience - 1ms;
    EXPECT_TRUE(in_flight_.is_full(context_, a_, clock_));
    fake_.now += 2ms;
    for (int i = 0; i < 100; ++i) {
      EXPECT_FALSE(in_flight_.is_full(context_, a_, clock_)) << stall;
      in_flight_.submitted(context_, a_, clock_);
    }
    // It has got what it waited for.
    for (auto& [event, at] : fake_.events) at = std::min(at, fake_.now);
    fake_.busy_until[a_] = fake_.now;
  }
  EXPECT_FALSE(in_flight_.is_full(context_, a_, clock_));
  for (int i = 0; i < 100; ++i) submit(a_, 10ms);
  EXPECT_GE(queued(a_), 900ms);
}

TEST_F(InFlightTest, LetsThroughWhatHasAStickyError) {
  while (!in_flight_.is_full(context_, a_, clock_)) submit(a_, 1ms);
  fake_.query_result = CUDA_ERROR_ILLEGAL_ADDRESS;
  EXPECT_FALSE(in_flight_.is_full(context_, a_, clock_));
}

TEST_F(InFlightTest, LetsThroughWhereTheDriverMakesNoMarks) {
  fake_.record_result = CUDA_ERROR_INVALID_HANDLE;
  for (int i = 0; i < 100; ++i) submit(a_, 1ms);
  EXPECT_EQ(fake_.records, 1u);
}

TEST_F(InFlightTest, EndsWithTheBound) {
  while (!in_flight_.is_full(context_, a_, clock_)) submit(a_, 1ms);
  in_flight_.set_bound(0ns);
  EXPECT_FALSE(in_flight_.is_full(context_, a_, clock_));
}

TEST_F(InFlightTest, LeavesNoEventBehind) {
  most_queued(a_, 1ms, 20);
  most_queued(b_, 1ms, 20);
  in_flight_.forget_stream(a_);
  EXPECT_FALSE(fake_.events.empty());
  in_flight_.forget_context(context_, InFlight::Context::kGoing);
  EXPECT_TRUE(fake_.events.empty());
  // A context that has died has taken its events along: the driver is not asked about them.
  most_queued(a_, 1ms, 20);
  fake_.events.clear();
  in_flight_.forget_context(context_, InFlight::Context::kGone);
  EXPECT_FALSE(in_flight_.is_full(context_, a_, clock_));
}

}  // namespace
}  // namespace gpumux::gate
