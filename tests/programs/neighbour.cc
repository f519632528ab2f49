// SPDX-License-Identifier: Apache-2.0
// Calls dlsym and dlopen from a library that the program is linked to. See callers.cc.
#include <dlfcn.h>

namespace {

// Keeps the call before it from being a jump, which would leave the program's return address.
void* came_back(void* value) {
  asm volatile("" : "+r"(value));
  return value;
}

}  // namespace

extern "C" {
[[gnu::visibility("default")]] const char* marker() { return "neighbour"; }

[[gnu::visibility("default")]] void* next_marker() { return came_back(::dlsym(RTLD_NEXT, "marker")); }

[[gnu::visibility("default")]] const char* marker_beside() {
  void* const library = came_back(::dlopen("libbeside.so", RTLD_NOW | RTLD_DEEPBIND));
  if (library == nullptr) return nullptr;
  return reinterpret_cast<const char* (*)()>(::dlsym(library, "seen_marker"))();
}
}
