// SPDX-License-Identifier: Apache-2.0
#include "gate/stream_set.h"

#include <algorithm>

#include "cuda/current_context.h"
#include "cuda/relaxed_capture.h"
#include "gate/stream_name.h"

namespace gpumux::gate {
namespace {

using cuda::CUcontext;
using cuda::CUevent;
using cuda::CUresult;
using cuda::CUstream;

// Fences of destroyed streams pile up in a seat that is never drained; past this many entries the finished ones are
// dropped. A guess: more streams than programs commonly have.
constexpr std::size_t kSweepAbove = 256;

WorkState state_from(CUresult result) {
  switch (result) {
    case cuda::CUDA_SUCCESS:
    // A stream or context that no longer exists runs nothing.
    case cuda::CUDA_ERROR_INVALID_HANDLE:
    case cuda::CUDA_ERROR_INVALID_CONTEXT:
    case cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case cuda::CUDA_ERROR_DEINITIALIZED:
    case cuda::CUDA_ERROR_NOT_INITIALIZED: return WorkState::kDone;
    case cuda::CUDA_ERROR_NOT_READY: return WorkState::kRunning;
    default: return WorkState::kPoisoned;
  }
}

}  // namespace

// Not while the stream captures or is about to. The current context is `context`.
bool StreamSet::may_ask(CUcontext context, CUstream stream) {
  for (const auto& [where, entering] : entering_) {
    if (where == context && (stream == entering || stream == nullptr)) return false;
  }
  if (driver_.cuStreamIsCapturing == nullptr) return true;
  cuda::CUstreamCaptureStatus status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver_.cuStreamIsCapturing(stream, &status);
  // The legacy stream answers IMPLICIT while a stream that it synchronises with captures.
  if (result == cuda::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return false;
  return result != cuda::CUDA_SUCCESS || status == cuda::CU_STREAM_CAPTURE_STATUS_NONE;
}

WorkState StreamSet::state_of(const Entry& entry, WorkState silenced) {
  const cuda::CurrentContext current(driver_, entry.context);
  if (current.result() != cuda::CUDA_SUCCESS) return state_from(current.result());
  if (entry.event != nullptr) return state_from(driver_.cuEventQuery(entry.event));
  if (entry.stream == kPerThreadStream)  // another thread's, which may submit while another stream captures
    return may_ask(entry.context, nullptr) ? state_from(driver_.cuStreamQuery(nullptr)) : silenced;
  if (!may_ask(entry.context, entry.stream)) return WorkState::kDone;  // an event fences what it ran before
  return state_from(driver_.cuStreamQuery(entry.stream));
}

CUevent StreamSet::record_event(CUcontext context, CUstream stream) {
  const cuda::CurrentContext current(driver_, context);
  CUevent event = nullptr;
  if (current.result() != cuda::CUDA_SUCCESS) return nullptr;
  if (driver_.cuEventCreate(&event, cuda::CU_EVENT_DISABLE_TIMING) != cuda::CUDA_SUCCESS) return nullptr;
  if (driver_.cuEventRecord(event, stream) == cuda::CUDA_SUCCESS) return event;
  driver_.cuEventDestroy_v2(event);
  return nullptr;
}

void StreamSet::fence(CUcontext context, CUstream stream) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry entry = entries_[i];
    if (entry.event != nullptr || entry.stream != stream || entry.context != context) continue;
    // A stream that cannot be asked has been fenced before.
    if (state_of(entry, WorkState::kDone) != WorkState::kRunning) return;
    const CUstream where = stream == kPerThreadStream ? nullptr : stream;
    if (const CUevent event = record_event(context, where); event != nullptr)
      entries_.push_back(Entry{.context = context, .stream = stream, .event = event});
    return;
  }
}

void StreamSet::fence_own(CUcontext context) {
  const base::Locked locked(mutex_);
  const cuda::RelaxedCapture relaxed(driver_);
  const std::uint64_t thread = number_of_this_thread();
  for (const Entry& entry : entries_) {
    if (entry.thread != thread || entry.context != context) continue;
    if (driver_.cuEventRecord(entry.event, kPerThreadStream) == cuda::CUDA_SUCCESS) return;
  }
  if (const CUevent event = record_event(context, kPerThreadStream); event != nullptr)
    entries_.push_back(Entry{.context = context, .stream = kPerThreadStream, .event = event, .thread = thread});
}

