// SPDX-License-Identifier: Apache-2.0
// What `deepbind` loads: uses the driver by linked symbols and by dlsym, and says which library each came from.
#include <dlfcn.h>

#include "cuda/prototypes.gen.h"
#include "tests/programs/gpu.h"

namespace {

const char* library_of(void* function) {
  Dl_info info{};
  return ::dladdr(function, &info) != 0 ? info.dli_fname : "?";
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int gpumux_plugin_compute() {
  using namespace gpumux::programs;
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  say("linked=%s", library_of(reinterpret_cast<void*>(&gpumux::cuda::cuLaunchKernel)));
  say("dlsym=%s", library_of(::dlsym(library, "cuLaunchKernel")));
  const Api api = open_driver(Door::kLinked);
  GPUMUX_CALL(api.cuInit(0));
  CUcontext context = nullptr;
  GPUMUX_CALL(api.cuCtxCreate_v2(&context, 0, 0));
  const Kernels kernels = load_kernels(api);
  CUdeviceptr data = 0;
  const std::uint64_t count = 1024;
  GPUMUX_CALL(api.cuMemAlloc_v2(&data, count * 4));
  GPUMUX_CALL(api.cuMemsetD32_v2(data, 7, count));
  for (int i = 0; i < 20; ++i) launch(api, kernels.increment, nullptr, false, data, count);
  std::uint32_t first = 0;
  GPUMUX_CALL(api.cuMemcpyDtoH_v2(&first, data, 4));
  if (first != 27) wrong("the plugin's result");
  say("done what=plugin");
  return 0;
}
