// SPDX-License-Identifier: Apache-2.0
// The file that a job's output goes to. Always called with the job's user's rights and nothing more: whatever stands in
// the path, no file is reached that the user could not reach. One danger remains: another user's symbolic link, in a
// folder that several may write to, would turn the user's rights against that user. Such a link is refused.
#pragma once

#include <string>

#include "base/result.h"
#include "os/file_descriptor.h"
#include "wire/runner_records.h"

namespace gpumux::runner {

// Opens the log for appending, and makes it where it is missing, as wire::LogOpening says. Appending always: two who
// write to it do not overwrite each other, and it may be emptied meanwhile. Never waits for a reader of a FIFO.
base::Result<os::FileDescriptor> open_job_log(const std::string& path, wire::LogOpening opening);

}  // namespace gpumux::runner
