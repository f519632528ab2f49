// SPDX-License-Identifier: Apache-2.0
// Entry points: finding entry points.
#include "cuda/entries.h"
#include "sim/cuda/api.h"
#include "sim/cuda/device_facts.h"

namespace gpumux::sim {

// In exports.gen.cc. Not by dlsym, which programs may have hooked.
void* address_of(cuda::Entry entry);

namespace {

using cuda::CUresult;

// Some old version has the name, or any: which of the two makes the difference between the failures.
CUresult look_up(const char* symbol, void** function, int cuda_version, std::uint64_t flags,
                 cuda::CUdriverProcAddressQueryResult* status) {
  constexpr std::uint64_t kKnownFlags =
      cuda::CU_GET_PROC_ADDRESS_LEGACY_STREAM | cuda::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (symbol == nullptr || function == nullptr || cuda_version < 0 || (flags & ~kKnownFlags) != 0)
    return cuda::CUDA_ERROR_INVALID_VALUE;
  const bool per_thread = (flags & cuda::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  *function = nullptr;
  if (const auto entry = cuda::find_versioned(symbol, static_cast<unsigned>(cuda_version), per_thread))
    *function = address_of(*entry);
  cuda::CUdriverProcAddressQueryResult found = cuda::CU_GET_PROC_ADDRESS_SUCCESS;
  if (*function == nullptr) {
    const bool newer = cuda::find_versioned(symbol, static_cast<unsigned>(kCudaVersion), per_thread).has_value();
    found = newer ? cuda::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : cuda::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  // Callers that pass a status are told by it, the others by an error.
  if (status != nullptr) {
    *status = found;
    return cuda::CUDA_SUCCESS;
  }
  return *function == nullptr ? cuda::CUDA_ERROR_NOT_FOUND : cuda::CUDA_SUCCESS;
}

}  // namespace
}  // namespace gpumux::sim

namespace gpumux::cuda {

using namespace gpumux::sim;

extern "C" {

// Both work before cuInit: programs fetch cuInit by them.
CUresult cuGetProcAddress(const char* symbol, void** function, int cuda_version, std::uint64_t flags) {
  if (const CUresult scripted = scripted_fault("cuGetProcAddress"); scripted != CUDA_SUCCESS) return scripted;
  return look_up(symbol, function, cuda_version, flags, nullptr);
}

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int cuda_version, std::uint64_t flags,
                             CUdriverProcAddressQueryResult* symbol_status) {
  if (const CUresult scripted = scripted_fault("cuGetProcAddress_v2"); scripted != CUDA_SUCCESS) return scripted;
  return look_up(symbol, function, cuda_version, flags, symbol_status);
}

}  // extern "C"
}  // namespace gpumux::cuda
