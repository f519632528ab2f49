// SPDX-License-Identifier: Apache-2.0
// The gate: the place that every submission passes, open while the seat holds a lease.
//
// Passing, while the lease is held, is two plain stores and a load:
//
//     passages[slot] += 1                  odd: inside
//     compiler barrier
//     word & kGranted ?                    the lease word, in the page shared with the daemon
//     ... the driver call ...
//     passages[slot] += 1                  even: outside
//
// To close, kGranted is cleared: by the daemon when it revokes, by close_if_granted for a release. Then close() runs a
// process-wide barrier and waits until no thread is inside. After the barrier, a thread either has its odd mark
// visible, and is waited for, or it sees the cleared word and waits. So no submission is made after close() has
// returned (invariant 3). Only the closer pays for a fence. A thread that is inside a second time (the driver calls
// back into itself) passes unasked. It is waited for already, and stopping it would make the wait endless.
//
// A seat's gate has a second condition. The process itself may bar it while memory that its work can reach is not on
// the GPU (docs/memory.md). bar() clears the way for new passages. A thread that then needs every other thread outside,
// to unmap memory, runs the barrier and looks, as a closer does. The short way does not look at the bar. It needs no
// look, because bar() is followed by a new generation, which makes all memos invalid. A passage makes a memo for the
// short way only if it found the gate unbarred after it had read the generation (Passage::note):
//
//     the thread that bars:    barred = 1;  generation += 1 (release);  [barrier; is a thread inside?]
//     the short way:           inside;  generation == the memo's (acquire)?
//     the long way:            g = generation (acquire);  inside;  barred == 0?;  memo.direct_generation = g
//
// A thread on the short way that sees the new generation goes the long way. A thread that sees the old one was inside
// before the barrier, and is waited for. A thread on the long way that has read the new generation sees barred = 1
// (release and acquire). A thread that has read the old one makes a memo that is invalid from the start. An allocation
// that is born evicted needs no barrier. A thread that has its address has synchronised with the thread that allocated
// it. So it sees the new generation before it submits.
//
// One Gate for the process, for all seats. Submitting threads call pass/leave; one thread (the drainer) closes, one
// (the pager thread) bars, and so does a thread that allocates outside the gate.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "gate/membarrier.h"
#include "gate/thread_records.h"
#include "wire/lease_page.h"

