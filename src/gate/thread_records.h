// SPDX-License-Identifier: Apache-2.0
// One record per thread that has submitted work. The thread that closes a gate sees by them which threads are inside,
// and those share no write.
//
// A record is written by its thread only and read by the thread that closes gates. Records are never freed: a thread
// that ends gives its record back, and the next new thread takes it. So the list can be walked without a lock.
//
// A thread may end inside: pthread_cancel ends it within the driver's call, or a callback of the program's calls
// pthread_exit. Its record is outside from then on. So the short way needs no protection from cancellation; every other
// way is protected as a whole, because it takes locks and counts (base/no_cancellation.h).
//
// A record also holds what its thread remembers of streams. A new generation forgets all memos of all threads at once.
// There is one when a handle dies, a drain begins (streams are noted again, gate/stream_set.h), a capture begins, or a
// second context appears. These are rare, and submissions are not. So a submission compares one number, on a cache line
// that hardly ever changes.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/limits.h"
#include "cuda/abi.h"

namespace gpumux::gate {

class StreamSet;

// Grows; never 0. Alone on its cache line: written rarely, read at every submission.
struct alignas(64) MemoGeneration {
  std::atomic<std::uint64_t> value{1};
};
extern constinit MemoGeneration g_memo_generation;

// acquire: pairs with forget_memos, so that a thread that sees the new number sees why.
inline std::uint64_t memo_generation() { return g_memo_generation.value.load(std::memory_order_acquire); }
// Returns the new generation. Any thread.
inline std::uint64_t forget_memos() { return g_memo_generation.value.fetch_add(1, std::memory_order_acq_rel) + 1; }

extern const std::atomic<std::uint32_t> g_closed_word;

// A thread's memory of a stream it has used, so that the next submission needs neither a driver call nor a lock. One
// cache line.
struct alignas(64) StreamMemo {
  cuda::CUstream stream = nullptr;
  const std::atomic<std::uint32_t>* word = &g_closed_word;  // the seat's lease word
  std::uint64_t direct_generation = 0;  // while it is this, the thread may pass directly (pass_directly)
  std::uint32_t slot = 0;
  bool is_noted = false;         // in `streams`, since `generation`
  std::uint64_t generation = 0;  // at which all but direct_generation was found
  cuda::CUcontext context = nullptr;
  StreamSet* streams = nullptr;  // the seat's; null: this memo is empty
};
static_assert(sizeof(StreamMemo) == 64);

struct alignas(64) ThreadRecord {
  // Passages through each seat's gate: odd while inside. Two more for each submission.
  std::atomic<std::uint64_t> passages[base::kMaxSeatsPerTenant] = {};
  // Seats, as bits: whether a passage there is a hold (Gate::hold).
  std::atomic<std::uint64_t> holds = 0;
  std::atomic<bool> is_looking_up = false;
  std::atomic<ThreadRecord*> next = nullptr;  // set once, before the record is in the list
  std::atomic<bool> taken = false;

  // The thread's own from here. Direct-mapped by stream handle; 16: more streams than programs commonly use from one
  // thread.
  static constexpr std::size_t kMemos = 16;
  StreamMemo memos[kMemos];

  // Stream handles are addresses of objects larger than 64 bytes, or the small constants of default streams.
  StreamMemo& memo_of(cuda::CUstream stream) {
    const auto value = reinterpret_cast<std::uintptr_t>(stream);
    return memos[(value ^ (value >> 6) ^ (value >> 12)) % kMemos];
  }
};

// initial-exec: the library is loaded at program start, so its thread variables lie at a fixed distance from the thread
// pointer.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local ThreadRecord* t_record;
ThreadRecord* make_record();

// The calling thread's record, made at its first use. Null only if memory is exhausted.
inline ThreadRecord* this_thread() { return t_record != nullptr ? t_record : make_record(); }

// For walking: the newest record; follow `next`.
ThreadRecord* first_record();

// In a forked child, which has one thread: forgets all others' records (they would be inside for ever).
void forget_threads_after_fork();

}  // namespace gpumux::gate
