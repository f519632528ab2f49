// SPDX-License-Identifier: Apache-2.0
// Entry points: device memory, host memory, managed memory, facts about pointers.
#include <cstring>
#include <span>

#include "sim/cuda/api.h"
#include "sim/cuda/memory.h"
#include "sim/cuda/memory_pool.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

constexpr std::size_t kPitchStep = 512;

// Before freeing the driver waits for what may still use the memory: the work of the context that owns it.
CUresult quiesce(Process& process, std::uint64_t context_id) {
  for (const auto& context : process.contexts.all()) {
    if (context->id() != context_id || context->destroyed()) continue;
    if (const CUresult result = context->synchronize(); result != cuda::CUDA_SUCCESS) return result;
  }
  return cuda::CUDA_SUCCESS;
}

void forget(Process& process, std::uint64_t context_id, std::uint64_t address) {
  for (const auto& context : process.contexts.all()) {
    if (context->id() == context_id) context->disown(address);
  }
}

template <class Body>
CUresult allocation_call(const char* entry, std::size_t bytes, const void* out, Body body) {
  return context_call(entry, [&](const std::shared_ptr<Context>& context) {
    if (out == nullptr || bytes == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = may_call_unsafe(); result != cuda::CUDA_SUCCESS) return result;
    return static_cast<CUresult>(body(*context));
  });
}

