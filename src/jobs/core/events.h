// SPDX-License-Identifier: Apache-2.0
// The job core's whole interface, as plain values: the events that it is told, and the commands that it gives.
//
// The same events at the same times give the same commands, byte for byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "jobs/core/job.h"
#include "settings/structs.gen.h"

namespace gpumux::jobs {

using settings::kUnlimited;
using settings::Order;

struct UserLimits {
  settings::Limit<std::uint32_t> running;      // jobs that have been started and are not suspended
  settings::Limit<std::uint32_t> queued;       // jobs that wait, held and suspended ones included
  settings::Limit<std::uint32_t> gpus;         // GPUs of running jobs in all, counted once for each job
  settings::Limit<std::int32_t> priority_cap;  // against others' jobs a higher one counts as this from then on
  bool operator==(const UserLimits&) const = default;
};

struct QueueSettings {
  Order order = Order::kFair;
  Duration half_life = std::chrono::hours(24);  // GPU time that was used so long ago counts half (kFair)
  std::uint32_t oversubscribe = 1000;           // thousandths of a GPU's capacity that may be promised; at least 1000
  std::uint64_t default_memory = 0;             // bytes per GPU of a job that does not say; 0: the whole GPU
  Duration max_time = kNoLimit;                 // for every job; the smaller of this and its own counts
  bool preempt = false;                         // a higher priority suspends lower ones
  UserLimits limits;                            // of users who have none of their own
  bool operator==(const QueueSettings&) const = default;
};

// ---- events -----------------------------------------------------------------------------------------------

// clang-format off
struct GpuAdded { GpuIndex gpu; std::uint64_t capacity = 0; };  // or its capacity has changed
// Nothing starts there until it comes back. The runners end the jobs there.
struct GpuRemoved { GpuIndex gpu; };
// By an administrator: running jobs go on, and nothing else starts or resumes there.
struct GpuDrained { GpuIndex gpu; bool is_drained = true; };
struct GpuHealth { GpuIndex gpu; bool is_sick = false; };  // a sick one takes nothing new, as a drained one
struct ForeignUse { GpuIndex gpu; std::uint64_t bytes = 0; };  // memory that programs other than jobs use there
struct SettingsChanged { QueueSettings settings; };
struct UserLimitsChanged { std::uint32_t uid = 0; std::optional<UserLimits> limits; };  // none: the settings' again
// While it is held nothing starts, resumes or is suspended. A new core is held until it has been told of all GPUs and
// of all earlier jobs.
struct SchedulingHeld { bool is_held = true; };

// `spec.capped` is the core's to say: `by_admin` means without a cap.
struct Submitted { JobSpec spec; bool by_admin = false; };
// A job that is not done, after a restart. `state`: as the store and its supervisor tell. `gpus`: those that it was
// given. `ran`: the part of its time limit that has passed.
// clang-format on
struct Restored {
  JobSpec spec;
  JobState state = JobState::kQueued;
  std::uint32_t attempt = 0;
  GpuSet gpus;
  Duration ran{};
  Outcome outcome = Outcome::kNone;  // of kEnding, as it was recorded
};
// clang-format off
// As usage() told, decayed until now.
struct UsageRestored { std::uint32_t uid = 0; std::uint64_t gpu_microseconds = 0; };
struct Withdrawn { JobId job; };  // it could not be stored: it never was. Only before its Start has been carried out

struct CancelAsked { JobId job; };
struct HoldAsked { JobId job; };  // changes nothing for one that runs
struct ReleaseAsked { JobId job; };
// By hand: it is suspended, and held until it is released.
struct SuspendAsked { JobId job; };
// Its run is ended, and it waits for another one.
struct RequeueAsked { JobId job; };
struct PriorityAsked { JobId job; std::int32_t priority = 0; bool by_admin = false; };
// `by_admin`: may lengthen the time limit of a job that has started.
struct RequestAsked { JobId job; Request request; bool by_admin = false; };

// From the runner. They name the attempt, and mean nothing about another one.
struct StartConfirmed { JobId job; std::uint32_t attempt = 0; };
// It was not the job's fault, and nothing of it has run: it is tried again.
struct StartFailed { JobId job; std::uint32_t attempt = 0; };
enum class End : std::uint8_t { kOk, kFailed, kLost };
struct Ended { JobId job; std::uint32_t attempt = 0; End end = End::kFailed; };
struct Suspended { JobId job; std::uint32_t attempt = 0; };
struct SuspendRefused { JobId job; std::uint32_t attempt = 0; };  // it runs on: host memory cannot take it, ...
struct Resumed { JobId job; std::uint32_t attempt = 0; };

struct TimePassed {};  // the deadline asked for has come (or any other moment)
// clang-format on

using Event = std::variant<GpuAdded, GpuRemoved, GpuDrained, GpuHealth, ForeignUse, SettingsChanged, UserLimitsChanged,
                           SchedulingHeld, Submitted, Restored, UsageRestored, Withdrawn, CancelAsked, HoldAsked,
                           ReleaseAsked, SuspendAsked, RequeueAsked, PriorityAsked, RequestAsked, StartConfirmed,
                           StartFailed, Ended, Suspended, SuspendRefused, Resumed, TimePassed>;

// ---- commands ---------------------------------------------------------------------------------------------

// The facts of a job that the queue stores durably before it carries out any later command of the list. So no job is
// started twice.
struct Record {
  JobId job;
  JobState state = JobState::kQueued;
  Outcome outcome = Outcome::kNone;  // of kDone; of kEnding: how it is going to end; kNone: it is to run again
  std::uint32_t attempt = 0;         // how often it has been started
  GpuSet gpus;                       // that it was given
  std::uint64_t order = 0;
  std::int32_t priority = 0;  // as given
  bool held = false;
  Duration ran{};           // of its time limit
  std::int32_t capped = 0;  // its priority as it counts against others' jobs
  // Of kDependencyFailed: the job, or the element of an array, that did not end as this job needs it. An array that was
  // done before this job came: its first element, whatever became of that. Not stored, and not a part of the logs.
  JobId broken_by = kNoJob;
  bool operator==(const Record&) const = default;
};
// clang-format off
// The job's request has changed. Stored as a Record is.
struct RecordRequest { JobId job; Request request; };
// Answered by StartConfirmed, StartFailed or Ended.
struct Start { JobId job; std::uint32_t attempt = 0; GpuSet gpus; };
enum class SuspendReason : std::uint8_t { kTimeLimit, kPriority, kAsked };
// Answered by Suspended, SuspendRefused or Ended.
struct Suspend { JobId job; std::uint32_t attempt = 0; SuspendReason reason{}; };
struct Resume { JobId job; std::uint32_t attempt = 0; GpuSet gpus; };  // answered by Resumed or Ended
enum class CancelReason : std::uint8_t { kAsked, kTimeLimit, kRequeue };
struct Cancel { JobId job; std::uint32_t attempt = 0; CancelReason reason{}; };  // answered by Ended
// clang-format on

using Command = std::variant<Record, RecordRequest, Start, Suspend, Resume, Cancel>;

// One line each, for logs that are compared byte for byte.
std::string to_string(const Event& event);
std::string to_string(const Command& command);

}  // namespace gpumux::jobs
