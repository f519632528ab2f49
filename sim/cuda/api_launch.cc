// SPDX-License-Identifier: Apache-2.0
// Entry points: modules, libraries, functions, launches, occupancy.
#include <algorithm>
#include <fstream>
#include <iterator>

#include "sim/cuda/api.h"
#include "sim/cuda/module.h"
#include "sim/cuda/task.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

constexpr unsigned kMostThreads = 1024;
constexpr unsigned kMostSharedBytes = 227 * 1024;

std::shared_ptr<Module> make_module(const std::shared_ptr<Context>& context, const std::vector<std::string>& entries,
                                    Library* library) {
  auto module = std::make_shared<Module>();
  module->context = context;
  module->library = library;
  for (const std::string& name : entries) {
    auto function = std::make_shared<Function>();
    function->name = name;
    function->kernel = find_builtin(name);
    function->context = context;
    function->module = module.get();
    function->library = library;
    context->process().functions.add<cuda::CUfunction>(function);
    module->functions.push_back(std::move(function));
  }
  context->process().modules.add<cuda::CUmodule>(module);
  return module;
}

CUresult load_module(const char* entry, cuda::CUmodule* handle, const void* image) {
  return context_call(entry, [&](const std::shared_ptr<Context>& context) {
    if (handle == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = may_call_unsafe(); result != cuda::CUDA_SUCCESS) return result;
    std::vector<std::string> entries;
    if (const CUresult result = read_image(image, &entries); result != cuda::CUDA_SUCCESS) return result;
    *handle = handle_of<cuda::CUmodule>(make_module(context, entries, nullptr));
    return cuda::CUDA_SUCCESS;
  });
}

CUresult read_file(const char* path, std::string* text) {
  if (path == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(path, std::ios::binary);
  if (!file) return cuda::CUDA_ERROR_FILE_NOT_FOUND;
  text->assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  return cuda::CUDA_SUCCESS;
}

CUresult load_library(const char* entry, cuda::CUlibrary* handle, const void* image) {
  return driver_call(entry, [&](Process& process) {
    if (handle == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    auto library = std::make_shared<Library>();
    if (const CUresult result = read_image(image, &library->entries); result != cuda::CUDA_SUCCESS) return result;
    for (const std::string& name : library->entries) {
      auto kernel = std::make_shared<Function>();
      kernel->name = name;
      kernel->kernel = find_builtin(name);
      kernel->any_context = true;
      kernel->library = library.get();
      process.functions.add<cuda::CUkernel>(kernel);
      library->kernels.push_back(std::move(kernel));
    }
    *handle = process.libraries.add<cuda::CUlibrary>(std::move(library));
    return cuda::CUDA_SUCCESS;
  });
}

// The library's module in a context, made when first asked for.
std::shared_ptr<Module> module_of(const std::shared_ptr<Context>& context, Library& library) {
  const std::lock_guard lock(library.mutex);
  for (const auto& module : library.modules) {
    if (module->context.lock() == context) return module;
  }
  library.modules.push_back(make_module(context, library.entries, &library));
  return library.modules.back();
}

void unload(Process& process, const Module& module) {
  for (const auto& function : module.functions) process.functions.remove(function.get());
}

template <class Functions>
std::shared_ptr<Function> named(const Functions& functions, const std::string& name) {
  for (const auto& function : functions) {
    if (function->name == name) return function;
  }
  return nullptr;
}

// A function that may be launched in this context.
CUresult runnable(const std::shared_ptr<Context>& context, const void* handle, std::shared_ptr<Function>* function) {
  *function = find_function(context->process(), handle);
  if (*function == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
  if (!(*function)->any_context && (*function)->context.lock() != context) return cuda::CUDA_ERROR_INVALID_HANDLE;
  // It is in the image, but the simulated GPU cannot run it.
  if ((*function)->kernel == nullptr) return cuda::CUDA_ERROR_NOT_SUPPORTED;
  return cuda::CUDA_SUCCESS;
}

CUresult launch_on(const std::shared_ptr<Stream>& stream, const void* handle, const unsigned (&grid)[3],
                   const unsigned (&block)[3], unsigned shared_bytes, void** params, void** extra) {
  KernelTask task;
  if (const CUresult result = runnable(stream->context(), handle, &task.function); result != cuda::CUDA_SUCCESS)
    return result;
  if (const CUresult result = read_parameters(*task.function, params, extra, &task); result != cuda::CUDA_SUCCESS)
    return result;
  task.context = stream->context();
  std::copy_n(grid, 3, task.grid);
  std::copy_n(block, 3, task.block);
  task.shared_bytes = shared_bytes;
  if (const CUresult result = check_dimensions(task); result != cuda::CUDA_SUCCESS) return result;
  return issue(stream, std::move(task));
}

CUresult launch(const char* entry, bool per_thread, cuda::CUfunction function, unsigned gx, unsigned gy, unsigned gz,
                unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes, cuda::CUstream handle, void** params,
                void** extra) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    return launch_on(stream, function, {gx, gy, gz}, {bx, by, bz}, shared_bytes, params, extra);
  });
}

