// SPDX-License-Identifier: Apache-2.0
#include "jobs/service/queue_config.h"

namespace gpumux::jobs {

QueueSettings core_settings(const settings::QueueSettings& queue) {
  return {.order = queue.order,
          .half_life = queue.half_life,
          .oversubscribe = queue.oversubscribe,
          .default_memory = queue.default_mem.value_or(0),
          .max_time = queue.max_job_time.is_unlimited() ? kNoLimit : queue.max_job_time.value(),
          .preempt = queue.preempt,
          .limits = {.running = queue.max_running,
                     .queued = queue.max_queued,
                     .gpus = queue.max_gpus,
                     .priority_cap = queue.priority_cap}};
}

}  // namespace gpumux::jobs
