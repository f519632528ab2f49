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

// The entry that the driver exports under this name: what a linked symbol or dlsym finds.
std::optional<Entry> find_symbol(std::string_view symbol);

// The entry that cuGetProcAddress gives for this name: the newest one that is no newer than the version asked for. With
// `per_thread_stream` (CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) that is the per-thread variant where the name has
// one of that version, otherwise the plain one. Nothing if the name is not known or is newer than the version.
std::optional<Entry> find_versioned(std::string_view api_name, unsigned cuda_version, bool per_thread_stream);

}  // namespace gpumux::cuda
