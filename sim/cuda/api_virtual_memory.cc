// SPDX-License-Identifier: Apache-2.0
// Entry points: the virtual memory API (addresses, physical memory, mappings, rights, sharing by descriptor), legacy
// IPC.
//
// These need no context, work in a broken one, and wait for nothing: unmapping memory that a kernel uses kills the
// kernel.
#include <fcntl.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "sim/cuda/api.h"
#include "sim/cuda/memory.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

// The GPU of a location on a device of this process.
CUresult gpu_of(Process& process, const cuda::CUmemLocation& location, std::uint32_t* gpu) {
  if (location.type != cuda::CU_MEM_LOCATION_TYPE_DEVICE) return cuda::CUDA_ERROR_NOT_SUPPORTED;
  const Device* device = process.device(location.id);
  if (device == nullptr) return cuda::CUDA_ERROR_INVALID_DEVICE;
  *gpu = device->gpu;
  return cuda::CUDA_SUCCESS;
}

CUresult check_properties(Process& process, const cuda::CUmemAllocationProp* properties, std::uint32_t* gpu) {
  if (properties == nullptr || properties->type != cuda::CU_MEM_ALLOCATION_TYPE_PINNED)
    return cuda::CUDA_ERROR_INVALID_VALUE;
  constexpr unsigned kShareable = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if ((properties->requestedHandleTypes & ~kShareable) != 0) return cuda::CUDA_ERROR_NOT_SUPPORTED;
  return gpu_of(process, properties->location, gpu);
}

std::uint64_t add_handle(Process& process, std::shared_ptr<PhysicalMemory> memory,
                         const cuda::CUmemAllocationProp& properties, bool imported = false) {
  const std::lock_guard lock(process.memory_handles_mutex);
  const std::uint64_t id = memory->id();
  process.memory_handles[id] = Process::MemoryHandle{std::move(memory), properties, 1, imported};
  return id;
}

// A handle's memory and properties; nothing if it is not one.
std::optional<Process::MemoryHandle> find_handle(Process& process, std::uint64_t handle) {
  const std::lock_guard lock(process.memory_handles_mutex);
  const auto found = process.memory_handles.find(handle);
  if (found == process.memory_handles.end()) return std::nullopt;
  return found->second;
}

cuda::CUmemAllocationProp properties_of(Process& process, const PhysicalMemory& memory) {
  cuda::CUmemAllocationProp properties{};
  properties.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = cuda::CU_MEM_LOCATION_TYPE_DEVICE;
  const Device* device = process.device_of_gpu(memory.gpu());
  properties.location.id = device == nullptr ? cuda::kDeviceInvalid : device->ordinal;
  return properties;
}

bool is_page(std::uint64_t value) { return value % kPageBytes == 0; }

// The content of a legacy IPC handle. The importer opens the exporter's descriptor by way of /proc, and checks it.
struct IpcHandle {
  std::uint64_t machine;
  std::int64_t pid;
  std::int32_t fd;
  std::uint32_t zero;
  std::uint64_t inode;
  std::uint64_t bytes;   // of the allocation
  std::uint64_t offset;  // of the pointer that was exported, always that of its allocation: 0
};
static_assert(sizeof(IpcHandle) <= cuda::kIpcHandleBytes);

}  // namespace
}  // namespace gpumux::sim