namespace gpumux::gate {

enum class Passed {
  kHolding,   // by the lease
  kNested,    // the thread was inside already
  kNot,       // the gate is closed
  kStranded,  // it is barred for memory that cannot come back
};

// try_pass by what the thread remembers of a stream: the same marks and the same look at the word. Returns what to add
// one to when outside again; null: go the long way. The thread is inside before it looks at the memo, so it sees a
// drain that has begun since (StreamSet::begin_drain). Always inlined: a call costs as much as all that it does.
[[gnu::always_inline]] inline std::atomic<std::uint64_t>* pass_directly(ThreadRecord& thread, const StreamMemo& memo,
                                                                        cuda::CUstream stream) {
  if (memo.stream != stream) return nullptr;
  std::atomic<std::uint64_t>& passages = thread.passages[memo.slot];
  const std::uint64_t count = passages.load(std::memory_order_relaxed);  // only this thread writes it
  if ((count & 1) != 0) return nullptr;
  passages.store(count + 1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // orders the compiler; the closer's barrier orders the machine
  // acquire: as in Gate::try_pass.
  if ((memo.word->load(std::memory_order_acquire) & (wire::kGranted | wire::kUngated)) != 0 &&
      memo.direct_generation == memo_generation()) [[likely]] {
    return &passages;
  }
  passages.store(count, std::memory_order_release);
  return nullptr;
}

// Ends a passage by the short way. release: pairs with the acquire in Gate::is_anybody_inside.
inline void leave_directly(std::atomic<std::uint64_t>& passages) {
  passages.store(passages.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

// For as long as this lives, the thread's call names addresses, which the driver looks up soon after it has passed.
class LookingUp {
 public:
  explicit LookingUp(ThreadRecord* thread) : thread_(thread) { set(true); }
  ~LookingUp() { set(false); }
  LookingUp(const LookingUp&) = delete;
  LookingUp& operator=(const LookingUp&) = delete;

 private:
  void set(bool is_so) {
    if (thread_ != nullptr) thread_->is_looking_up.store(is_so, std::memory_order_relaxed);
  }
  ThreadRecord* const thread_;
};

class Gate {
 public:
  // `page`: the process's lease page, zeroed, valid as long as the gate. `request` asks the daemon for a lease. A
  // waiting thread that holds nothing calls it, perhaps several times. It must not block for long.
  Gate(wire::LeasePage& page, void (*request)(void* context, std::uint32_t slot), void* context);

  // Marks the thread inside seat `slot` if it may submit now. Anything but kNot and kStranded is followed by leave.
  Passed try_pass(ThreadRecord& thread, std::uint32_t slot) {
    std::atomic<std::uint64_t>& passages = thread.passages[slot];
    const std::uint64_t count = passages.load(std::memory_order_relaxed);  // only this thread writes it
    if ((count & 1) != 0) return Passed::kNested;
    passages.store(count + 1, std::memory_order_relaxed);
    if (fences_itself_.load(std::memory_order_relaxed)) {
      full_fence();
    } else {
      std::atomic_signal_fence(
          std::memory_order_seq_cst);  // orders the compiler; close()'s process barrier orders the machine
    }
    // acquire: pairs with the daemon's release store of a grant, so that what was prepared before it is seen.
    if ((word(slot).load(std::memory_order_acquire) & (wire::kGranted | wire::kUngated)) != 0 && !is_barred(slot))
      return Passed::kHolding;
    passages.store(count, std::memory_order_release);
    return Passed::kNot;
  }

  // Marks the thread inside whether the seat holds a lease or not, unless it is barred. The seat's memory stays where
  // it is until the thread leaves. For calls that make the GPU do nothing and need addresses to be real. Anything but
  // kNot and kStranded is followed by leave.
  Passed try_hold(ThreadRecord& thread, std::uint32_t slot);

  // Like try_hold, and where memory is away it passes as a submission does, which brings it back. An eviction
  // waits for this thread to leave, even if the seat's work is frozen (is_anybody_holding).
  Passed hold(ThreadRecord& thread, std::uint32_t slot);

  // Like try_pass, but waits until the thread may submit, or the seat is stranded.
  Passed pass(ThreadRecord& thread, std::uint32_t slot) {
    const Passed passed = try_pass(thread, slot);
    return passed != Passed::kNot ? passed : wait_and_pass(thread, slot);
  }

  // Whether the thread has passed, and not left.
  static bool is_inside(const ThreadRecord& thread, std::uint32_t slot) {
    return (thread.passages[slot].load(std::memory_order_relaxed) & 1) != 0;
  }

  // Not for kNested.
  void leave(ThreadRecord& thread, std::uint32_t slot) {
    std::atomic<std::uint64_t>& passages = thread.passages[slot];
    // release: pairs with the acquire in is_anybody_inside; the driver call is done before the closer goes on.
    passages.store(passages.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    set_holding(thread, slot, false);
  }

  // A thread that will not go on before it has passed this gate, asleep or not: waiting() counts it.
  class Waiting {
   public:
    // seq_cst, before asking: pairs with waiting(), which the drainer reads after it has told the daemon of a release.
    // Either it sees this thread and asks on its behalf, or the daemon gets this thread's request after the release.
    Waiting(Gate& gate, std::uint32_t slot) : gate_(gate), slot_(slot) {
      gate_.waiting_[slot_].fetch_add(1, std::memory_order_seq_cst);
    }
    ~Waiting() { gate_.waiting_[slot_].fetch_sub(1, std::memory_order_seq_cst); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    std::uint32_t slot() const { return slot_; }

   private:
    Gate& gate_;
    const std::uint32_t slot_;
  };
  // Sleeps until the word would let a thread pass. Does not pass, and may return early, for nothing. For
  // callers that need several gates at once. They look at is_stranded first.
  void wait_until_open(const Waiting& waiting);

  // The barrier, once for all slots whose word has been cleared; then ask is_anybody_inside until it is false.
  void begin_close();
  bool is_anybody_inside(std::uint32_t slot) const;
  // Whether one is inside that needs addresses to be real until it leaves (hold), or only at first (LookingUp). Any
  // other one launches: of a seat whose channels are frozen, what it submits stands still.
  bool is_anybody_holding(std::uint32_t slot) const;
  bool is_anybody_looking_up(std::uint32_t slot) const;

  // Clears kGranted of the seat's own accord, if the word still is what the daemon last stored. Returns the epoch of
  // the lease that this gives up, never of one that the daemon has given since. Nothing: it is not granted.
  std::optional<std::uint64_t> close_if_granted(std::uint32_t slot);
  // Takes that back unless the daemon has stored another word since.
  void reopen_own(std::uint32_t slot);

  // Lets every thread pass from now on (no daemon).
  void set_ungated(std::uint32_t slot);
  // Takes that back: there is a daemon again. Threads that come now ask it, unless the lease is still held.
  void clear_ungated(std::uint32_t slot);

  // The second condition, see above. bar: true if it was not barred; then the caller makes the memos invalid.
  bool bar(std::uint32_t slot) { return (bars_[slot].fetch_or(kBarred, std::memory_order_seq_cst) & kBarred) == 0; }
  void unbar(std::uint32_t slot);
  bool is_barred(std::uint32_t slot) const { return (bars_[slot].load(std::memory_order_acquire) & kBarred) != 0; }
  // While the seat is stranded, threads that find it barred do not wait. They get kStranded. Two say so, each for
  // itself: the daemon, and the pager thread, which the driver refuses memory.
  enum class StrandedBy : std::uint32_t { kDaemon = 1u << 1, kDriver = 1u << 2 };
  void set_stranded(std::uint32_t slot, StrandedBy by, bool is_stranded);
  bool is_stranded(std::uint32_t slot) const {
    const std::uint32_t bars = bars_[slot].load(std::memory_order_acquire);
    return (bars & kBarred) != 0 && bars != kBarred;
  }

  bool is_granted(std::uint32_t slot) const {
    return (word(slot).load(std::memory_order_acquire) & wire::kGranted) != 0;
  }
  bool is_ungated(std::uint32_t slot) const {
    return (word(slot).load(std::memory_order_relaxed) & wire::kUngated) != 0;
  }
  bool is_contended(std::uint32_t slot) const {
    return (word(slot).load(std::memory_order_relaxed) & wire::kContended) != 0;
  }
  bool is_exclusive(std::uint32_t slot) const {
    return (word(slot).load(std::memory_order_relaxed) & wire::kExclusive) != 0;
  }
  std::uint64_t epoch(std::uint32_t slot) const { return page_.slots[slot].epoch.load(std::memory_order_relaxed); }
  // Threads that will come to this gate before they do anything else, asleep at it or not there yet.
  std::uint32_t waiting(std::uint32_t slot) const { return waiting_[slot].load(std::memory_order_seq_cst); }
  // Sum of all threads' passages: two for each submission. It changes with every passage.
  std::uint64_t passages(std::uint32_t slot) const;

  // The seat's lease word, for pass_directly.
  const std::atomic<std::uint32_t>& lease_word(std::uint32_t slot) const { return page_.slots[slot].word; }
  // Whether the short way may be taken at all: not where passing threads have to fence themselves.
  bool has_short_way() const { return !fences_itself_.load(std::memory_order_relaxed); }

  // In tests: a thread that is told of a grant to come stays awake this long, at any cost.
  void stay_awake_in_test(base::Duration time) { awake_for_test_ = time; }

 private:
  const std::atomic<std::uint32_t>& word(std::uint32_t slot) const { return page_.slots[slot].word; }
  std::atomic<std::uint32_t>& word(std::uint32_t slot) { return page_.slots[slot].word; }
  static void set_holding(ThreadRecord& thread, std::uint32_t slot, bool holds) {
    const std::uint64_t before = thread.holds.load(std::memory_order_relaxed);  // only this thread writes it
    const std::uint64_t bit = std::uint64_t{1} << slot;
    if (((before & bit) != 0) != holds) thread.holds.store(before ^ bit, std::memory_order_relaxed);
  }
  Passed wait_and_pass(ThreadRecord& thread, std::uint32_t slot);
  void sleep(std::uint32_t slot);
  bool is_open(std::uint32_t slot) const;
  bool has_lease(std::uint32_t slot) const;
  void stay_awake(std::uint32_t slot);

  wire::LeasePage& page_;
  void (*const request_)(void*, std::uint32_t);
  void* const context_;
  std::atomic<bool> fences_itself_;  // the kernel has refused membarrier; it never becomes false again
  std::optional<base::Duration> awake_for_test_;
  std::atomic<std::uint32_t> waiting_[base::kMaxSeatsPerTenant] = {};
  // Read together with the lease word, on the long way only.
  static constexpr std::uint32_t kBarred = 1u << 0;  // the other bits: StrandedBy
  std::atomic<std::uint32_t> bars_[base::kMaxSeatsPerTenant] = {};
};

}  // namespace gpumux::gate
