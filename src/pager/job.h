// SPDX-License-Identifier: Apache-2.0
// The common part of evictions and restorations: they are stepped.
#pragma once

#include <cstdint>

#include "cuda/driver.gen.h"
#include "pager/state.h"

namespace gpumux::pager {

enum class JobState : std::uint8_t {
  kRunning,    // step again at once
  kWaiting,    // step again when the GPU has had time to copy (kPollInterval)
  kStarved,    // the same, but something is missing: host memory (eviction) or room on the GPU (restoration)
  kDone,       // over: all that was asked for
  kCancelled,  // over: cancelled, or the seat is no longer drained; chunks that were begun were finished
  kFailed,     // over: the driver refused something; every chunk is where it was, or where it was to go
};

inline bool is_over(JobState state) { return state >= JobState::kDone; }

// Chunks that a restoration has made and not yet filled. The GPU's engine that copies in also scrubs memory that
// another process has just freed (experiment 004), so new chunks are made ahead. How many is a guess: a measurement of
// eight instead of four showed no sure difference.
inline constexpr std::uint32_t kRestoredInFlight = 8;

// Chunks that one step unmaps or maps at most, before the caller may look whether to go on: about 1 ms.
inline constexpr std::uint32_t kChunksPerStep = 8;

// A waiting job wants to be stepped again after this: a sixth of the time that copying a chunk takes.
inline constexpr std::uint32_t kPollMicroseconds = 200;

// How far a job is and how it ends. Owned and stepped by one thread.
class Job {
 public:
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Begins no further chunk. Step on until it is over.
  void cancel() { stop(JobState::kCancelled); }
  // Of kFailed: the first failure.
  cuda::CUresult error() const { return error_; }

 protected:
  // A job goes through these in order, and may skip some.
  enum class Stage : std::uint8_t {
    kPlanning,   // an eviction's plan is not made
    kMoving,     // chunks are on their way
    kStopping,   // no further chunk is begun; what is copied still goes
    kUndrained,  // the same for an eviction whose seat runs again: nothing may be unmapped
    kOver,
  };
  Job(State& state, Stage stage) : state_(state), stage_(stage) {}
  ~Job() { state_.end_job(); }

  void fail(cuda::CUresult error);
  void stop(JobState outcome, Stage stage = Stage::kStopping);
  JobState over(JobState outcome);
  bool is_stopping() const { return stage_ >= Stage::kStopping; }

  State& state_;
  Stage stage_;
  JobState outcome_ = JobState::kDone;  // from kStopping on

 private:
  cuda::CUresult error_ = cuda::CUDA_SUCCESS;
};

}  // namespace gpumux::pager
