// SPDX-License-Identifier: Apache-2.0
// What every store refuses before it begins to write, and what all of them know of dependencies.
#pragma once

#include "jobs/store/job_store.h"

namespace gpumux::store {

Status check(const std::vector<Change>& changes);

// The fate of a dependency on a job with this state and outcome; kPending: the job is not done.
jobs::Dependency::Fate fate_of(jobs::Dependency::Need need, jobs::JobState state, jobs::Outcome outcome);

// Whether a restarted daemon will ask what became of this dependency of the job.
bool is_needed(const StoredJob& job, const jobs::Dependency& dependency);

}  // namespace gpumux::store
