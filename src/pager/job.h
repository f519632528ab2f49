// SPDX-License-Identifier: Apache-2.0
// What evictions and restorations have in common: they are stepped.
#pragma once

#include <cstdint>

#include "cuda/driver.gen.h"

namespace gpumux::pager {

enum class JobState : std::uint8_t {
  kRunning,    // step again at once
  kWaiting,    // step again when the GPU has had time to copy (kPollInterval)
  kStarved,    // the same, but something is missing: host memory (eviction) or room on the GPU (restoration)
  kDone,       // over: all that was asked for
  kCancelled,  // over: cancelled, or the seat is no longer drained; what had been begun was finished
  kFailed,     // over: the driver refused something; every chunk is where it was, or where it was to go
};

inline bool is_over(JobState state) { return state >= JobState::kDone; }

// Copies that are under way at once. Two keep the bus busy while one is unmapped; four forgive a late step.
inline constexpr std::uint32_t kCopiesInFlight = 4;

// Chunks that a restoration has made and not yet filled, for memory that another process has just freed is still being
// scrubbed when it is made, by the engine that copies in (experiment 004).
inline constexpr std::uint32_t kRestoredInFlight = 8;

// Chunks that one step unmaps or maps at most, before the caller may look whether to go on: about 1 ms.
inline constexpr std::uint32_t kChunksPerStep = 8;

// A waiting job wants to be stepped again after so many microseconds: a sixth of what copying a chunk takes.
inline constexpr std::uint32_t kPollMicroseconds = 200;

// The engine's context could not be made current. Is it gone, and with it all that was under way? Else copies may still
// run, and the job must not let go of their memory: it is stepped again. Counts, for no error may be waited out for
// ever.
inline bool engine_lost(cuda::CUresult error, std::uint32_t* failures) {
  constexpr std::uint32_t kMostFailures = 1000;
  return error == cuda::CUDA_ERROR_INVALID_CONTEXT || error == cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED ||
         error == cuda::CUDA_ERROR_DEINITIALIZED || ++*failures > kMostFailures;
}

}  // namespace gpumux::pager
