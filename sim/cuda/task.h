// SPDX-License-Identifier: Apache-2.0
// The operations of a stream. The same values are operations of a stream, and nodes of a graph when the stream is
// capturing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "cuda/abi.h"
#include "sim/cuda/event.h"
#include "sim/cuda/module.h"
#include "sim/cuda/transfer.h"

namespace gpumux::sim {

struct Graph;

struct KernelTask {
  std::shared_ptr<Context> context;
  std::shared_ptr<Function> function;
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  alignas(8) std::byte parameters[kMaxParameterBytes] = {};
  // For a program that asks a node for its parameters: pointers into `parameters` of the node's own copy, made on
  // demand.
};

struct CopyTask {
  std::shared_ptr<Context> context;
  Copy copy;
  cuda::CUDA_MEMCPY3D described{};  // for a program that asks a node
  // Pageable host memory that was copied when the task was made: the program may change its own at once.
  std::shared_ptr<std::vector<std::byte>> staged;
};

struct FillTask {
  std::shared_ptr<Context> context;
  Fill fill;
};

struct HostTask {
  std::shared_ptr<Context> context;
  cuda::CUhostFn function = nullptr;
  void* user_data = nullptr;
};

struct MemoryOperationsTask {
  std::shared_ptr<Context> context;
  std::vector<cuda::CUstreamBatchMemOpParams> operations;
};

struct EmptyTask {};

struct ChildGraphTask {
  std::shared_ptr<Graph> graph;
};

struct EventRecordTask {
  std::shared_ptr<Event> event;
};

struct EventWaitTask {
  std::shared_ptr<Event> event;
};

using Task = std::variant<KernelTask, CopyTask, FillTask, HostTask, MemoryOperationsTask, EmptyTask, ChildGraphTask,
                          EventRecordTask, EventWaitTask>;

// Executes on a stream's thread. A task that fails breaks its context.
cuda::CUresult run_task(Worker& worker, const Task& task);

// Queues the task on the stream or, while the stream is capturing, adds it to the graph.
cuda::CUresult issue(const std::shared_ptr<Stream>& stream, Task task);
// The same, and waits for it; not allowed while capturing.
cuda::CUresult issue_and_wait(const std::shared_ptr<Stream>& stream, Task task);

// CUDA_ERROR_INVALID_VALUE for a grid or block that no GPU takes.
cuda::CUresult check_dimensions(const KernelTask& task);
// Takes a launch's parameters from its two forms. CUDA_ERROR_INVALID_VALUE if they do not fit the kernel.
cuda::CUresult read_parameters(const Function& function, void** kernel_params, void** extra, KernelTask* task);

}  // namespace gpumux::sim
