// SPDX-License-Identifier: Apache-2.0
// Filling and reading the table of the driver's functions.
//
// Who opens the driver and when is the caller's business: the library must not open it before its host does, tests hand
// in a simulated one.
#pragma once

#include "cuda/driver.gen.h"

namespace gpumux::cuda {

// Gives the address of a symbol, or null if there is none. `context` is what the caller handed to load_driver.
using SymbolLookup = void* (*)(void* context, const char* symbol);

// Fills every pointer by its exported symbol. What `lookup` does not find becomes null: an older driver lacks the
// newest entries.
void load_driver(Driver& driver, SymbolLookup lookup, void* context);

// The address that load_driver found for an entry; null if there is none, or if the entry's prototype is not known.
void* address_of(const Driver& driver, Entry entry);

}  // namespace gpumux::cuda
