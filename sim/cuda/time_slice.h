// SPDX-License-Identifier: Apache-2.0
// Decides which kernels advance on a GPU.
//
// A GPU works for one party at a time: a process, or all clients of one MPS server. The driver gives each party that
// has work a time slice in turn, and every change costs something. A ComputeTurn is this process's side of that for one
// GPU. All its streams run together while its party has the GPU, and pause together when the slice is over and another
// party waits. The clients of a server run together as the streams of a process do.
//
// Between processes there is one word, Arbiter::owner (party, number of the grant, number of joins). And there is a
// line: each waiting process has a ticket in its slot. Party and grant are a tenure. A process that runs says in its
// slot in which tenure. The last process of a party that lets go hands over to the party of the lowest ticket of a
// living process. A waiter takes the GPU itself when no living process runs in the owner's tenure or waits to enter it.
// It also takes it when one tenure has lasted far longer than a slice. A process was stopped then, and a real GPU would
// go on without that process's help. Nothing is locked, so death and stops at any instruction are harmless.
//
// A client that joins its party's tenure changes the word, after it has said that it runs. So a process that hands over
// what another one joins at the same time fails: it read the word before it looked which processes run.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "sim/cuda/freezer.h"
#include "sim/cuda/machine.h"

namespace gpumux::sim {

class ComputeTurn {
 public:
  ComputeTurn(Machine& machine, std::uint32_t gpu);

  // Waits until this process has the GPU; from then on the caller counts as running on it. False: the GPU came when the
  // kernels for which the caller wants it were frozen, and was handed on at once.
  bool acquire(const Freezer& kernels);
  // The last one that runs hands the GPU on.
  void release();
  // Must the caller release and acquire again, because the slice is over and others wait? To be asked at least every
  // few 100 us.
  bool must_yield();
  // Kernels that work at the GPU's speed, rather than wait or spin, share it: how many of the party do now, at least 1.
  std::uint32_t sharing();
  // How often the time that it takes alone such a kernel of this process takes now. The part of the speed that all of
  // this process's kernels have is limited (mps.h).
  double slowdown();
  void begin_sharing() { own().sharing.fetch_add(1); }
  void end_sharing() { own().sharing.fetch_sub(1); }

 private:
  SlotGpu& slot(std::uint32_t slot) { return machine_.state().slots[slot].gpu[gpu_]; }
  SlotGpu& own() { return slot(machine_.own_slot()); }
  Arbiter& arbiter() { return machine_.state().arbiters[gpu_]; }
  std::uint64_t party_of(std::uint32_t slot);
  std::uint64_t own_party() { return party_of(machine_.own_slot()); }

  // When the slice began; none: as with `acquire`.
  std::optional<base::TimePoint> obtain(const Freezer& kernels);
  std::uint64_t enter_line();
  bool join(std::uint64_t owner);
  base::TimePoint begin_slice();
  void leave();
  bool has_lives(std::uint64_t owner);
  bool others_wait();
  bool first_in_line(std::uint64_t ticket);
  void drop_from_line(std::uint64_t ticket);

  Machine& machine_;
  const std::uint32_t gpu_;
  const double limit_;  // of the GPU's speed; 1: all of it

  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;       // this process has the GPU
  bool obtaining_ = false;  // one thread is getting it
  bool yielding_ = false;   // the running ones are asked to stop
  std::uint32_t running_ = 0;
  base::TimePoint slice_end_{};
  base::TimePoint busy_since_{};
};

}  // namespace gpumux::sim
