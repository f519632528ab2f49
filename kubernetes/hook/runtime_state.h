// SPDX-License-Identifier: Apache-2.0
// The state that a container runtime tells its hooks, as the OCI runtime specification has it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpumux::kubernetes {

// The largest state that is read. Kubernetes bounds a pod's annotations to 256 KiB, and JSON can write a byte as six.
inline constexpr std::size_t kMaxStateBytes = 2u << 20;
// The largest config.json that is read. It has annotations, the environment and all mounts.
inline constexpr std::size_t kMaxConfigBytes = 8u << 20;

struct State {
  std::string id;      // the container's; empty if the runtime does not say it
  std::string bundle;  // the folder of the container's bundle, an absolute path
  pid_t pid = 0;       // of the container's first process, as the runtime sees it; 0: the runtime says none
  // As Kubernetes' runtimes annotate their containers; empty: they do not. For people: a pod's author may have a say.
  std::string pod_namespace{};
  std::string pod{};
  std::string name{};  // the container's, within its pod
};

// `text`: what the hook reads from standard input. kInvalid: it is no such state.
base::Result<State> parse_state(std::string_view text);

struct Root {
  std::string path;           // on the host, absolute
  bool is_read_only = false;  // the runtime is to make it so
};

// `config`: the bundle's config.json. kInvalid: it has no root folder.
base::Result<Root> root_of(std::string_view config, const std::string& bundle);

}  // namespace gpumux::kubernetes
