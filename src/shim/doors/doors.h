// SPDX-License-Identifier: Apache-2.0
// The doors through which a program reaches the driver other than by a linked symbol: dlsym and dlopen here,
// cuGetProcAddress in hooks_lookup.cc.
//
// dlsym is interposed by a few instructions of assembly (doors_x86_64.S, doors_aarch64.S). They ask override_symbol,
// and otherwise jump on to the real dlsym with the caller's frame in place. So RTLD_NEXT, RPATH and error messages are
// as without the library. dlopen is interposed the same way, only to drop RTLD_DEEPBIND. A library bound that way would
// see the driver and dlsym behind our back.
#pragma once

extern "C" {
// The address that dlsym(handle, symbol) gives instead of the real answer; null: the real answer. Called from the stub.
[[gnu::visibility("hidden")]] void* gpumux_override_symbol(void* handle, const char* symbol);
// The flags for the real dlopen. Called from the stub.
[[gnu::visibility("hidden")]] int gpumux_dlopen_flags(int flags);
// Both have set where the stubs jump to (real_doors.h) before they return.
}
