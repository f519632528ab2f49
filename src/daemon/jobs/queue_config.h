// SPDX-License-Identifier: Apache-2.0
// The job queue's settings as people write them: [queue] in the configuration file, GPUMUX_QUEUE_... in the
// environment.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "sched/jobs/events.h"

namespace gpumux::daemon {

// What users see of others' jobs.
enum class JobPrivacy {
  kOpen,     // all but what is run, where, and what it prints
  kLimited,  // whose, what of GPUs, and where it stands: no names
  kOwn,      // nothing
};

// Two of the largest arrays, some 20 MB of the daemon's memory.
inline constexpr std::uint32_t kDefaultMaxQueued = 20'000;

struct QueueConfig {
  sched::jobs::QueueSettings core{
      .limits = {.queued = kDefaultMaxQueued, .priority_cap = 0}};  // who may change settings has no cap
  JobPrivacy privacy = JobPrivacy::kOpen;
  base::Duration cancel_grace = std::chrono::seconds(10);  // from TERM to KILL
  base::Duration history = std::chrono::hours(24) * 90;    // how long jobs that are done are remembered
  std::uint64_t max_bytes =
      256u << 20;  // documents and dependencies of one user's jobs that are not done; 0: any number
  std::uint64_t max_history = 100'000;  // jobs of one user that are done, and remembered; 0: any number
  base::Duration suspend_patience = std::chrono::minutes(2);  // how long getting a job's memory off its GPUs may take
};

struct QueueKey {
  std::string_view name;         // "default_mem"
  std::string_view environment;  // "GPUMUX_QUEUE_DEFAULT_MEM"
  std::string_view allowed;      // "a number of bytes with a unit, such as 20G, or whole"
  std::string_view meaning;      // one sentence
  base::Status (*parse)(QueueConfig& config, std::string_view text) = nullptr;
};

// In the order in which documents show them.
std::span<const QueueKey> queue_keys();

// Sets `name` to what `text` says. The error names the key, the value and what is allowed.
base::Status set_queue_key(QueueConfig& config, std::string_view name, std::string_view text);

std::string_view to_string(JobPrivacy privacy);

}  // namespace gpumux::daemon
