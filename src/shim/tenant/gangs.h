// SPDX-License-Identifier: Apache-2.0
// For hooks of calls by which GPUs or processes come to reach each other's memory: these belong together from then on.
#pragma once

#include "shim/process/real_driver.h"
#include "shim/tenant/tenant.h"

namespace gpumux::shim {

// After a call that makes this process's GPUs belong together.
inline cuda::CUresult own_gang(cuda::CUresult result) {
  if (result == cuda::CUDA_SUCCESS) {
    if (Tenant* const mine = tenant()) mine->join_own_gang();
  }
  return result;
}

// After one by which processes share memory.
inline cuda::CUresult sharing_gang(cuda::CUresult result) {
  if (result == cuda::CUDA_SUCCESS) {
    if (Tenant* const mine = tenant()) mine->join_sharing_gang();
  }
  return result;
}

// Whether accesses are given to more than one device, or to another than the calling thread's.
inline bool names_another_device(const cuda::CUmemAccessDesc* accesses, std::size_t count) {
  cuda::CUdevice current = -1;
  if (driver().cuCtxGetDevice(&current) != cuda::CUDA_SUCCESS) current = -1;
  for (std::size_t i = 0; accesses != nullptr && i < count; ++i) {
    if (accesses[i].location.type != cuda::CU_MEM_LOCATION_TYPE_DEVICE ||
        accesses[i].flags == cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE)
      continue;
    if (accesses[i].location.id != (current >= 0 ? current : accesses[0].location.id)) return true;
  }
  return false;
}

}  // namespace gpumux::shim
