// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/process.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "base/units.h"
#include "sim/cuda/graph.h"
#include "sim/cuda/memory_pool.h"
#include "sim/cuda/module.h"
#include "sim/cuda/mps.h"

namespace gpumux::sim {
namespace {

std::atomic<Process*> the_process{nullptr};
std::atomic<bool> forked{false};
std::atomic<std::uint64_t> next_thread_id{1};

std::mutex& initialise_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

void in_forked_child() {
  if (the_process.load() == nullptr) return;
  forked.store(true);
  PhysicalMemory::close_arena();
}

// CUDA_VISIBLE_DEVICES: indices or UUIDs (or beginnings of them), in the program's order; GPUs after the first bad one
// are not seen.
std::vector<std::uint32_t> visible_gpus(const Machine& machine) {
  std::vector<std::uint32_t> gpus;
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    for (std::uint32_t gpu = 0; gpu < machine.settings().gpus; ++gpu) gpus.push_back(gpu);
    return gpus;
  }
  std::string_view rest = list;
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    std::string_view item = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    std::optional<std::uint32_t> found;
    if (item.substr(0, 4) == "GPU-") {
      for (std::uint32_t gpu = 0; gpu < machine.settings().gpus; ++gpu) {
        if (machine.uuid(gpu).to_string().substr(0, item.size()) != item) continue;
        if (found) return gpus;  // the beginning of several
        found = gpu;
      }
    } else if (const auto index = base::parse_integer(item, 0, kMaxGpus); index && *index < machine.settings().gpus) {
      found = static_cast<std::uint32_t>(*index);
    }
    if (!found || std::find(gpus.begin(), gpus.end(), *found) != gpus.end()) return gpus;
    gpus.push_back(*found);
  }
  return gpus;
}

}  // namespace

cuda::CUresult Process::initialise() {
  if (forked.load()) return cuda::CUDA_ERROR_NOT_INITIALIZED;
  const std::lock_guard lock(initialise_mutex());
  if (the_process.load() != nullptr) return cuda::CUDA_SUCCESS;
  const auto machine = Machine::get();
  if (!machine) {
    // There is no other place where a user would see why the machine's settings are refused.
    std::fprintf(stderr, "simulated CUDA driver: %s\n", machine.error().message().c_str());
    return cuda::CUDA_ERROR_NO_DEVICE;
  }
  const std::vector<std::uint32_t> gpus = visible_gpus(**machine);
  if (gpus.empty()) return cuda::CUDA_ERROR_NO_DEVICE;
  if (const auto joined = (*machine)->join(); !joined) {
    std::fprintf(stderr, "simulated CUDA driver: %s\n", joined.error().message().c_str());
    return cuda::CUDA_ERROR_OPERATING_SYSTEM;
  }
  if (const cuda::CUresult result = join_mps(**machine); result != cuda::CUDA_SUCCESS) return result;
  AddressSpace* space = AddressSpace::create();
  if (space == nullptr) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  auto* process = new Process(**machine, *space);
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    process->devices_.push_back(std::make_unique<Device>(**machine, gpus[i], static_cast<int>(i)));
  }
  ::pthread_atfork(nullptr, nullptr, in_forked_child);
  the_process.store(process);
  return cuda::CUDA_SUCCESS;
}

Process* Process::get() {
  return forked.load(std::memory_order_relaxed) ? nullptr : the_process.load(std::memory_order_acquire);
}

Device* Process::device(int ordinal) {
  if (ordinal < 0 || ordinal >= device_count()) return nullptr;
  return devices_[static_cast<std::size_t>(ordinal)].get();
}

Device* Process::device_of_gpu(std::uint32_t gpu) {
  for (const auto& device : devices_) {
    if (device->gpu == gpu) return device.get();
  }
  return nullptr;
}

ThreadState::ThreadState() : id(next_thread_id.fetch_add(1)) {}

ThreadState::~ThreadState() {
  if (Process::get() == nullptr) return;
  for (const auto& weak : contexts_with_stream) {
    if (const auto context = weak.lock()) context->drop_thread_stream(id);
  }
}

// A program may call the driver from its last handlers, when its thread's variables have been destroyed. So the main
// thread's state is never destroyed, and any other's is made anew.
ThreadState& thread_state() {
  constinit thread_local ThreadState* t_state = nullptr;
  struct Owner {
    ~Owner() {
      if (::gettid() == ::getpid()) return;
      delete t_state;
      t_state = nullptr;
    }
  };
  if (t_state == nullptr) {
    thread_local Owner owner;
    static_cast<void>(&owner);
    t_state = new ThreadState;
  }
  return *t_state;
}

}  // namespace gpumux::sim
