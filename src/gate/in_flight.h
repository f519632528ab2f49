// SPDX-License-Identifier: Apache-2.0
// How far ahead of the GPU a seat's threads may submit, as a time: the in-flight bound.
//
// Problem: a program can queue seconds of work in a moment. When its lease is taken away, the next seat waits for all
// of that, or shares the GPU with it. The number of launches does not tell how much work that is: one takes a
// microsecond or a second.
//
// Idea: an event, a mark, is recorded behind each group of submissions to a stream. The time between two marks that are
// done tells how long the submissions between them ran. From the mean of these times follows how long the work now
// queued will take. A mark stands for an eighth of the bound's time, or less. A thread whose stream has the bound's
// time queued waits before it enters the gate. So the GPU has most of the bound queued and does not idle. If the last
// few submissions took as long as the mean says, the queue holds no more than the bound and one submission. A graph's
// launch counts as one.
//
// A thread that waits here must not be the thread that the GPU waits for. Work may need what its thread does later: set
// a flag that a kernel spins on, or write a value. So no thread waits for longer than kPatience without a mark being
// done. Then the stream has no bound until one is done. After kMostStalls such times, or where the driver makes no
// marks, it never has one again.
//
// A mark is only ever made behind a submission, inside the gate, and not while something captures. Any thread may call
// any function; the driver is called under the lock, briefly.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/lock.h"
#include "cuda/driver.gen.h"

namespace gpumux::gate {

class InFlight {
 public:
  // A guess: longer than nearly all kernels. A program whose thread the GPU waits for stands still for so long.
  static constexpr base::Duration kPatience = std::chrono::milliseconds(500);
  // A program whose threads the GPU waits for stalls again and again; a few kernels that run for longer than kPatience
  // look the same. Three stalls cost the one 1.5 s in its life, and leave the other its bound.
  static constexpr unsigned kMostStalls = 3;

  explicit InFlight(const cuda::Driver& driver) : driver_(driver) {}
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

  // Zero: no bound. True: it was another; then the caller makes the memos invalid, so that threads come here, or do so
  // no more.
  bool set_bound(base::Duration bound) {
    return bound_ns_.exchange(bound.count(), std::memory_order_relaxed) != bound.count();
  }
  bool is_bounded() const { return bound_ns_.load(std::memory_order_relaxed) != 0; }

  // Before a submission, not inside the gate: waits while the stream (as in StreamSet::note) has its bound queued.
  void await(cuda::CUcontext context, cuda::CUstream stream);
  // The same without waiting: whether it would at this moment. The clock is read where the answer needs it.
  bool is_full(cuda::CUcontext context, cuda::CUstream stream, const base::Clock& clock);

  // After a submission, still inside the gate.
  void submitted(cuda::CUcontext context, cuda::CUstream stream, const base::Clock& clock);

  // The seat's turn ends with work still queued. That work runs together with another seat's work, or waits for it, and
  // takes longer than by itself. Any thread; waits for nothing.
  void turn_ended() { turns_.fetch_add(1, std::memory_order_relaxed); }

  // The stream is about to be destroyed; the context is, or has been, and its events with it.
  void forget_stream(cuda::CUstream stream);
  enum class Context { kGoing, kGone };
  void forget_context(cuda::CUcontext context, Context state);

 private:
  static constexpr std::size_t kMostMarks = 16;  // undone, of one stream; twice those that the bound's time has

  // Submissions to one stream, one after the other, and the event behind them.
  struct Mark {
    cuda::CUevent event = nullptr;
    std::size_t submissions = 0;
    bool after_idling = false;  // the queue was empty before it: the time since the mark before is no work's
    std::uint32_t turn = 0;     // turns_ then
  };
  struct Stream {
    cuda::CUcontext context = nullptr;
    cuda::CUstream stream = nullptr;
    const void* thread = nullptr;        // the thread that owns this default stream, if each thread has its own
    std::array<Mark, kMostMarks> marks;  // undone, a ring, oldest at `first`
    std::size_t first = 0;
    std::size_t count = 0;
    std::size_t queued = 0;             // submissions of all of these
    std::size_t unmarked = 0;           // and those that have no event behind them yet
    cuda::CUevent last_done = nullptr;  // the time of the oldest mark starts here
    std::vector<cuda::CUevent> spare;
    double each_ns = 0;          // a submission's time on the GPU, smoothed; 0: not known yet
    base::TimePoint progress{};  // when the oldest undone mark became that
    bool is_waived = false;      // nothing was done for too long: no bound until something is
    unsigned stalls = 0;         // kMostStalls: no bound any more
  };

  Stream& find(cuda::CUcontext context, cuda::CUstream stream) GPUMUX_REQUIRES(mutex_);
  void reap(Stream& stream, base::TimePoint now) GPUMUX_REQUIRES(mutex_);
  void learn(Stream& stream, const Mark& mark, double elapsed_ns) GPUMUX_REQUIRES(mutex_);
  bool is_full(const Stream& stream) const GPUMUX_REQUIRES(mutex_);
  cuda::CUevent take_event(Stream& stream) GPUMUX_REQUIRES(mutex_);
  void mark(Stream& stream, base::TimePoint now) GPUMUX_REQUIRES(mutex_);
  void drop_events(Stream& stream) GPUMUX_REQUIRES(mutex_);
  double bound_ns() const { return static_cast<double>(bound_ns_.load(std::memory_order_relaxed)); }

  const cuda::Driver& driver_;
  std::atomic<std::int64_t> bound_ns_{0};
  std::atomic<std::uint32_t> turns_{0};
  base::Mutex mutex_;
  std::vector<std::unique_ptr<Stream>> streams_ GPUMUX_GUARDED_BY(mutex_);
};

}  // namespace gpumux::gate
