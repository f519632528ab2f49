// SPDX-License-Identifier: Apache-2.0
// For the pager's tests: the simulated driver of this very process as a table, with failures on demand.
#pragma once

#include <array>
#include <atomic>
#include <cstring>

#include "cuda/driver.h"
#include "sim/cuda/test_machine.h"

namespace gpumux::sim {
void* address_of(cuda::Entry entry);
}

namespace gpumux::pager {

inline void* find_simulated(void*, const char* symbol) {
  for (std::size_t i = 0; i < cuda::kEntryCount; ++i) {
    if (std::strcmp(cuda::kEntries[i].symbol, symbol) == 0) return sim::address_of(static_cast<cuda::Entry>(i));
  }
  return nullptr;
}

// The simulated driver, linked into this program.
inline const cuda::Driver& simulated_driver() {
  static const cuda::Driver driver = [] {
    cuda::Driver made;
    cuda::load_driver(made, find_simulated, nullptr);
    return made;
  }();
  return driver;
}

}  // namespace gpumux::pager
