// SPDX-License-Identifier: Apache-2.0
// One side of a fence pair, paid for by the other side. The thread that closes gates makes every running thread of the
// process pass a full memory barrier. Threads that pass gates need no fence of their own.
#pragma once

#include <atomic>

namespace gpumux::gate {

// A full fence of the calling thread. ThreadSanitizer does not know fences; an exchange is one, too.
inline void full_fence() {
#if defined(__SANITIZE_THREAD__)
  static std::atomic<int> anything{0};
  anything.exchange(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// Registers the process; called once, before the first gate can be closed. False where the kernel refuses (seccomp,
// before 4.14): then threads must fence at each passage (Gate::fences_itself).
bool register_membarrier();

// Returns when every thread of this process has passed a full barrier since the call began. False: the kernel refuses
// it. A program may install a filter for system calls at any time.
[[nodiscard]] bool process_barrier();

}  // namespace gpumux::gate
