// SPDX-License-Identifier: Apache-2.0
// The file that a job's output goes to. Always called with the rights of the job's user and no others. So no path leads
// to a file that the user could not reach. One danger remains: another user's symbolic link, in a folder that several
// may write to, would turn the user's rights against that user. Such a link is refused.
#pragma once

#include <string>

#include "base/result.h"
#include "os/file_descriptor.h"
#include "wire/runner_records.h"

namespace gpumux::runners {

// Opens the log for appending, and makes it where it is missing, as wire::LogOpening says. Appending always: two
// writers do not overwrite each other, and the log may be emptied between two writes. Never waits for a reader of a
// FIFO.
base::Result<os::FileDescriptor> open_job_log(const std::string& path, wire::LogOpening opening);

}  // namespace gpumux::runners
