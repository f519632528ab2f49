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

struct QueueConfig {
  sched::jobs::QueueSettings core;
  JobPrivacy privacy = JobPrivacy::kOpen;
  base::Duration cancel_grace = std::chrono::seconds(10);     // from TERM to KILL
  base::Duration history = std::chrono::hours(24) * 90;       // how long jobs that are done are remembered
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
