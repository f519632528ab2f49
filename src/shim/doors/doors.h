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

// AddressSanitizer's runtime, if a program has it as a shared library, ends the program unless it is the first library
// of all. /etc/ld.so.preload puts this library before it. The runtime asks this function for its options, and a program
// may define it. So this library does, and says that the order does not matter. It does not: this library exports no
// function that the runtime watches, but dlopen, and that one jumps on to the next dlopen in the order. The answer of a
// program that defines the function itself, or sets the option in ASAN_OPTIONS, goes before this one.
[[gnu::visibility("default")]] const char* __asan_default_options();
}
