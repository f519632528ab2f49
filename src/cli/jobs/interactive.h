// SPDX-License-Identifier: Apache-2.0
// From an interactive job's id to its end, on this terminal: waiting for its turn, its terminal, its exit status.
#pragma once

#include <string>

#include "cli/jobs/attached_terminal.h"
#include "cli/jobs/find_client.h"

namespace gpumux::cli {

// The exit status of a command whose user has left the job, which goes on: as if Ctrl+C had ended the command.
inline constexpr int kExitLeft = 130;

// Shows the place in the queue while the job waits, then attaches to it, over restarts of the daemon. The exit status
// of the calling command: the job's; kExitLeft. Dies by the signal where one ends it.
int attach_to_job(const char* command, const std::string& id, const FindClient& connect,
                  const DetachKeys& detach_keys = {});

}  // namespace gpumux::cli
