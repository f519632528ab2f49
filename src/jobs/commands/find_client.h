// SPDX-License-Identifier: Apache-2.0
// Which daemon a command about jobs talks to.
//
// A private daemon ends when nobody has used it for a while, and its jobs stay where they are kept. So who asks about
// jobs starts it again, as who hands one in does; but not where there has never been a job.
#pragma once

#include <functional>

#include "api_client/client.h"
#include "base/result.h"

namespace gpumux::cli {

using FindClient = std::function<base::Result<api_client::Client>()>;

// The daemon that jobs are handed in to: as `gpumux run` finds or starts it.
base::Result<api_client::Client> find_or_start_client();

// The daemon that has the jobs: the one that `options` names, or that is found; else this user's, started again where
// it has had jobs. kUnavailable: there is none, with what to do.
base::Result<api_client::Client> find_jobs(const api_client::Options& options);

// For who asks again and again: the daemon that answered at first, as long as it does, then as find_jobs. One that was
// named, or is the system's, is waited for instead: nobody else has its jobs.
FindClient find_jobs_again(const api_client::Client& first, const api_client::Options& options = {});

}  // namespace gpumux::cli
