// SPDX-License-Identifier: Apache-2.0
// The library's environment variables, read once, when a process first needs the daemon (docs/environment.md has the
// table). In a setuid program they are ignored. A bad value is logged and the default used: the process is the
// program's, not the library's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/standing.h"
#include "wire/messages.h"

namespace gpumux::shim {

// lock_modes.h says what they mean.
struct LockModeSettings {
  std::uint32_t submissions = 10;  // 0: like 1
  base::Duration held{0};          // 0: by submissions
  bool always = false;
  std::uint32_t skips = 0;
};

struct MemorySettings {
  bool paging = true;             // GPUMUX_PAGING
  bool verify = false;            // GPUMUX_VERIFY
  bool managed = false;           // GPUMUX_MEMORY=managed
  std::uint64_t limit = 0;        // GPUMUX_MEM_LIMIT; 0: none. The daemon keeps it, for all processes of the run
  std::uint64_t chunk_bytes = 0;  // for tests; 0: as pager::Options
};

struct Settings {
  bool disabled = false;                                      // GPUMUX_DISABLE=1
  base::Duration connect_timeout = std::chrono::seconds(10);  // GPUMUX_CONNECT_TIMEOUT; the default is a guess
  std::optional<wire::OnDaemonLoss> on_daemon_loss;  // GPUMUX_ON_DAEMON_LOSS=wait|ungated; unset: as the daemon says
  std::string log;                                   // GPUMUX_LOG: a file, or "stderr"; empty: the daemon's log only
  std::string gang;                                  // the gang this process is born into; empty: none
  std::uint32_t gang_world = 0;
  std::string run;                             // GPUMUX_RUN_ID: the run; its processes have the limit together
  base::Standing standing;                     // GPUMUX_PRIORITY, GPUMUX_SHARE, GPUMUX_MAX_SHARE
  std::optional<bool> mps;                     // GPUMUX_USE_MPS; unset: as the daemon says
  std::string sharing_gang;                    // the gang it joins when it shares memory with other processes
  std::optional<LockModeSettings> lock_modes;  // CUDA_OVERRIDE_*; nothing: none is set
  MemorySettings memory;
  std::vector<std::string> complaints;  // bad values, for the log
};

// GPUMUX_DISABLE: nothing is to be done in this process.
bool is_disabled();

Settings read_settings();

// The name that this program is shown under: GPUMUX_NAME, else what base/program_name.h says.
std::string program_name();

}  // namespace gpumux::shim