namespace gpumux::cuda {

using namespace gpumux::sim;

extern "C" {

CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  return driver_call("cuMemGetAllocationGranularity", [&](Process& process) {
    std::uint32_t gpu = 0;
    if (granularity == nullptr || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = check_properties(process, properties, &gpu); result != CUDA_SUCCESS) return result;
    *granularity = kPageBytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressReserve(CUdeviceptr* pointer, std::size_t size, std::size_t alignment, CUdeviceptr address,
                             unsigned long long flags) {
  return driver_call("cuMemAddressReserve", [&](Process& process) {
    if (pointer == nullptr || size == 0 || !is_page(size) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((alignment & (alignment - 1)) != 0) return CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t base = process.space().reserve(size, alignment, address);
    if (base == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = base;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressFree(CUdeviceptr pointer, std::size_t size) {
  return driver_call("cuMemAddressFree", [&](Process& process) {
    return process.space().unreserve(pointer, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
  return driver_call("cuMemCreate", [&](Process& process) {
    std::uint32_t gpu = 0;
    if (handle == nullptr || size == 0 || !is_page(size) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = check_properties(process, properties, &gpu); result != CUDA_SUCCESS) return result;
    if (size > process.machine().settings().usable_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
    auto memory = PhysicalMemory::create(process.machine(), gpu, size);
    if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    memory->set_properties(*properties);
    *handle = add_handle(process, std::move(memory), *properties);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return driver_call("cuMemRelease", [&](Process& process) {
    std::shared_ptr<PhysicalMemory> gone;  // freed after the lock, unless it is still mapped
    const std::lock_guard lock(process.memory_handles_mutex);
    const auto found = process.memory_handles.find(handle);
    if (found == process.memory_handles.end()) return CUDA_ERROR_INVALID_VALUE;
    if (--found->second.references == 0) {
      gone = std::move(found->second.memory);
      process.memory_handles.erase(found);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return driver_call("cuMemRetainAllocationHandle", [&](Process& process) {
    const auto mapping = process.space().find(reinterpret_cast<std::uint64_t>(address));
    if (handle == nullptr || !mapping || mapping->kind != MemoryKind::kMapped) return CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t id = mapping->memory->id();
    const std::lock_guard lock(process.memory_handles_mutex);
    auto& kept = process.memory_handles[id];
    if (kept.memory == nullptr) {
      // It was released, and lives by its mapping alone.
      kept = Process::MemoryHandle{mapping->memory, properties_of(process, *mapping->memory), 0, false};
    }
    ++kept.references;
    *handle = id;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  return driver_call("cuMemGetAllocationPropertiesFromHandle", [&](Process& process) {
    const auto found = find_handle(process, handle);
    if (properties == nullptr || !found) return CUDA_ERROR_INVALID_VALUE;
    *properties = found->properties;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemMap(CUdeviceptr pointer, std::size_t size, std::size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return driver_call("cuMemMap", [&](Process& process) {
    const auto found = find_handle(process, handle);
    if (!found || size == 0 || !is_page(pointer) || !is_page(size) || !is_page(offset) || flags != 0)
      return CUDA_ERROR_INVALID_VALUE;
    if (offset > found->memory->bytes() || size > found->memory->bytes() - offset) return CUDA_ERROR_INVALID_VALUE;
    if (!process.space().reserved(pointer, size)) return CUDA_ERROR_INVALID_VALUE;
    Mapping mapping;
    mapping.base = pointer;
    mapping.bytes = size;
    mapping.kind = MemoryKind::kMapped;
    mapping.memory = found->memory;
    mapping.offset = offset;
    mapping.allocation = pointer;
    mapping.allocation_bytes = size;
    switch (process.space().map(std::move(mapping))) {
      case AddressSpace::MapResult::kOk: return CUDA_SUCCESS;
      case AddressSpace::MapResult::kOverlap: return CUDA_ERROR_INVALID_VALUE;
      case AddressSpace::MapResult::kSystem: return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_ERROR_UNKNOWN;
  });
}

CUresult cuMemUnmap(CUdeviceptr pointer, std::size_t size) {
  return driver_call("cuMemUnmap", [&](Process& process) {
    const auto mapping = process.space().find(pointer);
    if (!mapping || mapping->kind != MemoryKind::kMapped || size == 0) return CUDA_ERROR_INVALID_VALUE;
    return process.space().unmap(pointer, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemSetAccess(CUdeviceptr pointer, std::size_t size, const CUmemAccessDesc* descriptor, std::size_t count) {
  return driver_call("cuMemSetAccess", [&](Process& process) {
    if (descriptor == nullptr || count == 0 || size == 0) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t gpu = 0;
      const bool flags = descriptor[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ||
                         descriptor[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
                         descriptor[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      if (!flags) return CUDA_ERROR_INVALID_VALUE;
      if (const CUresult result = gpu_of(process, descriptor[i].location, &gpu); result != CUDA_SUCCESS) return result;
      const auto mapping = process.space().find(pointer);
      if (!mapping || mapping->kind != MemoryKind::kMapped) return CUDA_ERROR_INVALID_VALUE;
      if (mapping->memory->gpu() != gpu && process.machine().settings().peers == 0) return CUDA_ERROR_INVALID_DEVICE;
      if (!process.space().set_access(pointer, size, gpu, static_cast<std::uint8_t>(descriptor[i].flags)))
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr pointer) {
  return driver_call("cuMemGetAccess", [&](Process& process) {
    std::uint32_t gpu = 0;
    const auto mapping = process.space().find(pointer);
    if (flags == nullptr || location == nullptr || !mapping || mapping->kind != MemoryKind::kMapped)
      return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = gpu_of(process, *location, &gpu); result != CUDA_SUCCESS) return result;
    *flags = mapping->access[gpu];
    return CUDA_SUCCESS;
  });
}

CUresult cuMemExportToShareableHandle(void* shareable_handle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handle_type, unsigned long long flags) {
  return driver_call("cuMemExportToShareableHandle", [&](Process& process) {
    const auto found = find_handle(process, handle);
    if (shareable_handle == nullptr || !found || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (handle_type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    if ((found->properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0 || found->imported)
      return CUDA_ERROR_INVALID_VALUE;
    if (!process.space().give_own_file(*found->memory)) return CUDA_ERROR_OUT_OF_MEMORY;
    const int fd = ::fcntl(found->memory->fd(), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int*>(shareable_handle) = fd;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                        CUmemAllocationHandleType sh_handle_type) {
  return driver_call("cuMemImportFromShareableHandle", [&](Process& process) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (sh_handle_type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    bool foreign = false;
    const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(os_handle));
    auto memory = PhysicalMemory::import(process.machine(), fd, &foreign);
    if (memory == nullptr) return foreign ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    const CUmemAllocationProp properties = properties_of(process, *memory);
    *handle = add_handle(process, std::move(memory), properties, true);
    return CUDA_SUCCESS;
  });
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  return context_call("cuIpcGetMemHandle", [&](const std::shared_ptr<Context>& context) {
    Process& process = context->process();
    const auto mapping = process.space().find(pointer);
    // Only what cuMemAlloc gave; the virtual memory API has its own way.
    if (handle == nullptr || !mapping || mapping->kind != MemoryKind::kDevice) return CUDA_ERROR_INVALID_VALUE;
    if (!process.space().give_own_file(*mapping->memory)) return CUDA_ERROR_OUT_OF_MEMORY;
    IpcHandle inside{};
    inside.machine = process.machine().id();
    inside.pid = ::getpid();
    inside.fd = mapping->memory->fd();
    inside.inode = mapping->memory->inode();
    inside.bytes = mapping->allocation_bytes;
    *handle = CUipcMemHandle{};
    std::memcpy(handle->reserved, &inside, sizeof inside);
    return CUDA_SUCCESS;
  });
}

static CUresult open_ipc(const char* entry, CUdeviceptr* pointer, const CUipcMemHandle& handle, unsigned int flags) {
  return context_call(entry, [&](const std::shared_ptr<Context>& context) {
    Process& process = context->process();
    if (pointer == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    IpcHandle inside{};
    std::memcpy(&inside, handle.reserved, sizeof inside);
    if (inside.machine != process.machine().id()) return CUDA_ERROR_INVALID_HANDLE;
    // The exporter itself cannot open it.
    if (inside.pid == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%" PRId64 "/fd/%d", inside.pid, inside.fd);
    os::FileDescriptor file(::open(path, O_RDWR | O_CLOEXEC));
    bool foreign = true;
    const auto memory = file ? PhysicalMemory::import(process.machine(), file.get(), &foreign) : nullptr;
    if (memory == nullptr) return foreign ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_OUT_OF_MEMORY;
    // The descriptor's number may mean something else by now.
    if (memory->inode() != inside.inode || inside.bytes > memory->bytes()) return CUDA_ERROR_INVALID_HANDLE;
    std::uint64_t address = 0;
    const CUresult result = map_imported(*context, memory, inside.bytes, &address);
    if (result == CUDA_SUCCESS) *pointer = address;
    return result;
  });
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned int flags) {
  return open_ipc("cuIpcOpenMemHandle", pointer, handle, flags);
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned int flags) {
  return open_ipc("cuIpcOpenMemHandle_v2", pointer, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
  return context_call("cuIpcCloseMemHandle", [&](const std::shared_ptr<Context>& context) {
    const auto mapping = context->process().space().find(pointer);
    if (!mapping || mapping->kind != MemoryKind::kImported || mapping->base != pointer) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = context->synchronize(); result != CUDA_SUCCESS) return result;
    context->disown(pointer);
    return free_allocation(context->process(), pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

}  // extern "C"
}  // namespace gpumux::cuda
