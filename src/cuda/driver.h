// SPDX-License-Identifier: Apache-2.0
// Filling and reading the table of the driver's functions.
#pragma once

#include "cuda/driver.gen.h"
#include "cuda/symbol_lookup.h"

namespace gpumux::cuda {

// Fills every pointer by its exported symbol. A symbol that `lookup` does not find becomes null: an older driver lacks
// the newest entries.
void load_driver(Driver& driver, SymbolLookup lookup, void* context);

// The address that load_driver found for an entry; null if there is none, or if the entry's prototype is not known.
void* address_of(const Driver& driver, Entry entry);

}  // namespace gpumux::cuda
