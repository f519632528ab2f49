// SPDX-License-Identifier: Apache-2.0
// The user's simulated machine: simulated GPUs with a daemon and a job queue of their own, for trying gpumux without a
// GPU (docs/simulated-driver.md).
//
// A machine is only an environment. LD_LIBRARY_PATH finds the simulated driver first. GPUMUX_RUNTIME_DIR,
// GPUMUX_STATE_DIR and GPUMUX_SIM_DIR name directories that no other daemon uses. So every command works on it
// unchanged.
#pragma once

#include <string>

#include "base/result.h"

namespace gpumux::cli {

// Sets this process's environment so that the programs and daemons it starts are on the simulated machine. The
// directories belong to the ones that the user would have without it. A process that is on it already stays on it.
// This process itself still sees the real driver: the loader reads LD_LIBRARY_PATH only when a program starts.
// kNotFound: the simulated driver is not installed; the text names the places. Not thread-safe: it calls setenv.
base::Status use_simulated_machine();

// The path of a program that computes on a GPU for some seconds and checks its results. It runs on simulated and on
// real GPUs. kNotFound names the places.
base::Result<std::string> find_demo_program();

}  // namespace gpumux::cli
