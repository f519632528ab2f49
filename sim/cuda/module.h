// SPDX-License-Identifier: Apache-2.0
// Images, modules, libraries and the functions in them.
//
// An image is PTX text, alone or uncompressed in a fat binary. Of it only the names of its `.entry` functions count:
// they are matched by name with the built-in kernels.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/abi.h"
#include "sim/cuda/context.h"
#include "sim/cuda/kernel_builtin.h"

namespace gpumux::sim {

struct Module;
struct Library;

// A function of a module in one context, or (without context) a kernel of a library, which works in any.
struct Function {
  std::string name;
  const BuiltinKernel* kernel = nullptr;  // null: in the image, but not one that the simulated GPU can run
  std::weak_ptr<Context> context;
  bool any_context = false;
  Module* module = nullptr;
  Library* library = nullptr;
  std::atomic<int> max_dynamic_shared_bytes{48 * 1024};
};

struct Module {
  std::weak_ptr<Context> context;
  std::vector<std::shared_ptr<Function>> functions;
  Library* library = nullptr;  // a library's module in this context
};

struct Library {
  std::vector<std::string> entries;
  std::vector<std::shared_ptr<Function>> kernels;
  std::mutex mutex;                              // guards the rest
  std::vector<std::shared_ptr<Module>> modules;  // one for each context that asked
};

// The names of an image's entry functions, in order. CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_INVALID_PTX or
// CUDA_ERROR_NO_BINARY_FOR_GPU.
cuda::CUresult read_image(const void* image, std::vector<std::string>* entries);

// The function of the current context, or the kernel, that a launch's handle means. Null: there is none.
std::shared_ptr<Function> find_function(Process& process, const void* handle);

}  // namespace gpumux::sim
