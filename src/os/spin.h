// SPDX-License-Identifier: Apache-2.0
// Waiting without sleeping, for moments: for an event that is about to come.
//
// Waking a sleeping thread takes 20 to 70 us on an idle core of a virtual machine. All other parts of a hand-over
// together take less. So a thread that is told of an event to come stays awake for it. Three rules keep that cheap. The
// caller bounds each wait. No thread spins where it would take the core that the other side needs (has_spare_cores).
// Over time no thread spins for more than a fixed share of it (SpinBudget).
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>

#include "base/clock.h"

namespace gpumux::os {

// Tells the core that this is a loop which waits.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// The two sides of a hand-over and the daemon between them, all awake at once.
inline constexpr int kCoresForSpinning = 3;

namespace detail {
// -1: not counted yet. Relaxed everywhere: every thread that counts finds the same.
inline std::atomic<int> spare_cores{-1};
}  // namespace detail

// Whether this process may run on enough cores that spinning takes none from the process that it waits for. Counted
// once: a limit that is set later costs time, not correctness.
inline bool has_spare_cores() {
  int known = detail::spare_cores.load(std::memory_order_relaxed);
  if (known < 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    // Fails where there are more cores than the set has room for.
    known = ::sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) >= kCoresForSpinning ? 1 : 0;
    detail::spare_cores.store(known, std::memory_order_relaxed);
  }
  return known > 0;
}

// For tests: as if the machine had spare cores, or none.
inline void pretend_spare_cores(bool spare) { detail::spare_cores.store(spare ? 1 : 0, std::memory_order_relaxed); }

// A share of one thread's time that may be spent spinning. Time that the thread does not use is kept, up to a reserve.
class SpinBudget {
 public:
  // 1 / `divisor` of the time, and up to `reserve` at once.
  constexpr SpinBudget(int divisor, base::Duration reserve) : divisor_(divisor), reserve_(reserve), left_(reserve) {}

  // How long may be spun now.
  base::Duration left(base::TimePoint now) {
    if (now > seen_) left_ = std::min(reserve_, left_ + (now - seen_) / divisor_);
    seen_ = std::max(seen_, now);
    return left_;
  }
  void spend(base::Duration spun) { left_ -= std::max(spun, base::Duration::zero()); }

 private:
  const int divisor_;
  const base::Duration reserve_;
  base::Duration left_;
  base::TimePoint seen_{};
};

}  // namespace gpumux::os
