// SPDX-License-Identifier: Apache-2.0
// NVML's functions as typed pointers, filled at run time. A machine without a driver has no NVML, and must still run
// the daemon and the CLI.
#pragma once

#include "cuda/nvml_abi.h"
#include "cuda/symbol_lookup.h"

namespace gpumux::cuda {

// The simulated NVML exports this function and no real one does. The daemon and the CLI tell them apart by it, without
// a call, and people see it in `gpumux status`.
inline constexpr char kSimulatedNvmlSymbol[] = "gpumux_sim_is_simulated";

// Null where this NVML lacks the function: look before you call. The _v3 process lists and nvmlDeviceGetMemoryInfo_v2
// are younger than the rest.
struct Nvml {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a type and a parameter list cannot be in parentheses.
#define GPUMUX_NVML_POINTER(result, name, parameters) result(*name) parameters = nullptr;
  GPUMUX_NVML_FUNCTIONS(GPUMUX_NVML_POINTER)
#undef GPUMUX_NVML_POINTER
};

void load_nvml(Nvml& nvml, SymbolLookup lookup, void* context);

}  // namespace gpumux::cuda
