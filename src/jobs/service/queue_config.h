// SPDX-License-Identifier: Apache-2.0
// The job queue's settings, as the job core takes them.
#pragma once

#include "jobs/core/events.h"
#include "settings/structs.gen.h"

namespace gpumux::jobs {

QueueSettings core_settings(const settings::QueueSettings& queue);

}  // namespace gpumux::jobs
