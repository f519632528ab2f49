// SPDX-License-Identifier: Apache-2.0
// The streams that one seat has used since its GPU work was last known to be done. A drain looks at these.
//
// Problem: when a gate has closed, the drainer must know when the work behind it is finished. Synchronising the context
// is not allowed while any of its streams captures. It cannot be given up when a kernel spins for ever, and it blocks a
// thread that is needed. An event behind each launch would cost more than the launch's share of our budget.
//
// Idea: each thread notes a stream in this set at its first use after the last drain. Later submissions see by one
// compare with the thread's own memo that it is noted. The drain then asks cuStreamQuery for each noted stream until
// all say done. The gate is closed, so no stream is added, and the answer is exact. Nothing blocks: a full launch queue
// only answers "not ready".
//
// Three kinds of streams need more (docs/decisions/0004):
//   - a per-thread default stream has no name that another thread could ask by. The set asks the legacy default stream
//   of its context instead, which answers for all streams that synchronise with it. It cannot be asked while one of
//   those captures; then the seat counts as running. Events fence what these streams ran before the capture, and each
//   submission of a thread to its own stream during it (fence_own). So `look` has an answer all the same.
//   - a stream that captures cannot be asked, for the question would break the capture. An event fences what the stream
//   had submitted before. From before the capture begins, the set asks neither it nor its context's legacy stream
//   (EnteringCapture).
//   - a stream about to be destroyed keeps working: an event outlives it (retire).
//
// Any thread may call any function; the driver is called under the set's lock, briefly, with capture mode relaxed. The
// lock is never held while waiting for the GPU.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/lock.h"
#include "cuda/driver.gen.h"
#include "gate/thread_records.h"

namespace gpumux::gate {

// The handle by which every thread names its own default stream (CU_STREAM_PER_THREAD), and the other name of the
// legacy one.
inline const cuda::CUstream kPerThreadStream = reinterpret_cast<cuda::CUstream>(std::uintptr_t{2});
inline const cuda::CUstream kLegacyStream = reinterpret_cast<cuda::CUstream>(std::uintptr_t{1});

enum class WorkState { kRunning, kDone, kPoisoned /* a sticky error: it will never run anything more */ };

class StreamSet {
 public:
  explicit StreamSet(const cuda::Driver& driver) : driver_(driver) {}
  StreamSet(const StreamSet&) = delete;
  StreamSet& operator=(const StreamSet&) = delete;

  // Notes a stream (for a default stream: null or kPerThreadStream, of `context`). Called inside the gate, before the
  // submission.
  void note(cuda::CUcontext context, cuda::CUstream stream);

  // Around the call by which `stream` starts to capture or joins a capture. While one lives, the set asks neither the
  // stream nor its context's legacy stream, which a capture silences, too. An event fences what they had submitted
  // before. Afterwards the driver itself says which streams capture.
  class EnteringCapture {
   public:
    EnteringCapture(StreamSet& set, cuda::CUcontext context, cuda::CUstream stream);
    ~EnteringCapture();
    EnteringCapture(const EnteringCapture&) = delete;
    EnteringCapture& operator=(const EnteringCapture&) = delete;

   private:
    StreamSet& set_;
    const cuda::CUcontext context_;
    const cuda::CUstream stream_;
  };

  // After a submission to the calling thread's own stream while something captures.
  void fence_own(cuda::CUcontext context);

  // Before `stream` is destroyed.
  void retire(cuda::CUstream stream);

  // Around the destruction, reset or release of a context. In between the seat counts as running and the set does not
  // ask the driver. `gone`: the context that died; its streams are forgotten. Null: none died.
  void begin_teardown();
  void end_teardown(cuda::CUcontext gone);

  // Before a drain looks: all memos are forgotten, so that threads note their streams again. Between this and
  // poll(true) the caller makes sure that every thread inside the gate has seen it (Gate::begin_close,
  // is_anybody_inside).
  void begin_drain();

  // Whether everything noted has finished. Streams that have, and were not noted again since begin_drain, are dropped
  // if `forget`. The gate is closed then, but may be opened at any moment, even between a query and the drop. A thread
  // that enters then notes its stream anew, so the stream is kept.
  WorkState poll(bool forget);

  // The same of `context` alone, for a thread that waits, perhaps in the middle of its own capture. Nothing is
  // forgotten.
  WorkState look(cuda::CUcontext context);

 private:
  struct Entry {
    cuda::CUcontext context = nullptr;
    cuda::CUstream stream = nullptr;  // asked itself, unless there is an event
    cuda::CUevent event = nullptr;    // fences work of a stream that cannot be asked
    std::uint64_t thread = 0;         // the number of the thread that fences its own stream; 0: none
    std::uint64_t noted = 0;          // the memo generation at which a thread last noted it
  };

  // `silenced`: the state of per-thread streams that cannot be asked.
  WorkState state_of(const Entry& entry, WorkState silenced = WorkState::kRunning) GPUMUX_REQUIRES(mutex_);
  bool may_ask(cuda::CUcontext context, cuda::CUstream stream) GPUMUX_REQUIRES(mutex_);
  cuda::CUevent record_event(cuda::CUcontext context, cuda::CUstream stream) GPUMUX_REQUIRES(mutex_);
  void fence(cuda::CUcontext context, cuda::CUstream stream) GPUMUX_REQUIRES(mutex_);
  void drop(std::size_t index) GPUMUX_REQUIRES(mutex_);

  const cuda::Driver& driver_;
  base::Mutex mutex_;
  std::vector<Entry> entries_ GPUMUX_GUARDED_BY(mutex_);
  // One for each EnteringCapture.
  std::vector<std::pair<cuda::CUcontext, cuda::CUstream>> entering_ GPUMUX_GUARDED_BY(mutex_);
  int teardowns_ GPUMUX_GUARDED_BY(mutex_) = 0;
  // Since the last begin_drain. A stream that was noted before it may be dropped.
  std::uint64_t drain_generation_ GPUMUX_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpumux::gate
