// SPDX-License-Identifier: Apache-2.0
// The job core: which jobs run, where, when; docs/jobs.md has its rules.
//
// Pure: no clock, no I/O, no threads, no randomness, no floating point, no iteration over unordered containers. Owned
// by one thread. It knows the jobs that are not done; done jobs are only in the store.
//
// After every event (checked by check_invariants):
//   1. When a job was started, the requests of the jobs on each of its GPUs and the foreign use were within that GPU's
//      promisable memory. An exclusive job occupies its GPUs alone.
//   2. A job is started once per attempt, and there is another attempt only after that one has ended or not begun.
//   3. A suspended job is resumed on the GPUs that it had.
//   4. No job waits that could start now, unless its start would delay the first in order that cannot.
//   5. No user has more than the user's limits, and no array more than its limit. Exception: jobs that ran when a limit
//      was lowered.
//
// Cost: jobs of one user with the same wishes are one queue, and a look visits only its first. A look visits at most
// kBackfillDepth jobs that cannot start. So the cost of an event grows with the logarithm of the number of jobs, and
// with the numbers of GPUs, running jobs and users. An event never walks through the queue.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "jobs/core/events.h"
#include "jobs/core/obstacle.h"

namespace gpumux::jobs {

// A look gives up after it has met this many jobs that cannot start, one for each user and kind of request. A few times
// the users of a large machine, times the kinds of requests of each.
inline constexpr std::uint32_t kBackfillDepth = 256;

// The core works out an expected start for this many waiting jobs, the first in order. A bound is needed because it
// does so on the daemon's loop; users plan by the first jobs.
inline constexpr std::size_t kPlannedJobs = 32;

// Why a submission, or a change of a job, is not taken at all.
enum class Refusal : std::uint8_t {
  kExists,         // a job of this id is there
  kNoGpus,         // asks for none
  kUnknownGpu,     // asks for one that this machine does not have
  kTooManyGpus,    // more than this machine has
  kTooMuchMemory,  // more than any GPU has (or fewer GPUs have it than are wanted)
  kQueueLimit,     // the user has as many jobs waiting as allowed
  kGpuLimit,       // more GPUs than the user may ever have
  kUnknownJob,     // comes after a job that is not there
  kStarted,        // only the time limit of a job that has started can change
  kLonger,         // and only an administrator lengthens it: other jobs may have started because of the shorter one
};

enum class WaitReason : std::uint8_t {
  kNone,  // does not wait
  kHeld,
  kDependency,
  kBegin,       // it is to begin later
  kGpuMemory,   // is next on its GPUs, and there is no room yet
  kPriority,    // others go first that could take its GPUs
  kUserLimit,   // its user has as much running as allowed
  kArrayLimit,  // as many elements of its array run as may
  kDrained,     // a GPU that it needs takes no jobs
  kRetry,       // could not be started, and will be tried again in a moment
  kPaused,      // nothing is started at present
};

struct JobStanding {
  JobState state = JobState::kQueued;
  WaitReason reason = WaitReason::kNone;
  std::uint64_t place = 0;    // 1: next; 0: does not wait, or cannot be told (held, dependency, paused)
  std::int32_t priority = 0;  // as given
  std::int32_t capped = 0;    // as it counts against others' jobs
  std::uint32_t attempt = 0;
  GpuSet gpus;                        // that it has, or will be resumed on
  std::optional<TimePoint> limit_at;  // of a running one: when its time is over
  bool suspend_refused = false;       // its time is over or an urgent job waits, and it could not be suspended
};

// GPUs that are kept for the first job in order that cannot start yet; kNoJob: there is none.
struct Reservation {
  JobId job;
  GpuSet gpus;
  TimePoint start = TimePoint::max();  // when it can start at the latest, as far as time limits tell
};

struct UserUsage {
  std::uint32_t uid = 0;
  std::uint64_t gpu_microseconds = 0;  // decayed until now
  std::uint32_t running = 0, queued = 0, gpus = 0;
};

struct GpuRoom {
  std::uint64_t capacity = 0, promised = 0 /* to jobs */, foreign = 0;
  bool present = false, drained = false, sick = false;
  std::vector<JobId> jobs;  // that occupy it, in the order in which they came
};

// How many jobs are in each state, by its number.
using JobCounts = std::array<std::uint64_t, static_cast<std::size_t>(JobState::kDone) + 1>;

class JobCore {
 public:
  JobCore();
  ~JobCore();
  JobCore(const JobCore&) = delete;
  JobCore& operator=(const JobCore&) = delete;

  // Whether Submitted{spec} would be refused. To be asked first: a Submitted that is refused changes nothing.
  std::optional<Refusal> refusal(const JobSpec& spec) const;
  // The same for a RequestAsked. None for a job that is not there: it changes nothing.
  std::optional<Refusal> refusal(const RequestAsked& asked) const;

  // None: not there, or done.
  std::optional<Request> request(JobId job) const;

  // Applies one event and appends its commands, in order. `now` never goes backwards. Events that make no sense (an
  // unknown job, another attempt, a second time) change nothing.
  void apply(TimePoint now, const Event& event, std::vector<Command>& commands);

  // When TimePassed is wanted next; none: only other events can change anything.
  std::optional<TimePoint> next_deadline() const;

  // O(log n), and for the place O(users + kinds of requests of its user). None: not there, or done.
  std::optional<JobStanding> standing(JobId job) const;

  // The thing that keeps it from starting, with its numbers: `standing` as it is now. Costs a look at its GPUs.
  Obstacle obstacle(JobId job, const JobStanding& standing) const;

  // When jobs that wait can be expected to start, if those that run and those that go first use their whole time
  // limits. Of the first kPlannedJobs in order those of which time limits tell. Costs about 0.1 ms where many wait.
  std::map<JobId, TimePoint> expected_starts() const;

  // Of all users that have or had any, by uid: to be stored now and then, and told again after a restart.
  std::vector<UserUsage> usage(TimePoint now) const;

  std::optional<GpuRoom> room(GpuIndex gpu) const;
  const Reservation& reservation() const;
  const JobCounts& counts() const;

  // Recounts and compares everything: empty if all is well, otherwise the fault. For tests: O(n log n).
  std::string check_invariants() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

// As in the API: "gpu_memory"; empty: it does not wait.
std::string_view to_string(WaitReason reason);

}  // namespace gpumux::jobs
