// SPDX-License-Identifier: Apache-2.0
// Finding the daemon that a program will run under, or starting one for this user.
//
// A private daemon is an ordinary gpumuxd that serves one user's programs and ends by itself when no program uses it.
// If it fails or is killed, it starts again (--restart-on-failure). The first command that needs it starts it. Two
// commands at the same moment must not start two daemons, so a command starts one under a lock. The lock is flock on
// start.lock in the runtime directory, which the kernel drops however its owner dies. The command that gets the lock
// looks again before it starts anything.
//
// The daemon is not this process's child. It is forked twice, so a program that run_command execs into never finds a
// child that it did not start. It is in a session of its own, so Ctrl-C at the terminal does not reach it. It keeps no
// descriptor of ours: `gpumux run ... | tee` ends when the program does. It reports that it serves by writing to a pipe
// (--notify-fd). If the pipe ends without that, the daemon has failed. The lines in its log since its start are then
// the reason shown.
#pragma once

#include <string>

#include "api_client/client.h"
#include "base/clock.h"
#include "base/result.h"

namespace gpumux::cli {

// From exec to serving. The driver's first initialisation on a machine of 8 GPUs without persistence mode takes 10 s
// and more.
inline constexpr base::Duration kDaemonStartLimit = std::chrono::seconds(60);

// How long a system daemon whose socket is there but does not answer may take to come back: it is being restarted.
inline constexpr base::Duration kRestartPatience = std::chrono::seconds(5);

// How long a private daemon stays without use: two programs started one after the other meet the same one.
inline constexpr char kExitWhenUnused[] = "10s";

inline constexpr char kPrivateLog[] = "gpumuxd.log";
inline constexpr char kStartLock[] = "start.lock";

struct DaemonChoice {
  std::string runtime_dir;
  bool started = false;  // by this call
};

// gpumuxd, in this executable's folder or where packages put it; GPUMUX_DAEMON names another.
base::Result<std::string> find_daemon_binary();

// Whether a private daemon has ever kept jobs for this user, where the one that is started now would.
bool private_daemon_has_run();

// A daemon that answers and knows that this process uses it: the system's, else this user's, else one that is started
// now. kUnavailable: none answers and none could be started, with the reason. kDenied: there is one that does not let
// this user in.
base::Result<DaemonChoice> find_or_start_daemon();

}  // namespace gpumux::cli
