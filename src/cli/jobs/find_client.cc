// SPDX-License-Identifier: Apache-2.0
#include "cli/jobs/find_client.h"

#include <string>

#include "cli/run/private_daemon.h"
#include "os/runtime_dir.h"

namespace gpumux::cli {

using api_client::Client;
using base::Code;
using base::Result;

Result<Client> find_or_start_client() {
  auto daemon = find_or_start_daemon();
  if (!daemon) return tl::unexpected(std::move(daemon).error());
  return Client::connect({.runtime_dir = daemon->runtime_dir});
}

Result<Client> find_jobs(const api_client::Options& options) {
  auto client = Client::connect(options);
  if (client || client.error().code != Code::kUnavailable || !options.runtime_dir.empty()) return client;
  if (private_daemon_has_run()) return find_or_start_client();
  return client;
}

FindClient find_jobs_again(const Client& first, const api_client::Options& options) {
  const bool only_this = !options.runtime_dir.empty() || first.runtime_dir() == os::kSystemRuntimeDir;
  return [only_this, dir = first.runtime_dir()]() -> Result<Client> {
    auto client = Client::connect({.runtime_dir = dir});
    if (client || client.error().code != Code::kUnavailable || only_this) return client;
    return find_jobs({});
  };
}

}  // namespace gpumux::cli
