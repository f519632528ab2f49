// SPDX-License-Identifier: Apache-2.0
#include "cuda/nvml.h"

#include <cstring>

namespace gpumux::cuda {

void load_nvml(Nvml& nvml, SymbolLookup lookup, void* context) {
  void* address = nullptr;
#define GPUMUX_NVML_LOAD(result, name, parameters)   \
  address = lookup(context, #name);                  \
  static_assert(sizeof nvml.name == sizeof address); \
  std::memcpy(&nvml.name, &address, sizeof address);
  GPUMUX_NVML_FUNCTIONS(GPUMUX_NVML_LOAD)
#undef GPUMUX_NVML_LOAD
}

}  // namespace gpumux::cuda
