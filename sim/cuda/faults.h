// SPDX-License-Identifier: Apache-2.0
// Scripted faults: GPUMUX_SIM_FAULTS="cuMemMap:3=OUT_OF_MEMORY;cuMemcpyDtoHAsync_v2:1+=700" makes this process's third
// cuMemMap and all its asynchronous copies to the host fail with these codes. A fault counts calls of exactly the entry
// named, before anything is done.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cuda/abi.h"

namespace gpumux::sim {

struct Fault {
  std::string entry;
  std::uint64_t nth = 1;
  bool and_later = false;
  cuda::CUresult code = cuda::CUDA_SUCCESS;
};

base::Result<std::vector<Fault>> parse_faults(std::string_view text);

// The scripted result of this call of the entry; CUDA_SUCCESS: there is none. Reads the variable at the first call.
cuda::CUresult scripted_fault(std::string_view entry);

// "CUDA_ERROR_OUT_OF_MEMORY", and its meaning; null: no such code.
struct ErrorText {
  cuda::CUresult code;
  const char* name;
  const char* text;
};
const ErrorText* error_text(cuda::CUresult code);
const ErrorText* error_text(std::string_view name);

}  // namespace gpumux::sim
