// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/graph_params.h"

#include <algorithm>

#include "sim/cuda/process.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

CUresult context_of(Process& process, cuda::CUcontext handle, std::shared_ptr<Context>* context) {
  *context = handle == nullptr ? thread_state().current() : process.contexts.find(handle);
  if (*context == nullptr) return cuda::CUDA_ERROR_INVALID_CONTEXT;
  return (*context)->destroyed() ? cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED : cuda::CUDA_SUCCESS;
}

}  // namespace

CUresult task_of(Process& process, const cuda::CUDA_KERNEL_NODE_PARAMS& params, Task* task) {
  KernelTask made;
  made.function = find_function(process, params.func != nullptr ? static_cast<const void*>(params.func) : params.kern);
  if (made.function == nullptr) return cuda::CUDA_ERROR_INVALID_HANDLE;
  if (made.function->kernel == nullptr) return cuda::CUDA_ERROR_NOT_SUPPORTED;
  made.context = made.function->any_context ? nullptr : made.function->context.lock();
  if (made.context == nullptr) {
    if (const CUresult result = context_of(process, params.ctx, &made.context); result != cuda::CUDA_SUCCESS)
      return result;
  }
  const unsigned grid[] = {params.gridDimX, params.gridDimY, params.gridDimZ};
  const unsigned block[] = {params.blockDimX, params.blockDimY, params.blockDimZ};
  std::copy_n(grid, 3, made.grid);
  std::copy_n(block, 3, made.block);
  made.shared_bytes = params.sharedMemBytes;
  if (const CUresult result = check_dimensions(made); result != cuda::CUDA_SUCCESS) return result;
  const CUresult result = read_parameters(*made.function, params.kernelParams, params.extra, &made);
  if (result == cuda::CUDA_SUCCESS) *task = std::move(made);
  return result;
}

CUresult task_of(Process& process, const cuda::CUDA_KERNEL_NODE_PARAMS_v1& old, Task* task) {
  cuda::CUDA_KERNEL_NODE_PARAMS params{};
  params.func = old.func;
  params.gridDimX = old.gridDimX;
  params.gridDimY = old.gridDimY;
  params.gridDimZ = old.gridDimZ;
  params.blockDimX = old.blockDimX;
  params.blockDimY = old.blockDimY;
  params.blockDimZ = old.blockDimZ;
  params.sharedMemBytes = old.sharedMemBytes;
  params.kernelParams = old.kernelParams;
  params.extra = old.extra;
  return task_of(process, params, task);
}

CUresult task_of(Process& process, const cuda::CUDA_MEMCPY3D& params, cuda::CUcontext context, Task* task) {
  CopyTask made;
  if (const CUresult result = context_of(process, context, &made.context); result != cuda::CUDA_SUCCESS) return result;
  if (const CUresult result = copy_of(params, &made.copy); result != cuda::CUDA_SUCCESS) return result;
  // The driver resolves a copy node's addresses when the node is made, so they must be mapped then.
  if (const CUresult result = check_copy(process.space(), made.copy); result != cuda::CUDA_SUCCESS) return result;
  made.described = params;
  *task = std::move(made);
  return cuda::CUDA_SUCCESS;
}

CUresult task_of(Process& process, const cuda::CUDA_MEMSET_NODE_PARAMS& params, cuda::CUcontext context, Task* task) {
  FillTask made;
  if (const CUresult result = context_of(process, context, &made.context); result != cuda::CUDA_SUCCESS) return result;
  made.fill = {params.dst, params.pitch, params.value, params.elementSize, params.width, params.height};
  if (const CUresult result = check_fill(made.fill); result != cuda::CUDA_SUCCESS) return result;
  if (const CUresult result = check_fill_ends(process.space(), made.fill); result != cuda::CUDA_SUCCESS) return result;
  *task = std::move(made);
  return cuda::CUDA_SUCCESS;
}

CUresult task_of(Process& process, const cuda::CUDA_HOST_NODE_PARAMS& params, Task* task) {
  HostTask made;
  if (params.fn == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = context_of(process, nullptr, &made.context); result != cuda::CUDA_SUCCESS) return result;
  made.function = params.fn;
  made.user_data = params.userData;
  *task = std::move(made);
  return cuda::CUDA_SUCCESS;
}

CUresult task_of(Process& process, const cuda::CUDA_BATCH_MEM_OP_NODE_PARAMS& params, Task* task) {
  MemoryOperationsTask made;
  if (const CUresult result = context_of(process, params.ctx, &made.context); result != cuda::CUDA_SUCCESS)
    return result;
  if (params.paramArray == nullptr || params.count == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  made.operations.assign(params.paramArray, params.paramArray + params.count);
  *task = std::move(made);
  return cuda::CUDA_SUCCESS;
}

CUresult task_of(Process& process, const cuda::CUgraphNodeParams& params, Task* task) {
  switch (params.type) {
    case cuda::CU_GRAPH_NODE_TYPE_KERNEL: return task_of(process, params.kernel, task);
    case cuda::CU_GRAPH_NODE_TYPE_MEMCPY:
      return task_of(process, params.memcpy.copyParams, params.memcpy.copyCtx, task);
    case cuda::CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto& m = params.memset;
      const cuda::CUDA_MEMSET_NODE_PARAMS plain{m.dst, m.pitch, m.value, m.elementSize, m.width, m.height};
      return task_of(process, plain, m.ctx, task);
    }
    case cuda::CU_GRAPH_NODE_TYPE_HOST: return task_of(process, params.host, task);
    case cuda::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return task_of(process, params.memOp, task);
    case cuda::CU_GRAPH_NODE_TYPE_EMPTY: *task = EmptyTask{}; return cuda::CUDA_SUCCESS;
    default: return cuda::CUDA_ERROR_NOT_SUPPORTED;
  }
}

cuda::CUDA_KERNEL_NODE_PARAMS kernel_params_of(GraphNode& node) {
  auto& task = std::get<KernelTask>(node.task);
  for (std::size_t i = 0; i < task.function->kernel->parameters; ++i) {
    node.parameters[i] = task.parameters + task.function->kernel->offsets[i];
  }
  cuda::CUDA_KERNEL_NODE_PARAMS params{};
  if (task.function->any_context) {
    params.kern = reinterpret_cast<cuda::CUkernel>(task.function.get());
  } else {
    params.func = reinterpret_cast<cuda::CUfunction>(task.function.get());
  }
  params.gridDimX = task.grid[0];
  params.gridDimY = task.grid[1];
  params.gridDimZ = task.grid[2];
  params.blockDimX = task.block[0];
  params.blockDimY = task.block[1];
  params.blockDimZ = task.block[2];
  params.sharedMemBytes = task.shared_bytes;
  params.kernelParams = node.parameters;
  params.ctx = reinterpret_cast<cuda::CUcontext>(task.context.get());
  return params;
}

cuda::CUDA_MEMSET_NODE_PARAMS memset_params_of(const FillTask& task) {
  const Fill& fill = task.fill;
  return {fill.destination, fill.pitch, fill.value, fill.element_bytes, fill.width, fill.height};
}

}  // namespace gpumux::sim
