// SPDX-License-Identifier: Apache-2.0
// The daemon as a whole: takes the GPUs' locks, opens the sockets, and runs everything on one loop until it is told to
// stop.
//
// Threads: the loop's (all state); `helper` (NVML, which can take seconds); `worker` (files, names, JSON); the log's.
// The latter three see only copies.
#pragma once

#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/config/config.h"
#include "daemon/gpus/inventory.h"
#include "os/runtime_dir.h"

namespace gpumux::daemon {

// The exit statuses of gpumuxd. docs/configuration.md and --help list them.
enum ExitCode : int {
  kExitStopped = 0,
  kExitFailed = 1,     // something failed that should not: the log says what
  kExitUsage = 2,      // wrong options
  kExitConfig = 3,     // wrong configuration
  kExitNoGpu = 4,      // no driver, or no GPU
  kExitOwned = 5,      // another daemon has this runtime directory, or every GPU
  kExitNoSockets = 6,  // the runtime directory or its sockets cannot be made
};

struct DaemonOptions {
  std::string runtime_dir;
  bool is_private = false;
  std::string config_file;       // read again on SIGHUP; where settings are saved
  bool config_required = false;  // it was named, so it has to be there
  Config config;
  std::vector<Assignment> flag_settings;  // from the command line; over everything else
  std::optional<std::string> flag_log_level;
  std::chrono::nanoseconds exit_when_unused{0};  // zero: never
  std::string trace_file;                        // empty: none
  std::string state_dir;                         // of the job queue; empty: there is none
  std::optional<base::Duration> flag_max_job_time;
  int notify_fd = -1;
  std::vector<std::string> gpus;  // UUIDs or indices; empty: all
  std::string lock_folder = os::kGpuLockDir;
  bool handle_signals = true;
  Environment environment;
  // For tests whose tenants only say that their memory moves: false, and no mover is started.
  bool starts_mover = true;
  // Features that kernels before 6.5 and 6.16 do not have. For tests: true where the daemon must not use the feature.
  bool without_peer_pidfd = false;
  bool without_pass_rights = false;
};

struct DaemonError {
  ExitCode exit_code = kExitFailed;
  base::Error error;
};
// A lack of descriptors or memory passes: systemd tries again after kExitFailed, and not after most of the others.
inline ExitCode exit_code_of(const base::Error& error, ExitCode otherwise) {
  const int lack = error.system_errno;
  return lack == EMFILE || lack == ENFILE || lack == ENOMEM || lack == ENOBUFS || lack == ENOLCK ? kExitFailed
                                                                                                 : otherwise;
}

inline tl::unexpected<DaemonError> fail(ExitCode code, base::Error error) {
  const ExitCode exit_code = exit_code_of(error, code);
  return tl::unexpected(DaemonError{exit_code, std::move(error)});
}

class Daemon {
 public:
  // Everything that can fail at start.
  static tl::expected<std::unique_ptr<Daemon>, DaemonError> make(DaemonOptions options,
                                                                 std::unique_ptr<Inventory> inventory);
  virtual ~Daemon() = default;
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // Serves until stopped. Called once.
  virtual ExitCode run() = 0;
  // Any thread. Tenants go on.
  virtual void stop() = 0;
  // Any thread: as SIGHUP does.
  virtual void reload() = 0;
  // Any thread: ends at once as a crash would, leaving files and locks to the kernel. For tests.
  virtual void crash() = 0;

 protected:
  Daemon() = default;
};

}  // namespace gpumux::daemon
