// SPDX-License-Identifier: Apache-2.0
#include "gate/in_flight.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "cuda/current_context.h"
#include "cuda/relaxed_capture.h"
#include "gate/stream_set.h"
#include "gate/thread_records.h"
#include "os/system_clock.h"

namespace gpumux::gate {
namespace {

using cuda::CUcontext;
using cuda::CUevent;
using cuda::CUstream;

// A mark stands for this part of the bound: a finer one costs more events, a coarser one a worse bound.
constexpr double kMarksPerBound = 8;
// A mark has this many short submissions at most: an event for that many launches costs hardly anything. A guess.
constexpr std::size_t kMostPerMark = 32;
// This many submissions are let in before the first one is done and tells how long it took. A guess.
constexpr std::size_t kMostUnknown = 4;
// How often a waiting thread looks: a part of the bound that leaves the GPU enough to do. No pause is shorter than
// waking a thread takes (20 to 70 us), or longer than this part of a bound of 8 ms.
constexpr std::int64_t kLooksPerBound = 32;
constexpr base::Duration kShortestPause = std::chrono::microseconds(20);
constexpr base::Duration kLongestPause = std::chrono::microseconds(250);

}  // namespace

InFlight::Stream& InFlight::find(CUcontext context, CUstream stream) {
  const void* const thread = stream == kPerThreadStream ? this_thread() : nullptr;
  for (const auto& known : streams_) {
    if (known->stream == stream && known->context == context && known->thread == thread) return *known;
  }
  auto& made = streams_.emplace_back(std::make_unique<Stream>());
  made->context = context;
  made->stream = stream;
  made->thread = thread;
  return *made;
}

void InFlight::learn(Stream& stream, const Mark& mark, double elapsed_ns) {
  const double each = std::max(elapsed_ns, 1.0) / static_cast<double>(mark.submissions);
  // A time is an upper bound if it was measured across a pause, or while other seats' work ran. It may lower an
  // estimate, and never raises one.
  const bool at_most = mark.after_idling || mark.turn != turns_.load(std::memory_order_relaxed);
  if (at_most && stream.each_ns != 0) {
    stream.each_ns = std::min(stream.each_ns, each);
  } else {
    stream.each_ns = stream.each_ns == 0 ? each : (stream.each_ns + each) / 2;
  }
}

void InFlight::reap(Stream& stream, base::TimePoint now) {
  while (stream.count != 0) {
    Mark& oldest = stream.marks[stream.first];
    const cuda::CUresult state = driver_.cuEventQuery(oldest.event);
    if (state == cuda::CUDA_ERROR_NOT_READY) return;
    float milliseconds = 0;
    if (state != cuda::CUDA_SUCCESS) {
      stream.stalls = kMostStalls;  // a sticky error
    } else if (stream.last_done != nullptr &&
               driver_.cuEventElapsedTime(&milliseconds, stream.last_done, oldest.event) == cuda::CUDA_SUCCESS) {
      learn(stream, oldest, double{milliseconds} * 1e6);
    }
    if (stream.last_done != nullptr) stream.spare.push_back(stream.last_done);
    stream.last_done = oldest.event;
    stream.queued -= oldest.submissions;
    stream.first = (stream.first + 1) % kMostMarks;
    --stream.count;
    stream.progress = now;
    stream.is_waived = false;
  }
}

bool InFlight::is_full(const Stream& stream) const {
  if (stream.count == 0) return false;  // nothing to wait for
  if (stream.each_ns == 0 && stream.queued >= kMostUnknown) return true;
  return stream.count == kMostMarks ||
         static_cast<double>(stream.queued + stream.unmarked) * stream.each_ns >= bound_ns();
}

bool InFlight::is_full(CUcontext context, CUstream which, const base::Clock& clock) {
  const base::Locked locked(mutex_);
  Stream& stream = find(context, which);
  // The driver is asked only where the answer matters: a query takes half as long as a launch.
  if (!is_bounded() || stream.stalls >= kMostStalls || !is_full(stream)) return false;
  const cuda::RelaxedCapture relaxed(driver_);
  const base::TimePoint now = clock.now();
  reap(stream, now);
  if (stream.is_waived || stream.stalls >= kMostStalls || !is_full(stream)) return false;
  if (now - stream.progress <= kPatience) return true;
  stream.is_waived = true;
  ++stream.stalls;
  return false;
}

void InFlight::await(CUcontext context, CUstream stream) {
  const os::SystemClock clock;
  while (is_full(context, stream, clock)) {
    const base::Duration pause = std::clamp(base::Duration(bound_ns_.load(std::memory_order_relaxed) / kLooksPerBound),
                                            kShortestPause, kLongestPause);
    const timespec time{0, pause.count()};
    ::nanosleep(&time, nullptr);
  }
}

// Null: the driver makes none here.
CUevent InFlight::take_event(Stream& stream) {
  CUevent event = nullptr;
  if (stream.spare.empty()) {
    const cuda::CurrentContext current(driver_, stream.context);
    if (current.result() != cuda::CUDA_SUCCESS || driver_.cuEventCreate(&event, 0) != cuda::CUDA_SUCCESS)
      return nullptr;
  } else {
    event = stream.spare.back();
    stream.spare.pop_back();
  }
  if (driver_.cuEventRecord(event, stream.stream) == cuda::CUDA_SUCCESS) return event;
  driver_.cuEventDestroy_v2(event);
  return nullptr;
}

void InFlight::mark(Stream& stream, base::TimePoint now) {
  const CUevent event = take_event(stream);
  if (event == nullptr) {
    stream.stalls = kMostStalls;  // so it would be the next time, too
    return;
  }
  if (stream.count == 0) stream.progress = now;
  Mark& made = stream.marks[(stream.first + stream.count) % kMostMarks];
  made = {.event = event,
          .submissions = std::exchange(stream.unmarked, 0),
          .after_idling = stream.count == 0,
          .turn = turns_.load(std::memory_order_relaxed)};
  stream.queued += made.submissions;
  ++stream.count;
}

void InFlight::submitted(CUcontext context, CUstream which, const base::Clock& clock) {
  const base::Locked locked(mutex_);
  Stream& stream = find(context, which);
  if (stream.stalls >= kMostStalls) return;
  const double expected_ns = static_cast<double>(++stream.unmarked) * stream.each_ns;
  if (stream.each_ns != 0 && stream.unmarked < kMostPerMark && expected_ns < bound_ns() / kMarksPerBound) return;
  const cuda::RelaxedCapture relaxed(driver_);
  const base::TimePoint now = clock.now();
  reap(stream, now);
  if (stream.count < kMostMarks) mark(stream, now);
}

void InFlight::drop_events(Stream& stream) {
  for (const CUevent event : stream.spare) driver_.cuEventDestroy_v2(event);
  for (; stream.count != 0; --stream.count, stream.first = (stream.first + 1) % kMostMarks)
    driver_.cuEventDestroy_v2(stream.marks[stream.first].event);
  if (stream.last_done != nullptr) driver_.cuEventDestroy_v2(stream.last_done);
}

void InFlight::forget_stream(CUstream which) {
  const base::Locked locked(mutex_);
  const cuda::RelaxedCapture relaxed(driver_);
  std::erase_if(streams_, [&](const auto& stream) GPUMUX_REQUIRES(mutex_) {
    if (stream->stream != which) return false;
    drop_events(*stream);
    return true;
  });
}

void InFlight::forget_context(CUcontext context, Context state) {
  const base::Locked locked(mutex_);
  const cuda::RelaxedCapture relaxed(driver_);
  std::erase_if(streams_, [&](const auto& stream) GPUMUX_REQUIRES(mutex_) {
    if (stream->context != context) return false;
    if (state == Context::kGoing) drop_events(*stream);
    return true;
  });
}

}  // namespace gpumux::gate
