// SPDX-License-Identifier: Apache-2.0
// Whose kernels advance on a GPU.
//
// A GPU without MPS works for one process at a time: the driver gives each process that has work a time slice in turn,
// and every change costs something. A ComputeTurn is this process's side of that for one GPU. All its streams run
// together while the process has the GPU, and pause together when its slice is over and another process waits.
//
// Between processes there is one word, Arbiter::owner (slot, generation of the slot, number of the grant), and a line:
// each waiting process has a ticket in its slot. An owner that lets go hands over to the lowest ticket of a living
// process. A waiter takes the GPU itself when no process owns it, or the owner is dead. It also takes it when one owner
// has had it far longer than a slice: that one was stopped, and a real GPU would go on without its process's help.
// Nothing is locked, so death and stops at any instruction are harmless.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/clock.h"
#include "sim/cuda/machine.h"

namespace gpumux::sim {

class ComputeTurn {
 public:
  ComputeTurn(Machine& machine, std::uint32_t gpu) : machine_(machine), gpu_(gpu) {}

  // Waits until this process has the GPU; from then on the caller counts as running on it.
  void acquire();
  // The last one who runs hands the GPU on.
  void release();
  // Must the caller release and acquire again, because the slice is over and others wait? To be asked at least every
  // few 100 us.
  bool must_yield();
  // Kernels that work at the GPU's speed, rather than wait or spin, share it: how many do now, at least 1.
  std::uint32_t sharing() const { return std::max(sharing_.load(), 1u); }
  void begin_sharing() { sharing_.fetch_add(1); }
  void end_sharing() { sharing_.fetch_sub(1); }

 private:
  void obtain();
  void hand_over();
  bool others_wait();
  std::uint64_t identity() { return machine_.own().generation.load() << 16 | (machine_.own_slot() + 1); }
  bool first_in_line(std::uint64_t ticket);
  void drop_from_line(std::uint64_t ticket);

  Machine& machine_;
  const std::uint32_t gpu_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;       // this process has the GPU
  bool obtaining_ = false;  // one thread is getting it
  bool yielding_ = false;   // those who run are asked to stop
  std::uint32_t running_ = 0;
  std::atomic<std::uint32_t> sharing_{0};
  std::uint64_t word_ = 0;  // what Arbiter::owner says while it is ours
  base::TimePoint slice_end_{};
  base::TimePoint busy_since_{};
};

}  // namespace gpumux::sim
