// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumux::cuda {

// Gives the address of a symbol, or null if there is none. `context` is the pointer that the caller handed over
// together with the function.
//
// The caller decides when to open a library: libgpumux.so must not open the driver before its host does. Tests hand in
// a simulated one.
using SymbolLookup = void* (*)(void* context, const char* symbol);

}  // namespace gpumux::cuda
