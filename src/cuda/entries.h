// SPDX-License-Identifier: Apache-2.0
// The entry table at run time: which entry point a program asks for, by any of the three doors.
//
// Linked into libgpumux.so: no heap, no exceptions, no static constructors; safe from any thread, at any time, before
// main too. Include no vendor header before this one: cuda.h redefines names of functions by macros.
#pragma once

#include <optional>
#include <string_view>

#include "cuda/entries.gen.h"

namespace gpumux::cuda {

constexpr const EntryInfo& info_of(Entry entry) { return kEntries[static_cast<std::size_t>(entry)]; }

// The entry that the driver exports under this name: the one that a linked symbol or dlsym finds.
std::optional<Entry> find_symbol(std::string_view symbol);

// The entry that cuGetProcAddress gives for this name: the newest one that is no newer than the version asked for.
//
// With `per_thread_stream` (CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM in the flags) a name that has per-thread
// variants means those only; a name without any means its plain ones. A real driver does not fall back from a variant
// that is too new to a plain one. Asked for cuMemcpy of CUDA 4.0 with that flag, it says that the version is not
// sufficient (tests/data/libcuda-580.159.04-versions.txt).
//
// Nothing if the name is not known, which names with their version (cuMemAlloc_v2) are not, or if all of it is newer.
std::optional<Entry> find_versioned(std::string_view api_name, unsigned cuda_version, bool per_thread_stream);

}  // namespace gpumux::cuda
