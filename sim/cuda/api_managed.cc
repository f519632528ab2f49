// SPDX-License-Identifier: Apache-2.0
// Entry points: where managed memory should be, and where it was asked to be.
#include <cstring>

#include "sim/cuda/api.h"
#include "sim/cuda/managed.h"
#include "sim/cuda/task.h"

namespace gpumux::sim {
namespace {

using cuda::CUresult;

bool is_managed(const AddressSpace& space, std::uint64_t address, std::size_t bytes) {
  const auto mapping = space.find(address);
  return mapping && mapping->kind == MemoryKind::kManaged && bytes != 0 && space.mapped(address, bytes);
}

// As the older entries name places.
cuda::CUmemLocation place_of(cuda::CUdevice device) {
  if (device == cuda::kDeviceCpu) return {cuda::CU_MEM_LOCATION_TYPE_HOST, 0};
  return {cuda::CU_MEM_LOCATION_TYPE_DEVICE, device};
}
cuda::CUdevice device_of(cuda::CUmemLocation place) {
  switch (place.type) {
    case cuda::CU_MEM_LOCATION_TYPE_DEVICE: return place.id;
    case cuda::CU_MEM_LOCATION_TYPE_INVALID: return cuda::kDeviceInvalid;
    default: return cuda::kDeviceCpu;
  }
}

CUresult check_place(Process& process, cuda::CUmemLocation place) {
  switch (place.type) {
    case cuda::CU_MEM_LOCATION_TYPE_DEVICE:
      return process.device(place.id) != nullptr ? cuda::CUDA_SUCCESS : cuda::CUDA_ERROR_INVALID_DEVICE;
    case cuda::CU_MEM_LOCATION_TYPE_HOST:
    case cuda::CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case cuda::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return cuda::CUDA_SUCCESS;
    default: return cuda::CUDA_ERROR_INVALID_VALUE;
  }
}

// The stream's order is kept, but the place that it goes to is noted at once. A driver, too, reports the request and
// not whether it has begun.
CUresult prefetch(const char* entry, bool per_thread, cuda::CUdeviceptr pointer, std::size_t bytes,
                  cuda::CUmemLocation place, cuda::CUstream handle) {
  return stream_call(entry, handle, per_thread, [&](const std::shared_ptr<Stream>& stream) {
    Process& process = stream->context()->process();
    if (!is_managed(process.space(), pointer, bytes)) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = check_place(process, place); result != cuda::CUDA_SUCCESS) return result;
    if (captures_active()) {
      bool captured = false;
      const CUresult result = capture_task(stream, EmptyTask{}, &captured);
      if (captured || result != cuda::CUDA_SUCCESS) return result;
    }
    const CUresult result = issue(stream, EmptyTask{});
    if (result == cuda::CUDA_SUCCESS) process.managed.set(ManagedPlaces::Fact::kPrefetched, pointer, bytes, place);
    return result;
  });
}
CUresult prefetch(const char* entry, bool per_thread, cuda::CUdeviceptr pointer, std::size_t bytes,
                  cuda::CUdevice device, cuda::CUstream handle) {
  return prefetch(entry, per_thread, pointer, bytes, place_of(device), handle);
}

CUresult advise(const char* entry, cuda::CUdeviceptr pointer, std::size_t bytes, cuda::CUmem_advise advice,
                cuda::CUmemLocation place) {
  return driver_call(entry, [&](Process& process) {
    if (!is_managed(process.space(), pointer, bytes)) return cuda::CUDA_ERROR_INVALID_VALUE;
    switch (advice) {
      case cuda::CU_MEM_ADVISE_SET_PREFERRED_LOCATION: {
        const CUresult result = check_place(process, place);
        if (result == cuda::CUDA_SUCCESS) process.managed.set(ManagedPlaces::Fact::kPreferred, pointer, bytes, place);
        return result;
      }
      case cuda::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        process.managed.set(ManagedPlaces::Fact::kPreferred, pointer, bytes, {cuda::CU_MEM_LOCATION_TYPE_INVALID, 0});
        return cuda::CUDA_SUCCESS;
      case cuda::CU_MEM_ADVISE_SET_ACCESSED_BY:
      case cuda::CU_MEM_ADVISE_UNSET_ACCESSED_BY: return check_place(process, place);
      case cuda::CU_MEM_ADVISE_SET_READ_MOSTLY:
      case cuda::CU_MEM_ADVISE_UNSET_READ_MOSTLY: return cuda::CUDA_SUCCESS;
    }
    return cuda::CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult range_attribute(Process& process, void* data, std::size_t data_size, cuda::CUmem_range_attribute attribute,
                         std::uint64_t pointer, std::size_t bytes) {
  using Fact = ManagedPlaces::Fact;
  if (data == nullptr || data_size != 4 || !is_managed(process.space(), pointer, bytes))
    return cuda::CUDA_ERROR_INVALID_VALUE;
  const cuda::CUmemLocation preferred = process.managed.get(Fact::kPreferred, pointer, bytes);
  const cuda::CUmemLocation prefetched = process.managed.get(Fact::kPrefetched, pointer, bytes);
  std::int32_t value = 0;
  switch (attribute) {
    case cuda::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION: value = device_of(preferred); break;
    case cuda::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION: value = device_of(prefetched); break;
    case cuda::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE: value = static_cast<int>(preferred.type); break;
    case cuda::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID: value = preferred.id; break;
    case cuda::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE: value = static_cast<int>(prefetched.type); break;
    case cuda::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID: value = prefetched.id; break;
    default: return cuda::CUDA_ERROR_NOT_SUPPORTED;
  }
  std::memcpy(data, &value, sizeof value);
  return cuda::CUDA_SUCCESS;
}

}  // namespace
}  // namespace gpumux::sim

namespace gpumux::cuda {

using namespace gpumux::sim;

extern "C" {

GPUMUX_SIM_STREAM_ENTRY(cuMemPrefetchAsync, _ptsz,
                        (CUdeviceptr pointer, std::size_t count, CUdevice device, CUstream stream), prefetch, pointer,
                        count, device, stream)
GPUMUX_SIM_STREAM_ENTRY(cuMemPrefetchAsync_v2, _ptsz,
                        (CUdeviceptr pointer, std::size_t count, CUmemLocation location, unsigned int, CUstream stream),
                        prefetch, pointer, count, location, stream)
CUresult cuMemAdvise(CUdeviceptr pointer, std::size_t count, CUmem_advise advice, CUdevice device) {
  return advise("cuMemAdvise", pointer, count, advice, place_of(device));
}
CUresult cuMemAdvise_v2(CUdeviceptr pointer, std::size_t count, CUmem_advise advice, CUmemLocation location) {
  return advise("cuMemAdvise_v2", pointer, count, advice, location);
}
CUresult cuMemRangeGetAttribute(void* data, std::size_t data_size, CUmem_range_attribute attribute, CUdeviceptr pointer,
                                std::size_t count) {
  return driver_call("cuMemRangeGetAttribute", [&](Process& process) {
    return range_attribute(process, data, data_size, attribute, pointer, count);
  });
}

}  // extern "C"
}  // namespace gpumux::cuda
