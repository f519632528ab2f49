// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/memory.h"

#include <sys/mman.h>

#include "sim/cuda/process.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

// The driver packs small allocations into blocks of 2 MiB; counting their pages comes close without the packing.
std::uint64_t physical_bytes(std::uint64_t bytes) {
  return bytes < kPageBytes ? round_up(bytes, kHostPage) : round_up(bytes, kPageBytes);
}

CUresult map_new(Context& context, MemoryKind kind, std::shared_ptr<PhysicalMemory> memory, std::uint64_t bytes,
                 std::uint64_t* address) {
  AddressSpace& space = context.process().space();
  const std::uint64_t reserved = round_up(memory->bytes(), kPageBytes);
  const std::uint64_t base = space.reserve(reserved, kPageBytes, 0);
  if (base == 0) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  Mapping mapping;
  mapping.base = base;
  mapping.bytes = memory->bytes();
  mapping.kind = kind;
  mapping.memory = std::move(memory);
  mapping.context = context.id();
  mapping.allocation = base;
  mapping.allocation_bytes = bytes;
  if (space.map(std::move(mapping)) != AddressSpace::MapResult::kOk) {
    space.unreserve(base, reserved);
    return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  }
  context.own(base);
  *address = base;
  return cuda::CUDA_SUCCESS;
}

}  // namespace

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t step) { return (bytes + step - 1) / step * step; }

CUresult allocate_device(Context& context, std::uint64_t bytes, std::uint64_t* address) {
  Process& process = context.process();
  if (bytes > process.machine().settings().usable_bytes()) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  auto memory = PhysicalMemory::create(process.machine(), context.device().gpu, physical_bytes(bytes));
  if (memory == nullptr) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  return map_new(context, MemoryKind::kDevice, std::move(memory), bytes, address);
}

CUresult allocate_managed(Context& context, std::uint64_t bytes, std::uint64_t* address) {
  constexpr std::uint64_t kLargest = std::uint64_t{1} << 39;  // half of the address space
  if (bytes > kLargest) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  auto memory = PhysicalMemory::create(context.process().machine(), kHostMemory, round_up(bytes, kHostPage));
  if (memory == nullptr) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  return map_new(context, MemoryKind::kManaged, std::move(memory), bytes, address);
}

CUresult map_imported(Context& context, std::shared_ptr<PhysicalMemory> memory, std::uint64_t allocation_bytes,
                      std::uint64_t* address) {
  return map_new(context, MemoryKind::kImported, std::move(memory), allocation_bytes, address);
}

CUresult allocate_host(Context& context, std::uint64_t bytes, unsigned flags, void** address) {
  const std::uint64_t size = round_up(bytes, kHostPage);
  if (size < bytes) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  Mapping mapping;
  mapping.base = reinterpret_cast<std::uint64_t>(memory);
  mapping.bytes = size;
  mapping.context = context.id();
  mapping.allocation = mapping.base;
  mapping.allocation_bytes = bytes;
  mapping.host_flags = flags;
  // Fresh pages overlap nothing unless the program unmapped registered memory without telling us; it is not ours to
  // tell.
  if (!context.process().space().add_host(mapping)) {
    ::munmap(memory, size);
    return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  }
  context.own(mapping.base);
  *address = memory;
  return cuda::CUDA_SUCCESS;
}

CUresult register_host(Context& context, void* address, std::uint64_t bytes, unsigned flags) {
  AddressSpace& space = context.process().space();
  Mapping mapping;
  mapping.base = reinterpret_cast<std::uint64_t>(address);
  mapping.bytes = bytes;
  mapping.context = context.id();
  mapping.allocation = mapping.base;
  mapping.allocation_bytes = bytes;
  mapping.host_flags = flags;
  mapping.registered = true;
  if (space.is_device_address(mapping.base) || mapping.base + bytes < mapping.base)
    return cuda::CUDA_ERROR_INVALID_VALUE;
  if (!space.add_host(mapping)) return cuda::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  context.own(mapping.base);
  return cuda::CUDA_SUCCESS;
}

CUresult unregister_host(Process& process, void* address) {
  const auto base = reinterpret_cast<std::uint64_t>(address);
  const auto mapping = process.space().find(base);
  if (!mapping || !mapping->registered || mapping->base != base) return cuda::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  process.space().remove_host(base);
  return cuda::CUDA_SUCCESS;
}

bool free_allocation(Process& process, std::uint64_t address) {
  AddressSpace& space = process.space();
  const auto mapping = space.find(address);
  if (!mapping || mapping->base != address) return false;
  switch (mapping->kind) {
    case MemoryKind::kHost:
      if (!space.remove_host(address)) return false;
      if (!mapping->registered) ::munmap(reinterpret_cast<void*>(address), mapping->bytes);
      return true;
    case MemoryKind::kManaged: process.managed.forget(address, mapping->bytes); [[fallthrough]];
    case MemoryKind::kDevice:
    case MemoryKind::kImported:
      return space.unmap(address, mapping->bytes) && space.unreserve(address, round_up(mapping->bytes, kPageBytes));
    case MemoryKind::kMapped:
    case MemoryKind::kPool: return false;
  }
  return false;
}

}  // namespace gpumux::sim
