// SPDX-License-Identifier: Apache-2.0
// The changes that the store refuses before it begins to write.
#pragma once

#include "jobs/store/job_store.h"

namespace gpumux::jobs::store {

Status check(const std::vector<Change>& changes);

}  // namespace gpumux::jobs::store
