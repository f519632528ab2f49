// SPDX-License-Identifier: Apache-2.0
// One record per thread that has submitted work, so that closing a gate can see who is inside without the threads
// sharing a write.
//
// A record is written by its thread only and read by the thread that closes gates. Records are never freed: a thread
// that ends gives its record back, and the next new thread takes it. So the list can be walked without a lock.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/limits.h"
#include "cuda/abi.h"

namespace gpumux::gate {

class StreamSet;

// What a thread remembers of a stream it has used, so that the next submission needs neither a driver call nor a lock.
struct StreamMemo {
  cuda::CUstream stream = nullptr;
  cuda::CUcontext context = nullptr;  // for default streams: the context they belong to; otherwise null
  std::uint32_t handle_generation =
      0;  // of Gate::handle_generation; another value: a handle has died since, forget this
  std::uint32_t clean_generation = 0;  // of the seat's StreamSet; another value: the stream is not in the set any more
  std::uint32_t slot = 0;
  StreamSet* streams = nullptr;  // the seat's; null: this memo is empty
};

struct ThreadRecord {
  // Passages through each seat's gate: odd while inside. Two more for each submission.
  std::atomic<std::uint64_t> passages[base::kMaxSeatsPerTenant] = {};
  std::atomic<ThreadRecord*> next = nullptr;  // set once, before the record is in the list
  std::atomic<bool> taken = false;

  // The thread's own. Direct-mapped by stream handle; 8: more streams than programs commonly use from one thread.
  static constexpr std::size_t kMemos = 8;
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