CUresult free_memory(const char* entry, cuda::CUdeviceptr pointer) {
  return context_call(entry, [&](const std::shared_ptr<Context>& context) {
    Process& process = context->process();
    if (pointer == 0) return cuda::CUDA_SUCCESS;
    if (const CUresult result = may_call_unsafe(); result != cuda::CUDA_SUCCESS) return result;
    const auto mapping = process.space().find(pointer);
    if (!mapping || mapping->base != pointer) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (mapping->kind == MemoryKind::kPool) {
      // Stream-ordered memory may be freed this way too: after everything.
      if (const CUresult result = context->synchronize(); result != cuda::CUDA_SUCCESS) return result;
      auto past = std::make_shared<Completion>();
      past->finish(now());
      const auto pool = pool_of_memory(process, mapping->pool);
      return pool != nullptr && pool->free(pointer, 0, std::move(past)) ? cuda::CUDA_SUCCESS
                                                                        : cuda::CUDA_ERROR_INVALID_VALUE;
    }
    if (mapping->kind != MemoryKind::kDevice && mapping->kind != MemoryKind::kManaged)
      return cuda::CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = quiesce(process, mapping->context); result != cuda::CUDA_SUCCESS) return result;
    forget(process, mapping->context, pointer);
    return free_allocation(process, pointer) ? cuda::CUDA_SUCCESS : cuda::CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult free_host(const char* entry, void* pointer, bool registered) {
  return context_call(entry, [&](const std::shared_ptr<Context>& context) {
    Process& process = context->process();
    const auto address = reinterpret_cast<std::uint64_t>(pointer);
    if (const CUresult result = may_call_unsafe(); result != cuda::CUDA_SUCCESS) return result;
    const auto mapping = process.space().find(address);
    if (!mapping || mapping->kind != MemoryKind::kHost || mapping->base != address ||
        mapping->registered != registered) {
      return registered ? cuda::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : cuda::CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result = quiesce(process, mapping->context); result != cuda::CUDA_SUCCESS) return result;
    forget(process, mapping->context, address);
    return free_allocation(process, address) ? cuda::CUDA_SUCCESS : cuda::CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult host_register(const char* entry, void* pointer, std::size_t bytes, unsigned flags) {
  return allocation_call(entry, bytes, pointer,
                         [&](Context& context) { return register_host(context, pointer, bytes, flags); });
}

template <class T>
void put(void* data, T value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  std::memcpy(data, bytes.data(), bytes.size());
}

// The context whose id it is, as a handle.
cuda::CUcontext context_handle(Process& process, std::uint64_t id) {
  for (const auto& context : process.contexts.all()) {
    if (context->id() == id) return handle_of<cuda::CUcontext>(context);
  }
  return nullptr;
}

int ordinal_of(Process& process, const Mapping& mapping) {
  if (mapping.kind == MemoryKind::kHost || mapping.memory->gpu() == kHostMemory) {
    for (const auto& context : process.contexts.all()) {
      if (context->id() == mapping.context) return context->device().ordinal;
    }
    return 0;
  }
  const Device* device = process.device_of_gpu(mapping.memory->gpu());
  return device == nullptr ? 0 : device->ordinal;
}

struct Tokens {
  unsigned long long p2p = 0;
  unsigned int address_space = 0;
};

CUresult pointer_attribute(Process& process, void* data, cuda::CUpointer_attribute attribute, std::uint64_t pointer) {
  if (data == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  const auto mapping = process.space().find(pointer);
  if (!mapping) {
    // A reservation without memory is known, but there is nothing to say of it.
    if (attribute == cuda::CU_POINTER_ATTRIBUTE_MAPPED && process.space().is_device_address(pointer)) {
      put(data, 0);
      return cuda::CUDA_SUCCESS;
    }
    return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  const bool host = mapping->kind == MemoryKind::kHost;
  const bool managed = mapping->kind == MemoryKind::kManaged;
  switch (attribute) {
    case cuda::CU_POINTER_ATTRIBUTE_CONTEXT:
      put(data, context_handle(process, mapping->context));
      return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      put(data, host ? cuda::CU_MEMORYTYPE_HOST : cuda::CU_MEMORYTYPE_DEVICE);
      return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_DEVICE_POINTER: put(data, cuda::CUdeviceptr{pointer}); return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!host && !managed) return cuda::CUDA_ERROR_INVALID_VALUE;
      put(data, pointer);
      return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: put(data, mapping->sync_memops ? 1 : 0); return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_BUFFER_ID:
      put(data, static_cast<unsigned long long>(mapping->buffer_id));
      return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_IS_MANAGED: put(data, managed ? 1 : 0); return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: put(data, ordinal_of(process, *mapping)); return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      put(data, mapping->kind == MemoryKind::kDevice ? 1 : 0);
      return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      put(data, static_cast<cuda::CUdeviceptr>(mapping->allocation));
      return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      put(data, static_cast<std::size_t>(mapping->allocation_bytes));
      return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_MAPPED: put(data, 1); return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      put(data, std::uint64_t{mapping->kind == MemoryKind::kMapped
                                  ? static_cast<unsigned>(mapping->memory->properties().requestedHandleTypes)
                                  : 0u});
      return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: {
      const bool is_mapped = mapping->kind == MemoryKind::kMapped;
      put(data, mapping->kind == MemoryKind::kDevice ||
                        (is_mapped && mapping->memory->properties().allocFlags.gpuDirectRDMACapable != 0)
                    ? 1
                    : 0);
      return cuda::CUDA_SUCCESS;
    }
    case cuda::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: {
      unsigned flags = cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      const auto current = thread_state().current();
      if (mapping->kind == MemoryKind::kMapped || mapping->kind == MemoryKind::kPool) {
        flags = current == nullptr ? 0 : mapping->access[current->device().gpu];
      }
      put(data, flags);
      return cuda::CUDA_SUCCESS;
    }
    case cuda::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: put(data, mapping->pool); return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      put(data, static_cast<std::size_t>(mapping->bytes));
      return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      put(data, static_cast<cuda::CUdeviceptr>(mapping->base));
      return cuda::CUDA_SUCCESS;
    case cuda::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      put(data, mapping->memory == nullptr ? mapping->buffer_id : mapping->memory->id());
      return cuda::CUDA_SUCCESS;
    // As an H200 says, which cannot decompress.
    case cuda::CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      put(data, mapping->kind == MemoryKind::kDevice ? 1 : 0);
      return cuda::CUDA_SUCCESS;
    // Numbers of an H200's. With them comes SYNC_MEMOPS.
    case cuda::CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      if (host) return cuda::CUDA_ERROR_INVALID_VALUE;
      put(data, Tokens{0, 0xfe00});
      process.space().set_sync_memops(pointer, true);
      return cuda::CUDA_SUCCESS;
  }
  return cuda::CUDA_ERROR_INVALID_VALUE;
}

}  // namespace
}  // namespace gpumux::sim

namespace gpumux::cuda {

using namespace gpumux::sim;

extern "C" {

CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return context_call("cuMemGetInfo_v2", [&](const std::shared_ptr<Context>& context) {
    if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const MemoryInfo info = context->process().machine().memory(context->device().gpu);
    *free = info.total - info.used;
    *total = info.total;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, std::size_t bytes) {
  return allocation_call("cuMemAlloc_v2", bytes, pointer, [&](Context& context) {
    std::uint64_t address = 0;
    const CUresult result = allocate_device(context, bytes, &address);
    if (result == CUDA_SUCCESS) *pointer = address;
    return result;
  });
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* pointer, std::size_t* pitch, std::size_t width_in_bytes, std::size_t height,
                            unsigned int element_size_bytes) {
  return allocation_call("cuMemAllocPitch_v2", width_in_bytes, pointer, [&](Context& context) {
    const bool element = element_size_bytes == 4 || element_size_bytes == 8 || element_size_bytes == 16;
    if (pitch == nullptr || height == 0 || !element) return CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t row = round_up(width_in_bytes, kPitchStep);
    if (row < width_in_bytes || height > UINT64_MAX / row) return CUDA_ERROR_OUT_OF_MEMORY;
    std::uint64_t address = 0;
    const CUresult result = allocate_device(context, row * height, &address);
    if (result != CUDA_SUCCESS) return result;
    *pointer = address;
    *pitch = row;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAllocManaged(CUdeviceptr* pointer, std::size_t bytes, unsigned int flags) {
  return allocation_call("cuMemAllocManaged", bytes, pointer, [&](Context& context) {
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
    std::uint64_t address = 0;
    const CUresult result = allocate_managed(context, bytes, &address);
    if (result == CUDA_SUCCESS) *pointer = address;
    return result;
  });
}

CUresult cuMemFree_v2(CUdeviceptr pointer) { return free_memory("cuMemFree_v2", pointer); }

CUresult cuMemAllocHost_v2(void** pointer, std::size_t bytes) {
  return allocation_call("cuMemAllocHost_v2", bytes, pointer,
                         [&](Context& context) { return allocate_host(context, bytes, 0, pointer); });
}
CUresult cuMemAllocHost(void** pointer, unsigned int bytes) {
  return allocation_call("cuMemAllocHost", bytes, pointer,
                         [&](Context& context) { return allocate_host(context, bytes, 0, pointer); });
}
CUresult cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned int flags) {
  return allocation_call("cuMemHostAlloc", bytes, pointer, [&](Context& context) {
    constexpr unsigned kKnown = kMemHostAllocPortable | kMemHostAllocDeviceMap | kMemHostAllocWriteCombined;
    if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
    return allocate_host(context, bytes, flags, pointer);
  });
}
CUresult cuMemFreeHost(void* pointer) { return free_host("cuMemFreeHost", pointer, false); }

CUresult cuMemHostRegister(void* pointer, std::size_t bytes, unsigned int flags) {
  return host_register("cuMemHostRegister", pointer, bytes, flags);
}
CUresult cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned int flags) {
  return host_register("cuMemHostRegister_v2", pointer, bytes, flags);
}
CUresult cuMemHostUnregister(void* pointer) { return free_host("cuMemHostUnregister", pointer, true); }

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* pointer, void* p, unsigned int flags) {
  return context_call("cuMemHostGetDevicePointer_v2", [&](const std::shared_ptr<Context>& context) {
    const auto address = reinterpret_cast<std::uint64_t>(p);
    const auto mapping = context->process().space().find(address);
    if (pointer == nullptr || flags != 0 || !mapping || mapping->kind != MemoryKind::kHost)
      return CUDA_ERROR_INVALID_VALUE;
    *pointer = address;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostGetFlags(unsigned int* flags, void* pointer) {
  return context_call("cuMemHostGetFlags", [&](const std::shared_ptr<Context>& context) {
    const auto mapping = context->process().space().find(reinterpret_cast<std::uint64_t>(pointer));
    if (flags == nullptr || !mapping || mapping->kind != MemoryKind::kHost || mapping->registered)
      return CUDA_ERROR_INVALID_VALUE;
    // With unified addressing all pinned memory is mapped.
    *flags = mapping->host_flags | kMemHostAllocDeviceMap;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size, CUdeviceptr pointer) {
  return context_call("cuMemGetAddressRange_v2", [&](const std::shared_ptr<Context>& context) {
    const auto mapping = context->process().space().find(pointer);
    if (!mapping || mapping->kind == MemoryKind::kHost) return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = mapping->allocation;
    if (size != nullptr) *size = mapping->allocation_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  return driver_call("cuPointerGetAttribute",
                     [&](Process& process) { return pointer_attribute(process, data, attribute, pointer); });
}

// Of an unknown pointer this one says zero to everything, without an error.
CUresult cuPointerGetAttributes(unsigned int attribute_count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr pointer) {
  return driver_call("cuPointerGetAttributes", [&](Process& process) {
    if (attribute_count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < attribute_count; ++i) {
      if (pointer_attribute(process, data[i], attributes[i], pointer) == CUDA_SUCCESS) continue;
      if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      switch (attributes[i]) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: put(data[i], std::uint64_t{0}); break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: put(data[i], int{kDeviceInvalid}); break;
        default: put(data[i], 0); break;
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  return driver_call("cuPointerSetAttribute", [&](Process& process) {
    const auto mapping = process.space().find(pointer);
    if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !mapping) return CUDA_ERROR_INVALID_VALUE;
    if (mapping->kind == MemoryKind::kMapped) return CUDA_ERROR_NOT_SUPPORTED;
    process.space().set_sync_memops(pointer, *static_cast<const unsigned*>(value) != 0);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
}  // namespace gpumux::cuda
