// SPDX-License-Identifier: Apache-2.0
// The means of a stream's thread: simulated time, and its part of the GPU.
//
// Simulated durations are really waited, but a launch takes 2 us and a sleep of 2 us takes 50. So a worker keeps
// account of the time it owes (`due_`, ahead of the clock) and sleeps when it owes enough to be worth it. In the long
// run each operation takes the time it should, at next to no processor time.
//
// Owned and used by one thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "cuda/abi.h"
#include "sim/cuda/time_slice.h"

namespace gpumux::sim {

class Context;
class Freezer;

class Worker {
 public:
  Worker() = default;
  ~Worker() { let_go(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // An operation starts: waiting until now is no debt paid in advance.
  void begin();
  // Lets time pass.
  void pass(base::Duration duration);
  // Pays the owed time; before a waiter hears of the end of an operation whose duration matters.
  void settle();
  // The simulated GPU's clock: now, or the end of the charged time.
  base::TimePoint time() const;

  // Runs on the context's GPU for this much time of its own, taking turns with other processes. Ends early with the
  // context's error if that breaks.
  cuda::CUresult compute(Context& context, base::Duration duration);
  // The same for work at the GPU's speed, which takes longer while other streams of the process work too.
  cuda::CUresult work(Context& context, base::Duration alone);
  // The same for a kernel that waits for something: all that passes is real time.
  cuda::CUresult wait_on_gpu(Context& context, base::Duration duration);
  // Waits until the context's kernels may run on its GPU: it is this process's turn, and they are not frozen. That is
  // kept from one kernel to the next and given back before anything is waited for.
  void hold(Context& context);
  void let_go();

 private:
  cuda::CUresult run(Context& context, base::Duration duration);
  void wait_for_thaw(Context& context);

  base::TimePoint due_{};
  ComputeTurn* held_ = nullptr;
  Freezer* entered_ = nullptr;  // null only if held_ is
  bool shares_ = false;         // its kernel counts in ComputeTurn::sharing, except while frozen
};

}  // namespace gpumux::sim
