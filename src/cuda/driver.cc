// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.h"

#include <cstring>
#include <type_traits>

namespace gpumux::cuda {

// Driver is an array of function pointers with a name and a type for each. POSIX has data and function pointers alike
// in size and meaning, which dlsym needs as well; the copies below are how C++ says it.
static_assert(std::is_standard_layout_v<Driver>);
static_assert(sizeof(void*) == sizeof(void (*)()));

void load_driver(Driver& driver, SymbolLookup lookup, void* context) {
  for (std::size_t index = 0; index < kEntryCount; ++index) {
    if (kDriverSlots[index] == kNoDriverSlot) continue;
    void* const address = lookup(context, kEntries[index].symbol);
    std::memcpy(reinterpret_cast<std::byte*>(&driver) + kDriverSlots[index], &address, sizeof address);
  }
}

void* address_of(const Driver& driver, Entry entry) {
  const auto index = static_cast<std::size_t>(entry);
  if (index >= kEntryCount || kDriverSlots[index] == kNoDriverSlot) return nullptr;
  void* address = nullptr;
  std::memcpy(&address, reinterpret_cast<const std::byte*>(&driver) + kDriverSlots[index], sizeof address);
  return address;
}

}  // namespace gpumux::cuda
