// SPDX-License-Identifier: Apache-2.0
// The C library's own dlsym and dlopen, even if this process has interposed others. Any thread.
#pragma once

namespace gpumux::shim {

void* real_dlsym(void* handle, const char* symbol);
void* real_dlopen(const char* name, int flags);

// Sets the two variables below, if they are not set.
void find_real_doors();

}  // namespace gpumux::shim

extern "C" {
// Where the stubs jump to (doors_x86_64.S, doors_aarch64.S).
[[gnu::visibility("hidden")]] extern void* gpumux_real_dlsym;
[[gnu::visibility("hidden")]] extern void* gpumux_real_dlopen;
}
