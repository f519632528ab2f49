// SPDX-License-Identifier: Apache-2.0
// The lock modes of the CUDA wrapper (CUDA_OVERRIDE_*). A program with any of them takes exclusive turns that it ends
// itself, by what it has submitted. They are not turns of the daemon's quantum.
//
//   CUDA_OVERRIDE_KERNEL_N_SYNC    it synchronises, and gives the GPU up, after this many submissions (10)
//   CUDA_OVERRIDE_MAX_SYNC_MS      not 0: instead, it does so at the first submission by which it has held that long
//   CUDA_OVERRIDE_ALWAYS_LOCK      not 0: instead of both, it does so after each submission
//   CUDA_OVERRIDE_SYNC_LOCK_SKIPS  it keeps the GPU through this many synchronisations, forced or its own; it
//                                  gives the GPU up at the next, and counts afresh (0)
//
// Giving up is a release, if another seat waits. If none does, the lease stays, and goes as soon as one comes, unless
// the program has locked again by then. It locks at its next submission. A synchronisation begins a new count of
// submissions, and a new time, whether the GPU is kept through it or not.
//
// Any thread may call any function. A program that sets none of them has none of this.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/limits.h"
#include "base/lock.h"
#include "shim/process/settings.h"

namespace gpumux::shim {

class LockModes {
 public:
  // Nothing: the program has set none.
  explicit LockModes(std::optional<LockModeSettings> settings) : settings_(settings) {}

  bool are_set() const { return settings_.has_value(); }

  // Inside the gate, before a submission: the GPU is locked, if it was not.
  void entered(std::uint32_t slot, base::TimePoint now);
  // After one. True: the caller waits for its stream now, outside the gate, and says synchronised.
  bool wants_synchronisation(std::uint32_t slot, base::TimePoint now);
  // A thread has waited for the GPU. True: it is unlocked, and given up if another seat waits.
  bool synchronised(std::uint32_t slot, base::TimePoint now);
  // Whether the program would keep the GPU from others now.
  bool is_locked(std::uint32_t slot);

 private:
  struct Lock {
    bool is_locked = false;
    base::TimePoint since{};  // locked or synchronised, whichever was later
    std::uint32_t submissions = 0;
    std::uint32_t skipped = 0;
  };

  const std::optional<LockModeSettings> settings_;
  base::Mutex mutex_;
  std::array<Lock, base::kMaxSeatsPerTenant> locks_ GPUMUX_GUARDED_BY(mutex_);
};

}  // namespace gpumux::shim
