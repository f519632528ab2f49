// SPDX-License-Identifier: Apache-2.0
// Everything that the simulated driver knows in one process. Made by cuInit, never destroyed: other threads may be in
// the driver while the program's main returns.
//
// A forked child of an initialised process has no driver: threads, mappings and the slot in the machine are its
// parent's. Every call but cuInit's returns CUDA_ERROR_NOT_INITIALIZED there, and so does cuInit itself.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/abi.h"
#include "sim/cuda/address_space.h"
#include "sim/cuda/context.h"
#include "sim/cuda/event.h"
#include "sim/cuda/handle_table.h"
#include "sim/cuda/machine.h"
#include "sim/cuda/managed.h"
#include "sim/cuda/time_slice.h"

namespace gpumux::sim {

struct Module;
struct Function;
struct Library;
struct MemoryPool;
struct Graph;
struct GraphExec;

// One GPU as the program sees it.
struct Device {
  Device(Machine& machine, std::uint32_t gpu_index, int device_ordinal)
      : gpu(gpu_index), ordinal(device_ordinal), turn(machine, gpu_index) {}

  const std::uint32_t gpu;  // in the machine
  const int ordinal;        // CUdevice: differs from `gpu` under CUDA_VISIBLE_DEVICES
  ComputeTurn turn;

  std::mutex mutex;  // guards the rest
  std::shared_ptr<Context> primary;
  unsigned primary_retains = 0;
  unsigned primary_flags = 0;
  std::shared_ptr<MemoryPool> default_pool;
  std::shared_ptr<MemoryPool> current_pool;
};

class Process {
 public:
  static cuda::CUresult initialise();
  // Null before cuInit and in a forked child.
  static Process* get();

  Machine& machine() { return machine_; }
  AddressSpace& space() { return space_; }
  // Null: no such device.
  Device* device(int ordinal);
  Device* device_of_gpu(std::uint32_t gpu);
  int device_count() const { return static_cast<int>(devices_.size()); }

  HandleTable<Context> contexts;
  HandleTable<Stream> streams;
  HandleTable<Event> events;
  HandleTable<Module> modules;
  HandleTable<Function> functions;
  HandleTable<Library> libraries;
  HandleTable<MemoryPool> pools;
  HandleTable<MemoryPool> ending_pools;  // destroyed, and something of them is still allocated
  HandleTable<Graph> graphs;
  HandleTable<GraphExec> graph_execs;

  // Handles of the virtual memory API are numbers with a count of references.
  struct MemoryHandle {
    std::shared_ptr<PhysicalMemory> memory;
    cuda::CUmemAllocationProp properties{};
    unsigned references = 1;
    bool imported = false;  // and cannot be exported, as with the real driver
  };
  std::mutex memory_handles_mutex;
  std::map<std::uint64_t, MemoryHandle> memory_handles;  // by PhysicalMemory::id

  ManagedPlaces managed;

  void forget_modules(const Context& context);

 private:
  Process(Machine& machine, AddressSpace& space) : machine_(machine), space_(space) {}

  Machine& machine_;
  AddressSpace& space_;
  std::vector<std::unique_ptr<Device>> devices_;
};

// The driver's state of the calling thread.
struct ThreadState {
  ThreadState();
  ~ThreadState();
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

  const std::uint64_t id;
  std::vector<std::shared_ptr<Context>> stack;  // the last one is current; entries may be null
  cuda::CUstreamCaptureMode capture_mode = cuda::CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::vector<std::weak_ptr<Context>> contexts_with_stream;

  std::shared_ptr<Context> current() const { return stack.empty() ? nullptr : stack.back(); }
};
ThreadState& thread_state();

}  // namespace gpumux::sim