void StreamSet::drop(std::size_t index) {
  if (entries_[index].event != nullptr) driver_.cuEventDestroy_v2(entries_[index].event);
  entries_[index] = entries_.back();
  entries_.pop_back();
}

void StreamSet::note(CUcontext context, CUstream stream) {
  const base::Locked locked(mutex_);
  const std::uint64_t generation = memo_generation();
  for (Entry& entry : entries_) {
    if (entry.event != nullptr || entry.stream != stream || entry.context != context) continue;
    entry.noted = generation;
    return;
  }
  if (entries_.size() >= kSweepAbove && teardowns_ == 0) {
    const cuda::RelaxedCapture relaxed(driver_);
    for (std::size_t i = entries_.size(); i-- > 0;) {
      if (entries_[i].event != nullptr && state_of(entries_[i]) != WorkState::kRunning) drop(i);
    }
  }
  entries_.push_back(Entry{.context = context, .stream = stream, .noted = generation});
}

StreamSet::EnteringCapture::EnteringCapture(StreamSet& set, CUcontext context, CUstream stream)
    : set_(set), context_(context), stream_(stream) {
  const base::Locked locked(set_.mutex_);
  const cuda::RelaxedCapture relaxed(set_.driver_);
  for (const CUstream silenced : {CUstream{}, kPerThreadStream}) set_.fence(context_, silenced);
  if (stream_ != nullptr && stream_ != kPerThreadStream) set_.fence(context_, stream_);
  set_.entering_.emplace_back(context_, stream_);
}

StreamSet::EnteringCapture::~EnteringCapture() {
  const base::Locked locked(set_.mutex_);
  set_.entering_.erase(std::find(set_.entering_.begin(), set_.entering_.end(), std::pair(context_, stream_)));
}

void StreamSet::retire(CUstream stream) {
  const base::Locked locked(mutex_);
  const cuda::RelaxedCapture relaxed(driver_);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].event != nullptr || entries_[i].stream != stream) continue;
    const CUcontext context = entries_[i].context;
    fence(context, stream);
    // The fence, if one was needed, is another entry behind this one.
    entries_[i] = entries_.back();
    entries_.pop_back();
    return;
  }
}

void StreamSet::begin_teardown() {
  const base::Locked locked(mutex_);
  ++teardowns_;
}

void StreamSet::end_teardown(CUcontext gone) {
  const base::Locked locked(mutex_);
  --teardowns_;
  if (gone == nullptr) return;
  for (std::size_t i = entries_.size(); i-- > 0;) {
    if (entries_[i].context != gone) continue;
    entries_[i] = entries_.back();  // its event died with the context
    entries_.pop_back();
  }
  forget_memos();
}

// Taking the lock orders this with notes: none carries an older generation from now on.
void StreamSet::begin_drain() {
  const base::Locked locked(mutex_);
  drain_generation_ = forget_memos();
}

WorkState StreamSet::poll(bool forget) {
  const base::Locked locked(mutex_);
  if (teardowns_ != 0) return WorkState::kRunning;
  if (entries_.empty()) return WorkState::kDone;
  const cuda::RelaxedCapture relaxed(driver_);
  bool running = false;
  bool poisoned = false;
  for (std::size_t i = entries_.size(); i-- > 0;) {
    const WorkState state = state_of(entries_[i]);
    if (state == WorkState::kRunning) {
      running = true;
      continue;
    }
    if (state == WorkState::kPoisoned) poisoned = true;
    if (forget && entries_[i].noted < drain_generation_) drop(i);
  }
  if (running) return WorkState::kRunning;
  return poisoned ? WorkState::kPoisoned : WorkState::kDone;
}

WorkState StreamSet::look(CUcontext context) {
  const base::Locked locked(mutex_);
  const cuda::RelaxedCapture relaxed(driver_);
  WorkState whole = WorkState::kDone;
  for (const Entry& entry : entries_) {
    if (entry.context != context) continue;
    const WorkState state = state_of(entry, WorkState::kDone);
    if (state == WorkState::kRunning) return state;
    if (state == WorkState::kPoisoned) whole = state;
  }
  return whole;
}

}  // namespace gpumux::gate
