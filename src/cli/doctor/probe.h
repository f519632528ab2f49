// SPDX-License-Identifier: Apache-2.0
// Looking, from a child process, at things that may crash or hang the process that looks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/doctor/facts.h"

namespace gpumux::cli {

// A driver in a bad state keeps a process that asks it waiting for ever, in the kernel.
inline constexpr base::Duration kProbeLimit = std::chrono::seconds(20);

// The hidden command that says whether the library named in its argument is mapped into it.
inline constexpr char kPreloadProbe[] = "__preload-probe";

// Runs `body` in a forked child and gives what it wrote to the descriptor that it gets. `stderr_too`: its stderr as
// well, instead. An empty error means that it ended well, in time. A child that cannot even be killed (it hangs in the
// kernel) is left behind.
struct ProbeOutcome {
  std::string output;
  std::string messages;  // its stderr
  std::string error;
};
ProbeOutcome run_probe(const std::function<void(int output)>& body, base::Duration limit);

// Loads libcuda.so.1 and libnvidia-ml.so.1 as programs find them and asks what needs no context and no cuInit.
DriverFacts probe_driver();

// Starts this executable with the library preloaded and asks it whether it is there.
void probe_preload(LibraryFacts& library);

// The other side of probe_preload.
int preload_probe_command(const std::vector<char*>& arguments);

}  // namespace gpumux::cli