CUresult launch_ex(const char* entry, bool per_thread, const cuda::CUlaunchConfig* config, cuda::CUfunction function,
                   void** params, void** extra) {
  if (config == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  return launch(entry, per_thread, function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream, params, extra);
}

CUresult function_attribute(const Function& function, cuda::CUfunction_attribute attribute, int* value) {
  if (value == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  *value = 0;
  switch (attribute) {
    case cuda::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = kMostThreads; return cuda::CUDA_SUCCESS;
    case cuda::CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; return cuda::CUDA_SUCCESS;
    case cuda::CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case cuda::CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 90; return cuda::CUDA_SUCCESS;
    case cuda::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = function.max_dynamic_shared_bytes.load();
      return cuda::CUDA_SUCCESS;
    case cuda::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = -1; return cuda::CUDA_SUCCESS;
    default:
      return attribute <= cuda::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE ? cuda::CUDA_SUCCESS
                                                                                       : cuda::CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult parameter_info(const Function& function, std::size_t index, std::size_t* offset, std::size_t* size) {
  if (offset == nullptr || function.kernel == nullptr || index >= function.kernel->parameters)
    return cuda::CUDA_ERROR_INVALID_VALUE;
  *offset = function.kernel->offsets[index];
  if (size != nullptr) *size = function.kernel->sizes[index];
  return cuda::CUDA_SUCCESS;
}

// body(Function&)
template <class Body>
CUresult function_call(const char* entry, const void* handle, Body body) {
  return driver_call(entry, [&](Process& process) {
    const auto function = find_function(process, handle);
    if (function == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
    return static_cast<CUresult>(body(*function));
  });
}

template <class Body>
CUresult module_call(const char* entry, cuda::CUmodule handle, Body body) {
  return context_call(entry, [&](const std::shared_ptr<Context>& context) {
    const auto module = context->process().modules.find(handle);
    if (module == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
    return static_cast<CUresult>(body(context, *module));
  });
}

template <class Body>
CUresult library_call(const char* entry, cuda::CUlibrary handle, Body body) {
  return driver_call(entry, [&](Process& process) {
    const auto library = process.libraries.find(handle);
    if (library == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
    return static_cast<CUresult>(body(process, *library));
  });
}

CUresult occupancy(const char* entry, int* blocks, cuda::CUfunction function, int block_size) {
  return function_call(entry, function, [&](Function&) {
    if (blocks == nullptr || block_size <= 0) return cuda::CUDA_ERROR_INVALID_VALUE;
    constexpr int kThreads = 2048;
    constexpr int kMostBlocks = 32;
    *blocks = block_size > static_cast<int>(kMostThreads) ? 0 : std::min(kThreads / block_size, kMostBlocks);
    return cuda::CUDA_SUCCESS;
  });
}

CUresult best_block(const char* entry, int* grid_size, int* block_size, cuda::CUfunction function, int limit) {
  return function_call(entry, function, [&](Function&) {
    if (grid_size == nullptr || block_size == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    *block_size = limit > 0 ? std::min(limit, static_cast<int>(kMostThreads)) : static_cast<int>(kMostThreads);
    *grid_size = 16 * 2;  // multiprocessors, and two such blocks on each
    return cuda::CUDA_SUCCESS;
  });
}

}  // namespace
}  // namespace gpumux::sim

namespace gpumux::cuda {

using namespace gpumux::sim;

extern "C" {

CUresult cuModuleLoad(CUmodule* mod, const char* fname) {
  std::string text;
  if (const CUresult result = sim::read_file(fname, &text); result != CUDA_SUCCESS) return result;
  return load_module("cuModuleLoad", mod, text.c_str());
}
CUresult cuModuleLoadData(CUmodule* mod, const void* image) { return load_module("cuModuleLoadData", mod, image); }
CUresult cuModuleLoadDataEx(CUmodule* mod, const void* image, unsigned int, CUjit_option*, void**) {
  return load_module("cuModuleLoadDataEx", mod, image);
}
CUresult cuModuleLoadFatBinary(CUmodule* mod, const void* fat_cubin) {
  return load_module("cuModuleLoadFatBinary", mod, fat_cubin);
}

CUresult cuModuleUnload(CUmodule handle) {
  return module_call("cuModuleUnload", handle, [&](const std::shared_ptr<Context>& context, Module& module) {
    if (module.library != nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult result = may_call_unsafe(); result != CUDA_SUCCESS) return result;
    unload(context->process(), module);
    context->process().modules.remove(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  return module_call("cuModuleGetFunction", handle, [&](const std::shared_ptr<Context>&, Module& module) {
    if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto found = named(module.functions, name);
    if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
    *function = handle_of<CUfunction>(found);
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule handle) {
  return module_call("cuModuleGetFunctionCount", handle, [&](const std::shared_ptr<Context>&, Module& module) {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<unsigned>(module.functions.size());
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int function_count, CUmodule handle) {
  return module_call("cuModuleEnumerateFunctions", handle, [&](const std::shared_ptr<Context>&, Module& module) {
    if (functions == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < function_count && i < module.functions.size(); ++i)
      functions[i] = handle_of<CUfunction>(module.functions[i]);
    return CUDA_SUCCESS;
  });
}

// Images have functions only: no variables, no textures.
CUresult cuModuleGetGlobal_v2(CUdeviceptr*, std::size_t*, CUmodule handle, const char*) {
  return module_call("cuModuleGetGlobal_v2", handle,
                     [](const std::shared_ptr<Context>&, Module&) { return CUDA_ERROR_NOT_FOUND; });
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_EAGER_LOADING;
  return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned int, CUlibraryOption*,
                           void**, unsigned int) {
  return load_library("cuLibraryLoadData", library, code);
}
CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* file_name, CUjit_option*, void**, unsigned int,
                               CUlibraryOption*, void**, unsigned int) {
  std::string text;
  if (const CUresult result = sim::read_file(file_name, &text); result != CUDA_SUCCESS) return result;
  return load_library("cuLibraryLoadFromFile", library, text.c_str());
}

CUresult cuLibraryUnload(CUlibrary handle) {
  return library_call("cuLibraryUnload", handle, [&](Process& process, Library& library) {
    for (const auto& kernel : library.kernels) process.functions.remove(kernel.get());
    const std::lock_guard lock(library.mutex);
    for (const auto& module : library.modules) {
      unload(process, *module);
      process.modules.remove(module.get());
    }
    process.libraries.remove(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary handle, const char* name) {
  return library_call("cuLibraryGetKernel", handle, [&](Process&, Library& library) {
    if (kernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto found = named(library.kernels, name);
    if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
    *kernel = handle_of<CUkernel>(found);
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary handle) {
  return library_call("cuLibraryGetKernelCount", handle, [&](Process&, Library& library) {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<unsigned>(library.kernels.size());
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int kernel_count, CUlibrary handle) {
  return library_call("cuLibraryEnumerateKernels", handle, [&](Process&, Library& library) {
    if (kernels == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < kernel_count && i < library.kernels.size(); ++i)
      kernels[i] = handle_of<CUkernel>(library.kernels[i]);
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetModule(CUmodule* mod, CUlibrary handle) {
  return library_call("cuLibraryGetModule", handle, [&](Process&, Library& library) {
    std::shared_ptr<Context> context;
    if (mod == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = usable_context(&context); result != CUDA_SUCCESS) return result;
    *mod = handle_of<CUmodule>(module_of(context, library));
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetGlobal(CUdeviceptr*, std::size_t*, CUlibrary handle, const char*) {
  return library_call("cuLibraryGetGlobal", handle, [](Process&, Library&) { return CUDA_ERROR_NOT_FOUND; });
}
CUresult cuLibraryGetManaged(CUdeviceptr*, std::size_t*, CUlibrary handle, const char*) {
  return library_call("cuLibraryGetManaged", handle, [](Process&, Library&) { return CUDA_ERROR_NOT_FOUND; });
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return function_call("cuKernelGetFunction", kernel, [&](Function& found) {
    std::shared_ptr<Context> context;
    if (function == nullptr || !found.any_context) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = usable_context(&context); result != CUDA_SUCCESS) return result;
    *function = handle_of<CUfunction>(named(module_of(context, *found.library)->functions, found.name));
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
  return function_call("cuKernelGetLibrary", kernel, [&](Function& found) {
    if (library == nullptr || !found.any_context) return CUDA_ERROR_INVALID_VALUE;
    *library = reinterpret_cast<CUlibrary>(found.library);
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  return function_call("cuKernelGetName", kernel, [&](Function& found) {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *name = found.name.c_str();
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetParamInfo(CUkernel kernel, std::size_t param_index, std::size_t* param_offset,
                              std::size_t* param_size) {
  return function_call("cuKernelGetParamInfo", kernel,
                       [&](Function& found) { return parameter_info(found, param_index, param_offset, param_size); });
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice) {
  return function_call("cuKernelGetAttribute", kernel,
                       [&](Function& found) { return function_attribute(found, attribute, value); });
}

CUresult cuKernelSetAttribute(CUfunction_attribute, int, CUkernel kernel, CUdevice) {
  return function_call("cuKernelSetAttribute", kernel, [](Function&) { return CUDA_SUCCESS; });
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache, CUdevice) {
  return function_call("cuKernelSetCacheConfig", kernel, [](Function&) { return CUDA_SUCCESS; });
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
  return function_call("cuFuncGetName", function, [&](Function& found) {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *name = found.name.c_str();
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncGetModule(CUmodule* mod, CUfunction function) {
  return function_call("cuFuncGetModule", function, [&](Function& found) {
    if (mod == nullptr || found.module == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *mod = reinterpret_cast<CUmodule>(found.module);
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncGetParamInfo(CUfunction function, std::size_t param_index, std::size_t* param_offset,
                            std::size_t* param_size) {
  return function_call("cuFuncGetParamInfo", function,
                       [&](Function& found) { return parameter_info(found, param_index, param_offset, param_size); });
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  return function_call("cuFuncGetAttribute", function,
                       [&](Function& found) { return function_attribute(found, attribute, value); });
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  return function_call("cuFuncSetAttribute", function, [&](Function& found) {
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
    if (value < 0 || value > static_cast<int>(kMostSharedBytes)) return CUDA_ERROR_INVALID_VALUE;
    found.max_dynamic_shared_bytes.store(value);
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache) {
  return function_call("cuFuncSetCacheConfig", function, [](Function&) { return CUDA_SUCCESS; });
}
CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig) {
  return function_call("cuFuncSetSharedMemConfig", function, [](Function&) { return CUDA_SUCCESS; });
}
CUresult cuFuncLoad(CUfunction function) {
  return function_call("cuFuncLoad", function, [](Function&) { return CUDA_SUCCESS; });
}
CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
  return function_call("cuFuncIsLoaded", function, [&](Function&) {
    if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
  });
}

#define GPUMUX_SIM_DIMENSIONS                                                                           \
  unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, \
      unsigned int shared_mem_bytes
GPUMUX_SIM_STREAM_ENTRY(cuLaunchKernel, _ptsz,
                        (CUfunction function, GPUMUX_SIM_DIMENSIONS, CUstream stream, void** params, void** extra),
                        launch, function, gx, gy, gz, bx, by, bz, shared_mem_bytes, stream, params, extra)
GPUMUX_SIM_STREAM_ENTRY(cuLaunchCooperativeKernel, _ptsz,
                        (CUfunction function, GPUMUX_SIM_DIMENSIONS, CUstream stream, void** params), launch, function,
                        gx, gy, gz, bx, by, bz, shared_mem_bytes, stream, params, nullptr)
GPUMUX_SIM_STREAM_ENTRY(cuLaunchKernelEx, _ptsz,
                        (const CUlaunchConfig* config, CUfunction function, void** params, void** extra), launch_ex,
                        config, function, params, extra)

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* block_count, CUfunction function, int block_size,
                                                     std::size_t) {
  return occupancy("cuOccupancyMaxActiveBlocksPerMultiprocessor", block_count, function, block_size);
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* block_count, CUfunction function, int block_size,
                                                              std::size_t, unsigned int) {
  return occupancy("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", block_count, function, block_size);
}
CUresult cuOccupancyMaxPotentialBlockSize(int* min_grid_size, int* block_size, CUfunction function, CUoccupancyB2DSize,
                                          std::size_t, int block_size_limit) {
  return best_block("cuOccupancyMaxPotentialBlockSize", min_grid_size, block_size, function, block_size_limit);
}
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* min_grid_size, int* block_size, CUfunction function,
                                                   CUoccupancyB2DSize, std::size_t, int block_size_limit,
                                                   unsigned int) {
  return best_block("cuOccupancyMaxPotentialBlockSizeWithFlags", min_grid_size, block_size, function, block_size_limit);
}

}  // extern "C"
}  // namespace gpumux::cuda
