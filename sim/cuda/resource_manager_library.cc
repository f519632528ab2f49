// SPDX-License-Identifier: Apache-2.0
// In libcuda.so.1 alone: makes the library's import `ioctl` lead to the simulated kernel module when the library is
// loaded. The loader has filled the import then, because the library is bound at once.
#include "os/imported_function.h"
#include "sim/cuda/resource_manager.h"

namespace gpumux::sim {
namespace {

// Without the replacement libcuda's calls fail, and contexts have no channels.
[[gnu::constructor]] void point_import_at_module() {
  const auto* const module = reinterpret_cast<const void*>(&resource_manager_ioctl);
  static_cast<void>(os::replace_import(module, "ioctl", module));
}

}  // namespace
}  // namespace gpumux::sim
