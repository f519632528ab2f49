// SPDX-License-Identifier: Apache-2.0
// Where the daemon's sockets are.
//
//   system daemon   /run/gpumux
//   user's daemon   $XDG_RUNTIME_DIR/gpumux, else /tmp/gpumux-UID (mode 0700, owned by the user, not a link: checked)
//   GPUMUX_RUNTIME_DIR overrides both.
//
// Two sockets are in it: kTenantSocket for tenants' libraries, kApiSocket for the HTTP API.
#pragma once

#include <string>

#include "base/result.h"

namespace gpumux::os {

inline constexpr char kSystemRuntimeDir[] = "/run/gpumux";
inline constexpr char kTenantSocket[] = "tenants.sock";
inline constexpr char kApiSocket[] = "api.sock";

// The directory in which a client looks for a daemon: GPUMUX_RUNTIME_DIR if set (and the process is not setuid), else
// the system's if a daemon's socket is there, else the user's. The user's directory is checked, never created: kDenied,
// with what to do, when somebody else owns it.
base::Result<std::string> find_runtime_dir();

// The user's own directory, created with mode 0700 where it is missing. kDenied when it is not safely the user's.
base::Result<std::string> make_user_runtime_dir();

}  // namespace gpumux::os
