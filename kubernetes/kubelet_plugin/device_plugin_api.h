// SPDX-License-Identifier: Apache-2.0
// The node's GPUs by the kubelet's device plugin API. One plugin serves the shares, and another one serves whole GPUs
// if there are any.
//
// Threads: the caller's asks the daemon and waits for signals; each plugin has one of its own, and gRPC's.
#pragma once

#include <csignal>

#include "base/result.h"
#include "kubernetes/kubelet_plugin/options.h"

namespace gpumux::kubernetes {

// Until one of `signals` comes, which are blocked in all threads. An error: it cannot go on.
base::Status serve_device_plugin(const PluginOptions& options, const sigset_t& signals);

// Whether the plugin of this node answers.
base::Status check_device_plugin(const PluginOptions& options);

}  // namespace gpumux::kubernetes
