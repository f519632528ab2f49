// SPDX-License-Identifier: Apache-2.0
// A job, as far as deciding when and where it runs needs to know it. Its command, its rights and its environment are
// the daemon's and the runner's: the core never sees them.
//
//                 hold           Start               StartConfirmed
//      held <------------- queued ------> starting ------------------> running <-------------+
//        |    ------------>   |  ^           |  | StartFailed             |  ^                |
//        |      release       |  +-----------+--+ (to be tried again)     |  | SuspendRefused | Resumed
//        |                    |                                   Suspend |  |                |
//        |                    |                                           v  |     Suspended  |
//        |                    |                                       suspending ------> suspended ---> resuming
//        |                    |                                           |                  |   Resume     |
//        |                    | cancel, dependency failed                 | cancel, limit    |              |
//        |                    |                                           v                  |              |
//        +--------------------+-------------------> done <----------- ending <---------------+--------------+
//                                                           Ended
//
// Ended may come in every state from starting on. A job that is to run again goes back to queued.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "jobs/core/gpu_set.h"

namespace gpumux::jobs {

using base::Duration;
using base::GpuIndex;
using base::TimePoint;

// Numbered by the daemon from 1, in order of submission; never used again. An array has the id of its first element.
using JobId = base::Id<struct JobIdTag, std::uint64_t>;

inline constexpr JobId kNoJob{0};
inline constexpr Duration kNoLimit{0};  // of time

// The numbers are stored: they never change their meaning.
enum class JobState : std::uint8_t {
  kQueued = 0,
  kHeld = 1,  // by its owner or an administrator: not considered
  kStarting = 2,
  kRunning = 3,
  kSuspending = 4,
  kSuspended = 5,  // waits for its turn again, frozen, its GPU memory in host memory
  kResuming = 6,
  kEnding = 7,  // told to end
  kDone = 8,
};

// A run of it has been asked for, and is not over.
constexpr bool has_started(JobState state) { return state != JobState::kQueued && state != JobState::kHeld; }

// How a job that is done came to its end. Stored, too.
enum class Outcome : std::uint8_t {
  kNone = 0,  // not done yet
  kOk = 1,    // exit status 0
  kFailed = 2,
  kCancelled = 3,
  kTimedOut = 4,          // ended at its time limit
  kLost = 5,              // not known: its machine or its supervisor died
  kDependencyFailed = 6,  // the job that it comes after did not end as it needed
};

inline constexpr std::array kOutcomes{Outcome::kOk,       Outcome::kFailed, Outcome::kCancelled,
                                      Outcome::kTimedOut, Outcome::kLost,   Outcome::kDependencyFailed};

enum class OnLimit : std::uint8_t { kSuspend = 0, kCancel = 1 };

// A job, or an array, that has to be done before this job.
struct Dependency {
  enum class Need : std::uint8_t { kOk = 0 /* ended with status 0 */, kAny = 1 /* ended */ };
  // Its fate when the core was told of the dependency: the core remembers only jobs that are not done yet.
  enum class Fate : std::uint8_t { kPending = 0, kMet = 1, kBroken = 2 };

  JobId on;
  bool whole_array = false;  // `on` is an array: all its elements
  Need need = Need::kOk;
  Fate fate = Fate::kPending;
  bool operator==(const Dependency&) const = default;
};

// The GPUs, memory and time that a job asks for. They may be changed while the job waits.
struct Request {
  GpuSet gpus;                  // these GPUs, or
  std::uint32_t gpu_count = 1;  // any GPUs, this many; counts only where `gpus` is empty
  std::uint64_t memory = 0;     // bytes on each GPU; 0: as the settings say
  Duration time_limit = kNoLimit;
  bool operator==(const Request&) const = default;
};

// Whether `limit` lets a job run on for longer than `other`.
constexpr bool is_longer(Duration limit, Duration other) {
  return other != kNoLimit && (limit == kNoLimit || limit > other);
}

struct JobSpec : Request {
  JobId id;
  std::uint32_t uid = 0;
  std::int32_t priority = 0;  // higher first, among jobs of its user
  std::int32_t capped = 0;    // and against jobs of others: the same, or the cap
  OnLimit on_limit = OnLimit::kSuspend;
  bool exclusive = false;  // no other job runs on its GPUs
  bool requeue = false;    // runs once more if it is lost
  bool held = false;
  // Its place among equals: the smaller one goes first. 0: behind all (the core gives it a number).
  std::uint64_t order = 0;
  TimePoint begin{};  // it does not start before
  JobId array = kNoJob;
  std::uint32_t array_index = 0;
  std::uint32_t array_limit = 0;  // elements that may run at once; 0: any number
  std::vector<Dependency> after;

  std::uint32_t wanted_gpus() const { return gpus.empty() ? gpu_count : gpus.size(); }
  const Request& request() const { return *this; }
  void ask(const Request& other) { static_cast<Request&>(*this) = other; }
  bool operator==(const JobSpec&) const = default;
};

// As in the API: "queued", "running", ...; "ok", "timed out", ...
std::string_view to_string(JobState state);
std::string_view to_string(Outcome outcome);

}  // namespace gpumux::jobs
