// SPDX-License-Identifier: Apache-2.0
// Where the daemon's sockets are.
//
//   system daemon   /run/gpumux
//   user's daemon   $XDG_RUNTIME_DIR/gpumux, else /tmp/gpumux-UID (mode 0700, owned by the user, not a link: checked)
//   GPUMUX_RUNTIME_DIR overrides both.
//
// A login has XDG_RUNTIME_DIR, and cron has not, so a user has two places. A process that finds no daemon in its own
// place looks into the other one, as far as it can be found: /tmp/gpumux-UID, and where a link in either leads.
//
// Its content, as paths within it:
//
//   tenants/tenants.sock   for tenants' libraries. Its folder is what containers are given; it holds nothing else.
//   api.sock               the HTTP API: of the host
//   root/api.sock          the same, for root: only root can enter the folder (the system's daemon has it)
//   root/containers        records of containers (containers/record.h)
//   lock                   the daemon that serves the directory has locked it
//   mps                    MPS servers of users (daemon/mps)
//   known_tenants          which tenants the next daemon waits for (daemon/peers/known_tenants.h)
//   elsewhere              a link to the folder of the user's daemon, which is not here
#pragma once

#include <string>

#include "base/result.h"

namespace gpumux::os {

inline constexpr char kSystemRuntimeDir[] = "/run/gpumux";
inline constexpr char kTenantDir[] = "tenants";
inline constexpr char kTenantSocket[] = "tenants/tenants.sock";
inline constexpr char kApiSocket[] = "api.sock";
// Of the MPS servers that the daemon has started. The file in it invites programs that do not ask for MPS themselves.
inline constexpr char kMpsDir[] = "mps";
inline constexpr char kMpsInvitation[] = "invited";
// All that users may write in the directory. The system daemon's is a file system of its own, of a bounded size
// (packaging/systemd/run-gpumux-mps-users.mount).
inline constexpr char kMpsUsersDir[] = "mps/users";
inline constexpr char kRootDir[] = "root";
inline constexpr char kRootApiSocket[] = "root/api.sock";
inline constexpr char kContainersDir[] = "root/containers";
inline constexpr char kRuntimeLock[] = "lock";
// Where a mover listens for its next daemon.
inline constexpr char kMoverSocket[] = "mover.sock";
// Where host memory is attached that outlives its daemon (setting keep_host_memory).
inline constexpr char kHostMemoryDir[] = "memory";
inline constexpr char kKnownTenants[] = "known_tenants";
inline constexpr char kElsewhere[] = "elsewhere";

// Where root's daemons lock GPUs, whatever their runtime directory.
inline constexpr char kGpuLockDir[] = "/run/gpumux-locks";

// The directory in which a client looks for a daemon: GPUMUX_RUNTIME_DIR if set (and the process is not setuid). Else
// the system's if a daemon's socket is there, else the user's: that of the two which has a daemon's socket, or else the
// first. The user's directory is checked, never created: kDenied, with the remedy, if another user owns it.
base::Result<std::string> find_runtime_dir();

// Whether GPUMUX_RUNTIME_DIR names a folder that is not there. `gpumux run` names a place where a daemon is, and
// daemons leave their folder behind. So the process cannot see it: it is in a sandbox.
bool is_out_of_sight();

// The user's first place, and the one for processes without XDG_RUNTIME_DIR. They may be the same, and missing.
std::string user_runtime_dir();
std::string user_tmp_dir();

// Leaves the link `elsewhere` in the user's `folder`, in place of the one that is there.
base::Status leave_link(const std::string& folder, const std::string& runtime_dir);
// Where it leads. Empty: nowhere, or to a folder that is neither the system's nor safely the user's.
std::string linked_dir(const std::string& folder);

// Makes `dir` if it is missing, and gives it `mode`. kDenied: it is no directory, or another user's.
base::Status make_own_dir(const std::string& dir, unsigned mode);

// The API's socket for this process: root's own where there is one.
std::string api_socket(const std::string& runtime_dir);

// Whether it has the tenants' socket and no API: a container that was given kTenantDir.
bool is_containers_view(const std::string& runtime_dir);

// The user's own directory, created with mode 0700 where it is missing. kDenied when it is not safely the user's.
base::Result<std::string> make_user_runtime_dir();

}  // namespace gpumux::os
