// SPDX-License-Identifier: Apache-2.0
// Between the API's descriptions of graph nodes and tasks.
#pragma once

#include "cuda/abi.h"
#include "sim/cuda/graph.h"

namespace gpumux::sim {

// Each makes a task, or names the fault of the parameters. A null context means the current one.
cuda::CUresult task_of(Process& process, const cuda::CUDA_KERNEL_NODE_PARAMS& params, Task* task);
cuda::CUresult task_of(Process& process, const cuda::CUDA_KERNEL_NODE_PARAMS_v1& params, Task* task);
cuda::CUresult task_of(Process& process, const cuda::CUDA_MEMCPY3D& params, cuda::CUcontext context, Task* task);
cuda::CUresult task_of(Process& process, const cuda::CUDA_MEMSET_NODE_PARAMS& params, cuda::CUcontext context,
                       Task* task);
cuda::CUresult task_of(Process& process, const cuda::CUDA_HOST_NODE_PARAMS& params, Task* task);
cuda::CUresult task_of(Process& process, const cuda::CUDA_BATCH_MEM_OP_NODE_PARAMS& params, Task* task);
// By its type; CUDA_ERROR_NOT_SUPPORTED for types without parameters here.
cuda::CUresult task_of(Process& process, const cuda::CUgraphNodeParams& params, Task* task);

cuda::CUDA_KERNEL_NODE_PARAMS kernel_params_of(GraphNode& node);
cuda::CUDA_MEMSET_NODE_PARAMS memset_params_of(const FillTask& task);

}  // namespace gpumux::sim
