// SPDX-License-Identifier: Apache-2.0
// Computes in a plugin that it loads with RTLD_DEEPBIND, as some frameworks load theirs: the plugin's own references
// (to the driver, to dlsym) are then bound to the libraries that it brings, before the program's.
#include <dlfcn.h>

#include "tests/programs/gpu.h"

int main(int argc, char** argv) {
  using namespace gpumux::programs;
  if (argc != 2) {
    say("usage: deepbind PLUGIN");
    return 2;
  }
  void* const plugin = ::dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (plugin == nullptr) {
    say("cannot load: %s", ::dlerror());
    return 2;
  }
  const auto compute = reinterpret_cast<int (*)()>(::dlsym(plugin, "gpumux_plugin_compute"));
  return compute != nullptr ? compute() : 2;
}
