// SPDX-License-Identifier: Apache-2.0
// Which daemon a command about jobs talks to.
//
// A private daemon ends when no client has used it for a while, and its jobs stay where they are kept. So a command
// that asks about jobs starts it again, like one that submits a job. Exception: there has never been a job.
#pragma once

#include <functional>

#include "api_client/client.h"
#include "base/result.h"

namespace gpumux::cli {

using FindClient = std::function<base::Result<api_client::Client>()>;

// The daemon that jobs are handed in to: as `gpumux run` finds or starts it.
base::Result<api_client::Client> find_or_start_client();

// The daemon that has the jobs: the one that `options` names, or that is found. Otherwise this user's, started again
// where it has had jobs. kUnavailable: there is none, with the remedy.
base::Result<api_client::Client> find_jobs(const api_client::Options& options);

// For a command that asks repeatedly: the daemon that answered at first, as long as it does, then as find_jobs. A
// daemon that was named, or is the system's, is waited for instead: no other daemon has its jobs.
FindClient find_jobs_again(const api_client::Client& first, const api_client::Options& options = {});

}  // namespace gpumux::cli
