// SPDX-License-Identifier: Apache-2.0
// Entry points: stream-ordered allocation and memory pools.
#include "sim/cuda/api.h"
#include "sim/cuda/memory_pool.h"
#include "sim/cuda/task.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

CUresult allocate_from(const std::shared_ptr<Stream>& stream, const std::shared_ptr<MemoryPool>& pool,
                       cuda::CUdeviceptr* pointer, std::size_t bytes) {
  if (pointer == nullptr || bytes == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  // Allocation nodes in graphs are not modelled.
  if (capturing(stream)) return cuda::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  std::uint64_t address = 0;
  const CUresult result = pool->allocate(*stream, bytes, &address);
  if (result == cuda::CUDA_SUCCESS) *pointer = address;
  return result;
}

CUresult allocate(const char* entry, bool per_thread, cuda::CUdeviceptr* pointer, std::size_t bytes,
                  cuda::CUstream handle) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    Context& context = *stream->context();
    return allocate_from(stream, current_pool(context.process(), context.device()), pointer, bytes);
  });
}

CUresult allocate_from_pool(const char* entry, bool per_thread, cuda::CUdeviceptr* pointer, std::size_t bytes,
                            cuda::CUmemoryPool handle, cuda::CUstream stream_handle) {
  return stream_call(entry, stream_handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    const auto pool = stream->context()->process().pools.find(handle);
    if (pool == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    return allocate_from(stream, pool, pointer, bytes);
  });
}

CUresult free_in_order(const char* entry, bool per_thread, cuda::CUdeviceptr pointer, cuda::CUstream handle) {
  bool is_plain = false;
  const CUresult result = stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    Process& process = stream->context()->process();
    const auto mapping = process.space().find(pointer);
    if (!mapping || mapping->base != pointer) return cuda::CUDA_ERROR_INVALID_VALUE;
    is_plain = mapping->kind == MemoryKind::kDevice && !capturing(stream);
    if (is_plain) return cuda::CUDA_SUCCESS;
    if (mapping->kind != MemoryKind::kPool) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (capturing(stream)) return cuda::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const auto pool = pool_of_memory(process, mapping->pool);
    if (pool == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    const auto point = stream->context()->submit(*stream, Operation());
    return pool->free(pointer, stream->id(), point) ? cuda::CUDA_SUCCESS : cuda::CUDA_ERROR_INVALID_VALUE;
  });
  // Memory from cuMemAlloc is no pool's. This driver waits for all work before it takes it back.
  return is_plain ? cuda::cuMemFree_v2(pointer) : result;
}

template <class Body>
CUresult pool_call(const char* entry, cuda::CUmemoryPool handle, Body body) {
  return driver_call(entry, [&](Process& process) {
    const auto pool = process.pools.find(handle);
    if (pool == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    return static_cast<CUresult>(body(process, pool));
  });
}

CUresult gpu_at(Process& process, const cuda::CUmemLocation& location, std::uint32_t* gpu) {
  const Device* device = location.type == cuda::CU_MEM_LOCATION_TYPE_DEVICE ? process.device(location.id) : nullptr;
  if (device == nullptr) return cuda::CUDA_ERROR_INVALID_DEVICE;
  *gpu = device->gpu;
  return cuda::CUDA_SUCCESS;
}

}  // namespace
}  // namespace gpumux::sim

namespace gpumux::cuda {

using namespace gpumux::sim;

extern "C" {

GPUMUX_SIM_STREAM_ENTRY(cuMemAllocAsync, _ptsz, (CUdeviceptr * pointer, std::size_t bytes, CUstream stream), allocate,
                        pointer, bytes, stream)
GPUMUX_SIM_STREAM_ENTRY(cuMemAllocFromPoolAsync, _ptsz,
                        (CUdeviceptr * pointer, std::size_t bytes, CUmemoryPool pool, CUstream stream),
                        allocate_from_pool, pointer, bytes, pool, stream)
GPUMUX_SIM_STREAM_ENTRY(cuMemFreeAsync, _ptsz, (CUdeviceptr pointer, CUstream stream), free_in_order, pointer, stream)

CUresult cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* pool_props) {
  return driver_call("cuMemPoolCreate", [&](Process& process) {
    if (handle == nullptr || pool_props == nullptr || pool_props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
      return CUDA_ERROR_INVALID_VALUE;
    if (pool_props->handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
    Device* device =
        pool_props->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? process.device(pool_props->location.id) : nullptr;
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    auto pool = std::make_shared<MemoryPool>(process, *device);
    pool->max_bytes = pool_props->maxSize;
    *handle = process.pools.add<CUmemoryPool>(std::move(pool));
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return pool_call("cuMemPoolDestroy", handle, [&](Process& process, const std::shared_ptr<MemoryPool>& pool) {
    if (pool->is_default) return CUDA_ERROR_INVALID_VALUE;
    process.pools.remove(handle);
    {
      const std::lock_guard lock(pool->device.mutex);
      if (pool->device.current_pool == pool) pool->device.current_pool = nullptr;
    }
    end_pool(process, pool);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, std::size_t min_bytes_to_keep) {
  return pool_call("cuMemPoolTrimTo", handle, [&](Process&, const std::shared_ptr<MemoryPool>& pool) {
    pool->trim(min_bytes_to_keep);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return pool_call("cuMemPoolGetAttribute", handle, [&](Process&, const std::shared_ptr<MemoryPool>& pool) {
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE : pool->get(attribute, value);
  });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return pool_call("cuMemPoolSetAttribute", handle, [&](Process&, const std::shared_ptr<MemoryPool>& pool) {
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE : pool->set(attribute, value);
  });
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* map, std::size_t count) {
  return pool_call("cuMemPoolSetAccess", handle, [&](Process& process, const std::shared_ptr<MemoryPool>& pool) {
    if (map == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t gpu = 0;
      if (const CUresult result = gpu_at(process, map[i].location, &gpu); result != CUDA_SUCCESS) return result;
      if (const CUresult result = pool->set_access(gpu, static_cast<std::uint8_t>(map[i].flags));
          result != CUDA_SUCCESS)
        return result;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  return pool_call("cuMemPoolGetAccess", handle, [&](Process& process, const std::shared_ptr<MemoryPool>& pool) {
    std::uint32_t gpu = 0;
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = gpu_at(process, *location, &gpu); result != CUDA_SUCCESS) return result;
    *flags = static_cast<CUmemAccess_flags>(pool->access_of(gpu));
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice ordinal) {
  return device_call("cuDeviceGetDefaultMemPool", ordinal, [&](Device& device) {
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pool = handle_of<CUmemoryPool>(default_pool(*Process::get(), device));
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice ordinal) {
  return device_call("cuDeviceGetMemPool", ordinal, [&](Device& device) {
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pool = handle_of<CUmemoryPool>(current_pool(*Process::get(), device));
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
  return device_call("cuDeviceSetMemPool", ordinal, [&](Device& device) {
    auto pool = Process::get()->pools.find(handle);
    if (pool == nullptr || &pool->device != &device) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(device.mutex);
    device.current_pool = std::move(pool);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
}  // namespace gpumux::cuda
