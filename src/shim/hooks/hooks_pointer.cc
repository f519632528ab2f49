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

// A program that sets SYNC_MEMOPS, or asks for tokens, is about to hand the address to a network adapter. That keeps
// the physical place, so the memory stays from here on, even if SYNC_MEMOPS is cleared again. `call` is made inside the
// gate, where the memory is resident.
template <class Call>
CUresult keep_for_networks(const KnownAddress& known, CUdeviceptr pointer, Call call) {
  const bool is_kept = known.memory->sync_memops(known.info.base, known.info.buffer_id).has_value();
  const Passage passage(at_default(StreamVariant::kLegacy));
  if (passage.is_stranded()) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!is_kept) {
    if (const CUresult pinned = known.memory->pager.pin(pointer, pager::PinReason::kRdma); pinned != CUDA_SUCCESS)
      return pinned;
  }
  const CUresult result = call();
  if (!is_kept && result != CUDA_SUCCESS) known.memory->pager.unpin(pointer, pager::PinReason::kRdma);
  if (result == CUDA_SUCCESS) known.memory->set_sync_memops(known.info.base, known.info.buffer_id, true);
  return result;
}

bool decompresses(CUdevice device) {
  int algorithms = 0;
  return driver().cuDeviceGetAttribute(&algorithms, CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK, device) ==
             CUDA_SUCCESS &&
         algorithms != 0;
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
    // The driver sets SYNC_MEMOPS with this.
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return keep_for_networks(known, pointer,
                               [&] { return driver().cuPointerGetAttribute(data, attribute, pointer); });
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return put(data, known.memory->sync_memops(info.base, info.buffer_id).value_or(false) ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return put(data, static_cast<unsigned long long>(info.buffer_id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return put(data, 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return put(data, int{known.memory->device});
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return put(data, known.pool == nullptr ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return put(data, info.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return put(data, static_cast<std::size_t>(info.bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED: return put(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return put(data, std::uint64_t{0});
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put(data, known.pool == nullptr && known.memory->pager.is_for_networks() ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return put(data, static_cast<unsigned>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return put(data, known.pool);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return put(data, static_cast<std::size_t>(info.mapping_bytes));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return put(data, info.mapping_base);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return put(data, static_cast<unsigned long long>(info.buffer_id));
    // The driver says so of memory from cuMemAlloc even where no device can do it. Where one can, it would need memory
    // that is made for it, which the pager's is not.
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return put(data, known.pool == nullptr && info.handle == 0 && !decompresses(known.memory->device) ? 1 : 0);
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
}  // namespace gpumux::shim::hooks

namespace gpumux::shim {

bool is_within(const Extent& extent) {
  Tenant* const mine = tenant_if_any();
  const std::size_t bytes = extent.bytes();
  if (mine == nullptr || extent.address == 0 || bytes == 0) return true;
  std::optional<std::uint64_t> left;
  mine->memories().first([&](DeviceMemory& memory) {
    left = memory.pager.bytes_to_end(extent.address);
    if (left && memory.pools.covers(extent.address)) left = memory.pools.bytes_to_end(extent.address);
    return left.has_value();
  });
  return !left || bytes <= *left;
}

}  // namespace gpumux::shim

namespace gpumux::shim::hooks {

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

// The driver would refuse this for memory that it knows as mapped. Copies and fills of such memory are synchronous in
// any case.
CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  const auto known = find(pointer);
  if (!known || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
    return driver().cuPointerSetAttribute(value, attribute, pointer);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Mapped by the program itself.
  if (known->info.handle != 0) return CUDA_ERROR_NOT_SUPPORTED;
  unsigned wanted = 0;
  std::memcpy(&wanted, value, sizeof wanted);
  if (wanted != 0) return keep_for_networks(*known, pointer, [] { return CUDA_SUCCESS; });
  if (known->memory->sync_memops(known->info.base, known->info.buffer_id))
    known->memory->set_sync_memops(known->info.base, known->info.buffer_id, false);
  return CUDA_SUCCESS;
}

}  // namespace gpumux::shim::hooks
