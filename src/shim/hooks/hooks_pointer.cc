// SPDX-License-Identifier: Apache-2.0
// The program's questions about addresses. For memory of the pager's the answers come from its tables. They are as the
// driver's for memory from cuMemAlloc, or for memory that the program has mapped by itself. The driver knows only of a
// reserved range, and of nothing while it is evicted.
#include <cstring>

#include "shim/hooks/hooks.gen.h"
#include "shim/hooks/submit.h"

namespace gpumux::shim::hooks {
namespace {

template <class T>
CUresult put(void* data, T value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

struct KnownAddress {
  DeviceMemory* memory = nullptr;
  pager::AddressInfo info;
  CUmemoryPool pool = nullptr;  // that it was allocated from, in the order of a stream
};

// Nothing: no allocation of the pager's.
std::optional<KnownAddress> find(CUdeviceptr pointer) {
  Tenant* const mine = tenant_if_any();
  if (mine == nullptr || pointer == 0) return std::nullopt;
  std::optional<pager::AddressInfo> info;
  DeviceMemory* const memory =
      mine->memories().first([&](DeviceMemory& its) { return (info = its.pager.find(pointer)).has_value(); });
  if (memory == nullptr) return std::nullopt;
  KnownAddress known{memory, *info, nullptr};
  if (!memory->pools.covers(pointer)) return known;
  const auto allocation = memory->pools.find(pointer);
  if (!allocation) return std::nullopt;
  known.info.base = allocation->base;
  known.info.bytes = allocation->bytes;
  known.info.buffer_id = allocation->id;
  known.info.context = nullptr;
  known.pool = allocation->pool;
  return known;
}

CUresult attribute_of(const KnownAddress& known, void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const pager::AddressInfo& info = known.info;
  switch (attribute) {
    // None, where the memory is the device's: from a pool, or the program's own.
    case CU_POINTER_ATTRIBUTE_CONTEXT: return put(data, info.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return put(data, CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return put(data, pointer);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: return CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: return CUDA_ERROR_NOT_SUPPORTED;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return put(data, 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return put(data, static_cast<unsigned long long>(info.buffer_id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return put(data, 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return put(data, int{known.memory->device});
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return put(data, known.pool == nullptr ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return put(data, info.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return put(data, static_cast<std::size_t>(info.bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED: return put(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return put(data, std::uint64_t{0});
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return put(data, 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return put(data, static_cast<unsigned>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return put(data, known.pool);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return put(data, static_cast<std::size_t>(info.mapping_bytes));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return put(data, info.mapping_base);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return put(data, static_cast<unsigned long long>(info.buffer_id));
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: return put(data, 0);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// The rights of the current context's device to a mapping of the program's. CUDA_ERROR_INVALID_CONTEXT: there is none.
CUresult access_here(const pager::MappingInfo& mapping, unsigned* flags) {
  CUdevice device = 0;
  *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  if (driver().cuCtxGetDevice == nullptr || driver().cuCtxGetDevice(&device) != CUDA_SUCCESS)
    return CUDA_ERROR_INVALID_CONTEXT;
  for (const CUmemAccessDesc& right : mapping.rights) {
    if (right.location.type == CU_MEM_LOCATION_TYPE_DEVICE && right.location.id == device) *flags = right.flags;
  }
  return CUDA_SUCCESS;
}

// Of a mapping of the program's, as 580.159 answers.
CUresult attribute_of_mapping(const KnownAddress& known, const pager::MappingInfo& mapping, void* data,
                              CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned flags = 0;
  const CUresult here = access_here(mapping, &flags);
  const auto reservation = [&] {
    const AddressTable::Locked table(tenant()->memories().addresses());
    return table->reservation_of(pointer).value_or(AddressTable::Reservation{mapping.address, mapping.bytes});
  };
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      if (here != CUDA_SUCCESS) return here;
      return flags != 0 ? put(data, pointer) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return put(data, static_cast<unsigned long long>(mapping.id));
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return put(data, 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return put(data, reservation().address);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return put(data, static_cast<std::size_t>(reservation().bytes));
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put(data, static_cast<std::uint64_t>(mapping.properties.requestedHandleTypes));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put(data, int{mapping.properties.allocFlags.gpuDirectRDMACapable});
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return put(data, flags);
    default: return attribute_of(known, data, attribute, pointer);
  }
}

// Of either kind.
CUresult attribute_of_known(const KnownAddress& known, void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  if (known.info.handle == 0) return attribute_of(known, data, attribute, pointer);
  const auto mapping = known.memory->pager.find_mapping(pointer);
  // Unmapped by another thread just now.
  if (!mapping) return CUDA_ERROR_INVALID_VALUE;
  return attribute_of_mapping(known, *mapping, data, attribute, pointer);
}

// The value that cuPointerGetAttributes writes for an attribute that it cannot answer.
void put_nothing(void* data, CUpointer_attribute attribute) {
  if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER) put(data, std::uint64_t{0});
}

}  // namespace

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size, CUdeviceptr pointer) {
  const auto known = find(pointer);
  if (!known) return driver().cuMemGetAddressRange_v2(base, size, pointer);
  if (known->info.handle != 0) {
    unsigned flags = 0;
    const auto mapping = known->memory->pager.find_mapping(pointer);
    if (!mapping) return CUDA_ERROR_NOT_FOUND;
    if (const CUresult here = access_here(*mapping, &flags); here != CUDA_SUCCESS) return here;
    if (flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) return CUDA_ERROR_NOT_FOUND;
  }
  if (base != nullptr) *base = known->info.base;
  if (size != nullptr) *size = known->info.bytes;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  const auto known = find(pointer);
  if (!known) return driver().cuPointerGetAttribute(data, attribute, pointer);
  return attribute_of_known(*known, data, attribute, pointer);
}

CUresult cuPointerGetAttributes(unsigned int attribute_count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr pointer) {
  const auto known = find(pointer);
  if (!known || attribute_count == 0 || attributes == nullptr || data == nullptr)
    return driver().cuPointerGetAttributes(attribute_count, attributes, data, pointer);
  for (unsigned int i = 0; i < attribute_count; ++i) {
    if (data[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (attribute_of_known(*known, data[i], attributes[i], pointer) != CUDA_SUCCESS)
      put_nothing(data[i], attributes[i]);
  }
  return CUDA_SUCCESS;
}

// Memory that a network adapter is given must stay where it is. Inside the gate, where it is resident.
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr pointer, std::size_t size,
                                       CUmemRangeHandleType handle_type, unsigned long long flags) {
  const auto real = driver().cuMemGetHandleForAddressRange;
  const auto known = find(pointer);
  if (!known) return real(handle, pointer, size, handle_type, flags);
  // Addresses of one or several mappings of the program's, next to each other.
  if (known->info.handle != 0)
    return tenant()->memories().with_pinned(pointer, size, pager::PinReason::kRdma,
                                            [&] { return real(handle, pointer, size, handle_type, flags); });
  const Passage passage(at_default(StreamVariant::kLegacy));
  if (passage.is_stranded()) return CUDA_ERROR_OUT_OF_MEMORY;
  const bool pinned = known->memory->pager.pin(pointer, pager::PinReason::kRdma) == CUDA_SUCCESS;
  const CUresult result = real(handle, pointer, size, handle_type, flags);
  if (pinned && result != CUDA_SUCCESS) known->memory->pager.unpin(pointer, pager::PinReason::kRdma);
  return result;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  const auto known = find(pointer);
  // A program that sets this is about to hand the address to a network adapter, which keeps the physical place. So the
  // memory stays from here on. Inside the gate, where it is resident. The driver refuses this for memory that the
  // program has mapped itself.
  if (known && known->info.handle != 0 && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
    return value != nullptr ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
  if (known && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
    const Passage passage(at_default(StreamVariant::kLegacy));
    if (passage.is_stranded()) return CUDA_ERROR_OUT_OF_MEMORY;
    if (known->memory->pager.pin(pointer, pager::PinReason::kRdma) == CUDA_SUCCESS) {
      const CUresult result = driver().cuPointerSetAttribute(value, attribute, pointer);
      if (result != CUDA_SUCCESS) known->memory->pager.unpin(pointer, pager::PinReason::kRdma);
      return result;
    }
  }
  return driver().cuPointerSetAttribute(value, attribute, pointer);
}

}  // namespace gpumux::shim::hooks
