// SPDX-License-Identifier: Apache-2.0
// Becoming the job's user, for good, and showing that it is for good.
#pragma once

#include "base/result.h"
#include "wire/runner_records.h"

namespace gpumux::runners {

// For a child that becomes the job, or holds its terminal. It goes from root to the spec's user, groups and no
// capabilities, and with no_new_privs if the spec says so. Afterwards it has tried to get back and failed. On an error
// the caller must end itself at once, whichever user it has. A caller that is not root must be the spec's user already,
// with no group that the spec does not have. It stays as it is. A job of root's stays root.
base::Status become_user(const wire::RunnerSpec& spec);

// The rights that the supervisor keeps once the job runs. It may signal any process. With `needs_proc` it also sees all
// processes in /proc, which matters where /proc hides other users'. No others: the files that it writes are root's
// anyway. Without root this does nothing.
base::Status keep_only_signalling(bool needs_proc);

}  // namespace gpumux::runners
