// SPDX-License-Identifier: Apache-2.0
// NVML's functions as functions, for code that defines them or links to them. Not together with the vendor's nvml.h,
// which declares the same names.
#pragma once

#include "cuda/nvml_abi.h"

namespace gpumux::cuda {
extern "C" {

#define GPUMUX_NVML_DECLARE(result, name, parameters) result name parameters;
GPUMUX_NVML_FUNCTIONS(GPUMUX_NVML_DECLARE)
#undef GPUMUX_NVML_DECLARE

}  // extern "C"
}  // namespace gpumux::cuda
