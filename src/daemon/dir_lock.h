// SPDX-License-Identifier: Apache-2.0
// One daemon serves a runtime directory: a locked file in it, whose lock ends with its owner, however that ends.
//
// A killed daemon keeps the lock while a thread of it waits in the kernel, for the GPU's driver say. SIGKILL does not
// end such a wait. Such a daemon serves nothing. The next one waits for it, and then ends with a status that has the
// service manager try again. It also waits for a daemon that has removed its sockets and still writes down what it
// knows. No tenant can cause this (daemon/peers/doorkeeper.h).
#pragma once

#include <chrono>
#include <string>

#include "daemon/daemon.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

// Longer than a fifth of systemd's StartLimitIntervalSec (10 s, five starts): so it tries again for ever.
inline constexpr std::chrono::seconds kEndingPatience{3};

// Makes the directory if it is not there. kExitOwned: another daemon lives. kExitFailed: one that was killed has not
// ended within kEndingPatience.
tl::expected<os::FileDescriptor, DaemonError> lock_runtime_dir(const std::string& dir, bool is_private);

// Whether the directory's lock is still this file, and was neither removed nor replaced.
bool is_lock_of(const std::string& dir, int lock);
// Locks a directory that is there, without waiting. kExists: another daemon has it.
base::Result<os::FileDescriptor> try_lock_runtime_dir(const std::string& dir);

}  // namespace gpumux::daemon
