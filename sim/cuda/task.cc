// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/task.h"

#include <algorithm>
#include <cstring>

#include "sim/cuda/capture.h"
#include "sim/cuda/graph.h"
#include "sim/cuda/process.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

// How often a stream that waits for a value in memory looks at it: soon at first, then rarely.
constexpr base::Duration kFirstLook{10'000};
constexpr base::Duration kLastLook{200'000};

// While it exists, a stream's memory operation runs: it stands still with the context's kernels.
class Running {
 public:
  Running(Worker& worker, Freezer& kernels) : kernels_(kernels) {
    while (!kernels_.enter()) {
      worker.let_go();  // a freeze waits for a kernel's end
      kernels_.wait_for_thaw();
    }
  }
  ~Running() { kernels_.leave(); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Freezer& kernels_;
};

template <class T>
bool reached(T seen, T wanted, unsigned flags) {
  constexpr unsigned kComparison = 3;
  switch (flags & kComparison) {
    case cuda::CU_STREAM_WAIT_VALUE_GEQ:
      // As the driver defines it: cyclic, so that counters may wrap around.
      return static_cast<std::make_signed_t<T>>(seen - wanted) >= 0;
    case cuda::CU_STREAM_WAIT_VALUE_EQ: return seen == wanted;
    case cuda::CU_STREAM_WAIT_VALUE_AND: return (seen & wanted) != 0;
    default: return static_cast<T>(~(seen | wanted)) != 0;
  }
}

template <class T>
CUresult wait_value(Worker& worker, Context& context, std::uint64_t address, T wanted, unsigned flags) {
  const Accessor who = context.accessor(true);
  worker.let_go();
  for (base::Duration look = kFirstLook;; look = std::min(look * 5 / 4, kLastLook)) {
    if (context.error() != cuda::CUDA_SUCCESS) return context.error();
    {
      const Running running(worker, context.kernels());
      const AddressSpace::Reader reader(context.process().space());
      const std::byte* there = reader.resolve(address, sizeof(T), who, Touch::kRead);
      if (there == nullptr) return cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
      if (reached(__atomic_load_n(reinterpret_cast<const T*>(there), __ATOMIC_SEQ_CST), wanted, flags))
        return cuda::CUDA_SUCCESS;
    }
    sleep_until(now() + look);
  }
}

template <class T>
CUresult write_value(Worker& worker, Context& context, std::uint64_t address, T value) {
  const Running running(worker, context.kernels());
  const AddressSpace::Reader reader(context.process().space());
  std::byte* there = reader.resolve(address, sizeof(T), context.accessor(true), Touch::kWrite);
  if (there == nullptr) return cuda::CUDA_ERROR_ILLEGAL_ADDRESS;
  __atomic_store_n(reinterpret_cast<T*>(there), value, __ATOMIC_SEQ_CST);
  return cuda::CUDA_SUCCESS;
}

CUresult run_memory_operations(Worker& worker, const MemoryOperationsTask& task) {
  Context& context = *task.context;
  for (const cuda::CUstreamBatchMemOpParams& operation : task.operations) {
    CUresult result = cuda::CUDA_SUCCESS;
    const auto& wait = operation.waitValue;
    const auto& write = operation.writeValue;
    switch (operation.operation) {
      case cuda::CU_STREAM_MEM_OP_WAIT_VALUE_32:
        result = wait_value<std::uint32_t>(worker, context, wait.address, wait.value, wait.flags);
        break;
      case cuda::CU_STREAM_MEM_OP_WAIT_VALUE_64:
        result = wait_value<std::uint64_t>(worker, context, wait.address, wait.value64, wait.flags);
        break;
      case cuda::CU_STREAM_MEM_OP_WRITE_VALUE_32:
        result = write_value<std::uint32_t>(worker, context, write.address, write.value);
        break;
      case cuda::CU_STREAM_MEM_OP_WRITE_VALUE_64:
        result = write_value<std::uint64_t>(worker, context, write.address, write.value64);
        break;
      case cuda::CU_STREAM_MEM_OP_BARRIER:
      case cuda::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: break;  // everything here is ordered anyway
    }
    if (result != cuda::CUDA_SUCCESS) return result;
  }
  return cuda::CUDA_SUCCESS;
}

struct Runner {
  Worker& worker;

  // A task that fails breaks its own context, which in a graph is not always the stream's.
  CUresult in(Context& context, CUresult result) const {
    if (result != cuda::CUDA_SUCCESS) context.fail(result);
    return result;
  }

  CUresult operator()(const KernelTask& task) const {
    return in(*task.context, task.function->kernel->run(worker, *task.context, task.parameters));
  }
  CUresult operator()(const CopyTask& task) const {
    return in(*task.context, run_copy(worker, *task.context, task.copy));
  }
  CUresult operator()(const FillTask& task) const {
    return in(*task.context, run_fill(worker, *task.context, task.fill));
  }
  CUresult operator()(const HostTask& task) const {
    worker.let_go();
    worker.settle();
    task.context->host_thread().call([function = task.function, user_data = task.user_data] { function(user_data); });
    worker.begin();
    return cuda::CUDA_SUCCESS;
  }
  CUresult operator()(const MemoryOperationsTask& task) const {
    return in(*task.context, run_memory_operations(worker, task));
  }
  CUresult operator()(const EmptyTask&) const { return cuda::CUDA_SUCCESS; }
  CUresult operator()(const ChildGraphTask& task) const { return run_graph(worker, *task.graph); }
  CUresult operator()(const EventRecordTask& task) const {
    auto over = std::make_shared<Completion>();
    over->finish(worker.time());
    const std::lock_guard lock(task.event->mutex);
    task.event->recorded = std::move(over);
    return cuda::CUDA_SUCCESS;
  }
  CUresult operator()(const EventWaitTask& task) const {
    if (const auto last = task.event->last(); last != nullptr && !last->done()) {
      worker.let_go();
      last->wait();
      worker.begin();
    }
    return cuda::CUDA_SUCCESS;
  }
};

CUresult check(const std::shared_ptr<Stream>& stream, const Task& task) {
  Context& context = *stream->context();
  if (context.destroyed()) return cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (context.error() != cuda::CUDA_SUCCESS) return context.error();
  if (const auto* copy = std::get_if<CopyTask>(&task)) return check_copy(context.process().space(), copy->copy);
  if (const auto* fill = std::get_if<FillTask>(&task)) return check_fill(fill->fill);
  return cuda::CUDA_SUCCESS;
}

// Of a fill, which is not captured.
CUresult check_ends(const std::shared_ptr<Stream>& stream, const Task& task) {
  const auto* const fill = std::get_if<FillTask>(&task);
  return fill != nullptr ? check_fill_ends(stream->context()->process().space(), fill->fill) : cuda::CUDA_SUCCESS;
}

}  // namespace

CUresult run_task(Worker& worker, const Task& task) { return std::visit(Runner{worker}, task); }

CUresult issue(const std::shared_ptr<Stream>& stream, Task task) {
  if (const CUresult result = check(stream, task); result != cuda::CUDA_SUCCESS) return result;
  if (captures_active()) {
    bool captured = false;
    const CUresult result = capture_task(stream, task, &captured);
    if (captured || result != cuda::CUDA_SUCCESS) return result;
  }
  if (const CUresult result = check_ends(stream, task); result != cuda::CUDA_SUCCESS) return result;
  Operation operation;
  operation.run = [task = std::move(task)](Worker& worker) { return run_task(worker, task); };
  stream->context()->submit(*stream, std::move(operation));
  return cuda::CUDA_SUCCESS;
}

CUresult issue_and_wait(const std::shared_ptr<Stream>& stream, Task task) {
  if (const CUresult result = check(stream, task); result != cuda::CUDA_SUCCESS) return result;
  if (const CUresult result = check_ends(stream, task); result != cuda::CUDA_SUCCESS) return result;
  if (const CUresult result = may_wait_for(stream); result != cuda::CUDA_SUCCESS) return result;
  Operation operation;
  operation.run = [task = std::move(task)](Worker& worker) {
    const CUresult result = run_task(worker, task);
    worker.settle();
    return result;
  };
  stream->context()->submit(*stream, std::move(operation))->wait();
  return stream->context()->error();
}

CUresult check_dimensions(const KernelTask& task) {
  constexpr unsigned kMostThreads = 1024;
  constexpr unsigned kMostThreadsZ = 64;
  constexpr unsigned kMostBlocksX = 2147483647;
  constexpr unsigned kMostBlocksYZ = 65535;
  constexpr unsigned kMostSharedBytes = 227 * 1024;
  const auto& grid = task.grid;
  const auto& block = task.block;
  const auto within = [](unsigned value, unsigned most) { return value != 0 && value <= most; };
  const bool fits = within(grid[0], kMostBlocksX) && within(grid[1], kMostBlocksYZ) && within(grid[2], kMostBlocksYZ) &&
                    within(block[0], kMostThreads) && within(block[1], kMostThreads) &&
                    within(block[2], kMostThreadsZ) && block[0] * block[1] * block[2] <= kMostThreads &&
                    task.shared_bytes <= kMostSharedBytes;
  return fits ? cuda::CUDA_SUCCESS : cuda::CUDA_ERROR_INVALID_VALUE;
}

CUresult read_parameters(const Function& function, void** kernel_params, void** extra, KernelTask* task) {
  const BuiltinKernel& kernel = *function.kernel;
  if (kernel_params != nullptr) {
    if (extra != nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < kernel.parameters; ++i) {
      if (kernel_params[i] == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
      std::memcpy(task->parameters + kernel.offsets[i], kernel_params[i], kernel.sizes[i]);
    }
    return cuda::CUDA_SUCCESS;
  }
  if (extra == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  const void* buffer = nullptr;
  std::size_t bytes = 0;
  for (std::size_t i = 0; reinterpret_cast<std::uintptr_t>(extra[i]) != cuda::kLaunchParamEnd; i += 2) {
    switch (reinterpret_cast<std::uintptr_t>(extra[i])) {
      case cuda::kLaunchParamBufferPointer: buffer = extra[i + 1]; break;
      case cuda::kLaunchParamBufferSize: bytes = *static_cast<const std::size_t*>(extra[i + 1]); break;
      default: return cuda::CUDA_ERROR_INVALID_VALUE;
    }
  }
  const std::size_t last = kernel.parameters - 1;
  const std::size_t needed = std::size_t{kernel.offsets[last]} + kernel.sizes[last];
  if (buffer == nullptr || bytes < needed) return cuda::CUDA_ERROR_INVALID_VALUE;
  std::memcpy(task->parameters, buffer, needed);
  return cuda::CUDA_SUCCESS;
}

}  // namespace gpumux::sim
