// SPDX-License-Identifier: Apache-2.0
// Which processes are open to each other anyway: those of one user, in the same namespaces, under the same label of the
// system's security module. So processes of two containers are not. Data that one of them has left in host memory need
// not be hidden from another.
#pragma once

#include <sys/types.h>

#include <string>

namespace gpumux::server {

// Two processes with the same, not empty, text are in one domain. Empty: not known, so the domain of no other process.
// Reads /proc, for microseconds.
std::string trust_domain(pid_t pid, uid_t uid);

// Whether a process is where the daemon is, and not in a container (or in another one). It is if it has the daemon's
// user and pid namespaces, and the root directory of the daemon or of process 1. So a daemon in a pod with the host's
// process ids takes the host's processes for what they are. A process whose main thread has ended is not. Reads /proc,
// for microseconds.
bool is_where_we_are(pid_t pid);

}  // namespace gpumux::server
