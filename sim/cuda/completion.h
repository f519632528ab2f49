// SPDX-License-Identifier: Apache-2.0
// The end of one operation of a stream: later operations, events and waiting threads look at it.
#pragma once

#include <atomic>
#include <cstdint>

#include "os/futex.h"
#include "sim/cuda/machine.h"

namespace gpumux::sim {

class Completion {
 public:
  bool done() const { return (state_.load(std::memory_order_acquire) & kDone) != 0; }  // pairs with finish

  void finish(base::TimePoint time) {
    time_ = time;
    const std::uint32_t before = state_.fetch_or(kDone, std::memory_order_acq_rel);  // pairs with done and wait
    if ((before & kWaited) != 0) os::futex_wake(state_, os::FutexScope::kProcess);
  }

  void wait() {
    while (!done()) {
      const std::uint32_t before = state_.fetch_or(kWaited, std::memory_order_acq_rel);  // pairs with finish
      if ((before & kDone) != 0) return;
      os::futex_wait(state_, kWaited, base::Duration(-1), os::FutexScope::kProcess);
    }
  }

  // When it was over, on the simulated GPU's clock. Only once it is done.
  base::TimePoint time() const { return time_; }

 private:
  static constexpr std::uint32_t kDone = 1;
  static constexpr std::uint32_t kWaited = 2;
  std::atomic<std::uint32_t> state_{0};
  base::TimePoint time_{};
};

}  // namespace gpumux::sim
