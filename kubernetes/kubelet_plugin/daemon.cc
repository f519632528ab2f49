// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/kubelet_plugin/daemon.h"

#include "api_client/client.h"

namespace gpumux::kubernetes {

DaemonSays ask_daemon(const std::string& runtime_dir) {
  const auto client = api_client::Client::connect({runtime_dir, kAnswerLimit});
  if (!client) return {tl::unexpected(client.error()), {}};
  const auto info = client->daemon_info();
  if (!info) return {tl::unexpected(info.error()), {}};
  return {client->snapshot(), info->driver};
}

}  // namespace gpumux::kubernetes
