// SPDX-License-Identifier: Apache-2.0
#include "gate/in_flight.h"

#include <time.h>

#include <algorithm>

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
// As long as nothing has been measured: few enough that an unlucky program's queue stays short.
constexpr std::size_t kMarksAtFirst = 4;
// However short they have been so far: the next ones may be long, and are queued before anybody has seen that. An event
// for so many launches is hardly any cost.
constexpr std::uint32_t kMostPerMark = 32;
// A submission that takes so many bounds is the only one in its queue: what the GPU then idles before the next one
// comes is little beside it.
constexpr double kLongSubmission = 2;
// How often a waiting thread looks: a part of the bound that leaves the GPU enough to do.
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
  const double each = std::max(elapsed_ns, 1.0) / mark.submissions;
  const double wanted = std::clamp(bound_ns() / kMarksPerBound / each, 1.0, double{kMostPerMark});
  // What was measured across a pause is at most that long: reason to think it shorter than before, and none for longer.
  if (mark.after_idling) {
    stream.each_ns = std::min(stream.each_ns, each);
    if (wanted <= stream.per_mark) return;
  } else {
    stream.each_ns = stream.each_ns == 0 ? each : (stream.each_ns + each) / 2;
  }
  stream.per_mark = static_cast<std::uint32_t>(std::min(wanted, 2.0 * stream.per_mark));
}

void InFlight::reap(Stream& stream, base::TimePoint now) {
  while (stream.count != 0) {
    Mark& oldest = stream.marks[stream.first];
    const cuda::CUresult state = driver_.cuEventQuery(oldest.event);
    if (state == cuda::CUDA_ERROR_NOT_READY) return;
    float milliseconds = 0;
    if (state != cuda::CUDA_SUCCESS) {
      stream.stalls = kMostStalls;  // a sticky error
    } else if (stream.last_done.event != nullptr &&
               driver_.cuEventElapsedTime(&milliseconds, stream.last_done.event, oldest.event) == cuda::CUDA_SUCCESS) {
      learn(stream, oldest, double{milliseconds} * 1e6);
    }
    if (stream.last_done.event != nullptr) stream.spare.push_back(stream.last_done.event);
    stream.last_done = oldest;
    stream.first = (stream.first + 1) % kMostMarks;
    --stream.count;
    stream.progress = now;
    stream.is_waived = false;
  }
}

std::size_t InFlight::most_marks(const Stream& stream) const {
  if (stream.each_ns == 0) return kMarksAtFirst;
  const double marks = bound_ns() / (stream.each_ns * stream.per_mark);
  // One more than fits: while the thread looks whether the oldest is done, the GPU has another to go on with.
  return marks * kLongSubmission <= 1 ? 1 : std::min(static_cast<std::size_t>(marks) + 1, kMostMarks);
}

bool InFlight::is_full(CUcontext context, CUstream which, base::TimePoint now) {
  const base::Locked locked(mutex_);
  Stream& stream = find(context, which);
  // The driver is asked only where the answer matters: a query takes half as long as a launch.
  if (!is_bounded() || stream.stalls >= kMostStalls || stream.count < most_marks(stream)) return false;
  const cuda::RelaxedCapture relaxed(driver_);
  reap(stream, now);
  if (stream.is_waived || stream.stalls >= kMostStalls || stream.count < most_marks(stream)) return false;
  if (now - stream.progress <= kPatience) return true;
  stream.is_waived = true;
  ++stream.stalls;
  return false;
}

void InFlight::await(CUcontext context, CUstream stream) {
  const os::SystemClock clock;
  while (is_full(context, stream, clock.now())) {
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
  stream.marks[(stream.first + stream.count) % kMostMarks] =
      Mark{.event = event, .submissions = stream.since_mark, .after_idling = stream.count == 0};
  ++stream.count;
  stream.since_mark = 0;
}

void InFlight::submitted(CUcontext context, CUstream which, base::TimePoint now) {
  const base::Locked locked(mutex_);
  Stream& stream = find(context, which);
  ++stream.since_mark;
  if (stream.since_mark < stream.per_mark || stream.stalls >= kMostStalls) return;
  const cuda::RelaxedCapture relaxed(driver_);
  reap(stream, now);
  if (stream.count < kMostMarks) mark(stream, now);
}

void InFlight::drop_events(Stream& stream) {
  for (const CUevent event : stream.spare) driver_.cuEventDestroy_v2(event);
  for (; stream.count != 0; --stream.count, stream.first = (stream.first + 1) % kMostMarks)
    driver_.cuEventDestroy_v2(stream.marks[stream.first].event);
  if (stream.last_done.event != nullptr) driver_.cuEventDestroy_v2(stream.last_done.event);
}

void InFlight::forget_stream(CUstream which) {
  const base::Locked locked(mutex_);
  const cuda::RelaxedCapture relaxed(driver_);
  std::erase_if(streams_, [&](const auto& stream) {
    if (stream->stream != which) return false;
    drop_events(*stream);
    return true;
  });
}

void InFlight::forget_context(CUcontext context, Context state) {
  const base::Locked locked(mutex_);
  const cuda::RelaxedCapture relaxed(driver_);
  std::erase_if(streams_, [&](const auto& stream) {
    if (stream->context != context) return false;
    if (state == Context::kGoing) drop_events(*stream);
    return true;
  });
}

}  // namespace gpumux::gate
