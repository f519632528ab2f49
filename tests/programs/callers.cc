// SPDX-License-Identifier: Apache-2.0
// Shows whom the loader takes for the caller of dlsym and dlopen, when another library has these names.
//
// `next none`: the neighbour asks for the next `marker` after its own, and there is none. If the loader took the
// preloaded library for the caller, it would find the neighbour's.
// `beside WHOSE`: the neighbour opens a library that only its own RUNPATH finds. `own`: that library uses its own
// `marker` first, as RTLD_DEEPBIND says. `program`: it uses the program's.
#include <cstdio>

extern "C" {
[[gnu::visibility("default")]] const char* marker() { return "program"; }
void* next_marker();
const char* marker_beside();
}

int main() {
  std::printf("next %s\n", next_marker() == nullptr ? "none" : "found");
  const char* const beside = marker_beside();
  std::printf("beside %s\n", beside == nullptr ? "none" : beside);
  return 0;
}
