// SPDX-License-Identifier: Apache-2.0
#include "shim/doors/doors.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string_view>

#include "cuda/driver.h"
#include "cuda/entries.h"
#include "shim/hooks/hooks.gen.h"
#include "shim/process/real_doors.h"
#include "shim/process/real_driver.h"

void* gpumux_override_symbol(void* handle, const char* symbol) {
  using namespace gpumux;
  shim::find_real_doors();
  if (symbol == nullptr || symbol[0] != 'c' || symbol[1] != 'u') return nullptr;
  // RTLD_DEFAULT finds our symbols by itself, because they are first in the search order. RTLD_NEXT asks for what is
  // behind the caller, and another interposer that asks so must get it.
  if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) return nullptr;
  const auto entry = cuda::find_symbol(symbol);
  if (!entry) return nullptr;
  const void* ours = shim::export_of(*entry);
  if (ours == nullptr) return nullptr;
  // Only the driver's own entry is replaced: the handle may be of any library that has a function of this name.
  void* found = shim::real_dlsym(handle, symbol);
  if (found == nullptr) return nullptr;
  const cuda::Driver* driver = shim::loaded_driver();
  if (driver == nullptr || found != cuda::address_of(*driver, *entry)) return nullptr;
  return const_cast<void*>(ours);
}

const char* __asan_default_options() { return "verify_asan_link_order=0"; }

int gpumux_dlopen_flags(int flags) {
  gpumux::shim::find_real_doors();
  return flags & ~RTLD_DEEPBIND;
}
