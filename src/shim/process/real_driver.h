// SPDX-License-Identifier: Apache-2.0
// The driver behind us: every entry of the real libcuda.so.1, found once.
#pragma once

#include <atomic>

#include "cuda/driver.h"

namespace gpumux::shim {

extern cuda::Driver g_driver;
extern std::atomic<bool> g_driver_loaded;

// Finds the driver's entries: in the libcuda.so.1 that the program has loaded, else (a program that links it weakly) by
// loading it. Without a driver all entries stay null, and every hook returns CUDA_ERROR_NOT_INITIALIZED's like
// (submit.h).
void load_real_driver();

// The driver if the program has loaded it already; null otherwise. Never loads it.
const cuda::Driver* loaded_driver();

inline const cuda::Driver& driver() {
  if (!g_driver_loaded.load(std::memory_order_acquire)) [[unlikely]]
    load_real_driver();
  return g_driver;
}

}  // namespace gpumux::shim
