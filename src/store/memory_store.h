// SPDX-License-Identifier: Apache-2.0
// A job store that forgets everything when it ends: for tests, for simulations, and for a user's own daemon that is to
// leave no files. Everything else is as job_store.h promises.
#pragma once

#include <memory>

#include "store/job_store.h"

namespace gpumux::store {

std::unique_ptr<JobStore> make_memory_store();

}  // namespace gpumux::store
