// SPDX-License-Identifier: Apache-2.0
// The node's GPUs by dynamic resource allocation: a slice at the API server, and a driver that the kubelet calls.
//
// Threads: the caller's asks the daemon and waits for signals. The slice, the driver and the work at the start have one
// each. gRPC has its own.
#pragma once

#include <csignal>

#include "base/result.h"
#include "kubernetes/kubelet_plugin/options.h"

namespace gpumux::kubernetes {

// Until one of `signals` comes, which are blocked in all threads. An error: it cannot go on.
base::Status serve_dra(const PluginOptions& options, const sigset_t& signals);

// Whether the driver of this node answers.
base::Status check_dra(const PluginOptions& options);

}  // namespace gpumux::kubernetes
