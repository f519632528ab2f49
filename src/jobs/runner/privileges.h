// SPDX-License-Identifier: Apache-2.0
// Becoming the job's user, for good, and showing that it is for good.
#pragma once

#include "base/result.h"
#include "wire/runner_records.h"

namespace gpumux::runner {

// In a child that will be the job, or hold its terminal: from root to the spec's user, groups and no capabilities, and
// with no_new_privs if the spec says so.
// Afterwards it has tried to get back and failed; an error means that the caller must end itself at once, whoever it
// is. A caller who is not root must be the spec's user already, with no group that the spec
// does not have, and stays as it is. A job of root's stays root.
base::Status become_user(const wire::RunnerSpec& spec);

// The rights that the supervisor keeps once the job runs: to signal any process, and where it has to look for the job's
// processes in /proc, to see them there (`needs_proc`; matters where /proc hides other users'). Nothing else: what it
// writes is root's anyway. Without root this does nothing.
base::Status keep_only_signalling(bool needs_proc);

}  // namespace gpumux::runner
