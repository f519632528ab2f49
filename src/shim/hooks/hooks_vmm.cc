// SPDX-License-Identifier: Apache-2.0
// The program's own virtual memory: PyTorch's expandable segments, vLLM's sleep mode, NCCL and many others create,
// reserve, map and give rights by themselves. Their cuMemCreate gets memory of the pager's (pager/handles.cc), by
// handles of the library's. The driver has what the pager cannot have, by handles of its own.
//
// Order and errors are the driver's, as a real one (580.159) was seen to give them. Whole handles are mapped, nothing
// else. Rights are given to rows of whole mappings. Unmapping passes over what is not mapped.
#include <algorithm>
#include <atomic>
#include <cstdio>

#include "shim/hooks/hooks.gen.h"
#include "shim/hooks/submit.h"
#include "shim/tenant/gangs.h"

namespace gpumux::shim::hooks {
namespace {

// The driver's handles are pointers of its own, and no pointer looks like this.
constexpr std::uint64_t kOurs = 0x676d;  // "gm"; these bits of a pointer are zero
constexpr unsigned kTagShift = 48;
constexpr unsigned kSlotShift = 40;  // leaves 8 bits to the slot
constexpr std::uint64_t kIdMask = (std::uint64_t{1} << kSlotShift) - 1;

struct Handle {
  DeviceMemory* memory = nullptr;
  std::uint64_t id = 0;
};

CUmemGenericAllocationHandle handle_of(const DeviceMemory& memory, std::uint64_t id) {
  return kOurs << kTagShift | std::uint64_t{memory.slot} << kSlotShift | (id & kIdMask);
}

// Nothing: it is none of ours.
std::optional<Handle> ours(CUmemGenericAllocationHandle handle) {
  Tenant* const mine = tenant_if_any();
  if (mine == nullptr || handle >> kTagShift != kOurs) return std::nullopt;
  const auto slot = static_cast<std::uint32_t>(handle >> kSlotShift & 0xff);
  DeviceMemory* const memory = slot < mine->seats().count() ? mine->memories().if_any(slot) : nullptr;
  if (memory == nullptr) return std::nullopt;
  return Handle{memory, handle & kIdMask};
}

bool has_attribute(CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  return driver().cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

// An allocation that the driver would refuse must be refused now, and not when the memory comes to the GPU.
bool can_page(DeviceMemory& memory, const CUmemAllocationProp& properties, std::size_t bytes,
              unsigned long long flags) {
  if (flags != 0 || !memory.is_paged() || !pager::Pager::can_page(properties, bytes)) return false;
  return properties.allocFlags.gpuDirectRDMACapable == 0 ||
         has_attribute(memory.device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
}

// Rights to memory on `device` that the driver would give. It may not be asked: there may be no memory.
CUresult check_rights(CUdevice device, const CUmemAccessDesc* rights, std::size_t count) {
  int devices = 0;
  if (driver().cuDeviceGetCount(&devices) != CUDA_SUCCESS) return CUDA_ERROR_NOT_INITIALIZED;
  for (std::size_t i = 0; i < count; ++i) {
    const CUmemAccessDesc& right = rights[i];
    if (right.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if (right.location.id < 0 || right.location.id >= devices) return CUDA_ERROR_INVALID_VALUE;
    if (right.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && right.flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        right.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
      return CUDA_ERROR_INVALID_VALUE;
    int can = 1;
    if (right.location.id != device && right.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
        driver().cuDeviceCanAccessPeer != nullptr)
      driver().cuDeviceCanAccessPeer(&can, right.location.id, device);
    if (can == 0) return CUDA_ERROR_INVALID_DEVICE;
  }
  return CUDA_SUCCESS;
}

// Work on the GPUs that are named may reach `memory` from now on: they are complete or not together.
void connect(Tenant& mine, const DeviceMemory& memory, const CUmemAccessDesc* rights, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (rights[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || rights[i].location.id == memory.device) continue;
    if (const auto slot = mine.seat_of_device(rights[i].location.id)) mine.memories().connect(memory.slot, *slot);
    mine.join_own_gang();
  }
}

// Once: an operator who asks why a program's memory stays on the GPU finds it in the daemon's log.
void note_left_to_driver(Tenant& mine, const CUmemAllocationProp& properties, std::size_t bytes,
                         unsigned long long flags) {
  static std::atomic<bool> told{false};
  if (told.exchange(true, std::memory_order_relaxed)) return;
  char text[256];
  std::snprintf(text, sizeof text,
                "memory that the program maps by itself stays on the GPU: %zu bytes, type %u, handle types %u, "
                "compression %u, usage %u, flags %llu",
                bytes, static_cast<unsigned>(properties.type), static_cast<unsigned>(properties.requestedHandleTypes),
                properties.allocFlags.compressionType, properties.allocFlags.usage, flags);
  mine.note(wire::Severity::kInfo, text);
}

bool is_inside(const AddressTable::Mapping& mapping, CUdeviceptr address, std::size_t size) {
  return mapping.address >= address && mapping.address + mapping.bytes <= address + size;
}

void remove(Tenant& mine, AddressTable& table, const AddressTable::Mapping& mapping) {
  const CUmemGenericAllocationHandle gone = table.remove(mapping.address);
  if (gone != 0) mine.memories().forget_outside(gone);
}

bool any_ours(const std::vector<AddressTable::Mapping>& mappings) {
  return std::any_of(mappings.begin(), mappings.end(), [](const auto& mapping) { return mapping.owner != nullptr; });
}

}  // namespace

// ---- handles

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
  const auto real = driver().cuMemCreate;
  Tenant* const mine = tenant();
  const bool on_gpu =
      handle != nullptr && properties != nullptr && properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  const auto slot = mine != nullptr && on_gpu ? mine->seat_of_device(properties->location.id) : std::nullopt;
  if (!slot) return real(handle, bytes, properties, flags);
  Memories& memories = mine->memories();
  DeviceMemory& memory = memories.of(*slot);
  if (can_page(memory, *properties, bytes, flags)) {
    std::uint64_t id = 0;
    const CUresult result = memories.allocate(memory, bytes, [&](pager::Placement placement) {
      return memory.pager.create_handle(bytes, *properties, placement, &id);
    });
    if (result == CUDA_SUCCESS) *handle = handle_of(memory, id);
    return result;
  }
  return memories.within_quota(
      memory, bytes, bytes, [&] { return real(handle, bytes, properties, flags); },
      [&](std::uint64_t reserved) {
        note_left_to_driver(*mine, *properties, bytes, flags);
        {
          const AddressTable::Locked table(memories.addresses());
          table->created(*handle);
        }
        memory.add_outside(wire::Unpageable::kMapped, *handle, bytes, nullptr, reserved);
      });
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  if (const auto its = ours(handle)) {
    const CUresult result = its->memory->pager.release_handle(its->id);
    tenant()->memories().on_reach_changed(*its->memory);
    return result;
  }
  Tenant* const mine = tenant_if_any();
  if (mine == nullptr) return driver().cuMemRelease(handle);
  const AddressTable::Locked table(mine->memories().addresses());
  const CUresult result = driver().cuMemRelease(handle);
  if (result == CUDA_SUCCESS && table->released(handle)) mine->memories().forget_outside(handle);
  return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  if (Tenant* const mine = tenant_if_any(); mine != nullptr && handle != nullptr) {
    const auto pointer = reinterpret_cast<CUdeviceptr>(address);
    // Memory from cuMemAlloc has no handle, natively. A handle to a chunk of ours would keep it from being given back.
    if (mine->memories().owner_of(pointer) != nullptr) return CUDA_ERROR_INVALID_VALUE;
    DeviceMemory* memory = nullptr;
    if (mine->memories().find_mapping(pointer, &memory)) {
      std::uint64_t id = 0;
      const CUresult result = memory->pager.retain_handle(pointer, &id);
      if (result == CUDA_SUCCESS) *handle = handle_of(*memory, id);
      return result;
    }
  }
  const CUresult result = driver().cuMemRetainAllocationHandle(handle, address);
  if (Tenant* const mine = tenant_if_any(); mine != nullptr && result == CUDA_SUCCESS) {
    const AddressTable::Locked table(mine->memories().addresses());
    table->retained(*handle);
  }
  return result;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  const auto real = driver().cuMemGetAllocationPropertiesFromHandle;
  const auto its = ours(handle);
  if (!its) return real(properties, handle);
  std::uint64_t bytes = 0;
  CUmemAllocationProp found{};
  if (properties == nullptr || !its->memory->pager.find_handle(its->id, &bytes, &found))
    return CUDA_ERROR_INVALID_VALUE;
  *properties = found;
  return CUDA_SUCCESS;
}

// The library cannot know which processes import a descriptor: the memory stays on the GPU from its first export on.
CUresult cuMemExportToShareableHandle(void* shareable_handle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handle_type, unsigned long long flags) {
  const auto real = driver().cuMemExportToShareableHandle;
  const auto its = ours(handle);
  if (!its) return sharing_gang(real(shareable_handle, handle, handle_type, flags));
  std::uint64_t bytes = 0;
  CUmemAllocationProp properties{};
  if (shareable_handle == nullptr || !its->memory->pager.find_handle(its->id, &bytes, &properties) ||
      (properties.requestedHandleTypes & handle_type) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<pager::DriverPiece> pieces;
  CUresult result = tenant()->memories().pin_handle(*its->memory, its->id, pager::PinReason::kExported, &pieces);
  if (result != CUDA_SUCCESS) return result;
  if (pieces.size() != 1) {
    its->memory->pager.unpin_handle(its->id, pager::PinReason::kExported);
    tenant()->note(
        wire::Severity::kInfo,
        "more than 1 GiB of memory in one handle cannot be exported while it pages: with GPUMUX_PAGING=off it can");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  result = real(shareable_handle, pieces.front().handle, handle_type, flags);
  if (result != CUDA_SUCCESS) its->memory->pager.unpin_handle(its->id, pager::PinReason::kExported);
  return sharing_gang(result);
}

// ---- addresses

CUresult cuMemAddressReserve(CUdeviceptr* pointer, std::size_t size, std::size_t alignment, CUdeviceptr address,
                             unsigned long long flags) {
  const auto real = driver().cuMemAddressReserve;
  Tenant* const mine = tenant();
  if (mine == nullptr) return real(pointer, size, alignment, address, flags);
  const AddressTable::Locked table(mine->memories().addresses());
  const CUresult result = real(pointer, size, alignment, address, flags);
  if (result == CUDA_SUCCESS) table->reserve(*pointer, size);
  return result;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, std::size_t size) {
  const auto real = driver().cuMemAddressFree;
  Tenant* const mine = tenant_if_any();
  if (mine == nullptr) return real(pointer, size);
  const AddressTable::Locked table(mine->memories().addresses());
  if (any_ours(table->in(pointer, size))) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = real(pointer, size);
  if (result == CUDA_SUCCESS) table->unreserve(pointer);
  return result;
}

// ---- mappings

CUresult cuMemMap(CUdeviceptr pointer, std::size_t size, std::size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  const auto real = driver().cuMemMap;
  Tenant* const mine = tenant_if_any();
  if (mine == nullptr) return real(pointer, size, offset, handle, flags);
  const AddressTable::Locked table(mine->memories().addresses());
  const std::vector<AddressTable::Mapping> there = table->in(pointer, size);
  const auto its = ours(handle);
  if (!its) {
    // While it is evicted the driver does not know that something is there.
    if (any_ours(there)) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = real(pointer, size, offset, handle, flags);
    if (result == CUDA_SUCCESS) table->add({pointer, size, nullptr, handle});
    return result;
  }
  std::uint64_t bytes = 0;
  CUmemAllocationProp properties{};
  if (flags != 0 || size == 0 || pointer % pager::kBlockBytes != 0 ||
      !its->memory->pager.find_handle(its->id, &bytes, &properties))
    return CUDA_ERROR_INVALID_VALUE;
  if (offset != 0 || size != bytes) return CUDA_ERROR_NOT_SUPPORTED;
  if (!there.empty() || !table->is_reserved(pointer, size)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = its->memory->pager.map_handle(its->id, pointer);
  if (result == CUDA_SUCCESS) table->add({pointer, size, its->memory, 0});
  return result;
}

// Waits for no work, as the driver: work that still uses the memory dies of it.
CUresult cuMemUnmap(CUdeviceptr pointer, std::size_t size) {
  const auto real = driver().cuMemUnmap;
  Tenant* const mine = tenant_if_any();
  if (mine == nullptr) return real(pointer, size);
  const AddressTable::Locked table(mine->memories().addresses());
  const std::vector<AddressTable::Mapping> there = table->in(pointer, size);
  if (!any_ours(there)) {
    const CUresult result = real(pointer, size);
    for (const AddressTable::Mapping& mapping : there) {
      if (result == CUDA_SUCCESS) remove(*mine, *table, mapping);
    }
    return result;
  }
  for (const AddressTable::Mapping& mapping : there) {
    if (!is_inside(mapping, pointer, size)) return CUDA_ERROR_INVALID_VALUE;
  }
  for (const AddressTable::Mapping& mapping : there) {
    const CUresult result = mapping.owner != nullptr ? mapping.owner->pager.unmap_handle(mapping.address)
                                                     : real(mapping.address, mapping.bytes);
    if (mapping.owner != nullptr) mine->memories().on_reach_changed(*mapping.owner);
    if (result != CUDA_SUCCESS) return result;
    remove(*mine, *table, mapping);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, std::size_t size, const CUmemAccessDesc* descriptor, std::size_t count) {
  const auto real = driver().cuMemSetAccess;
  Tenant* const mine = tenant_if_any();
  const auto forward = [&] {
    const CUresult result = real(pointer, size, descriptor, count);
    return names_another_device(descriptor, count) ? own_gang(result) : result;
  };
  if (mine == nullptr) return forward();
  const AddressTable::Locked table(mine->memories().addresses());
  const std::vector<AddressTable::Mapping> there = table->in(pointer, size);
  if (!any_ours(there)) return forward();
  if (descriptor == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  // A row of whole mappings, from the first byte to the last.
  CUdeviceptr next = pointer;
  for (const AddressTable::Mapping& mapping : there) {
    if (mapping.address != next) return CUDA_ERROR_INVALID_VALUE;
    next += mapping.bytes;
    if (mapping.owner == nullptr) continue;
    if (const CUresult wrong = check_rights(mapping.owner->device, descriptor, count); wrong != CUDA_SUCCESS)
      return wrong;
  }
  if (next != pointer + size) return CUDA_ERROR_INVALID_VALUE;
  for (const AddressTable::Mapping& mapping : there) {
    if (mapping.owner != nullptr) connect(*mine, *mapping.owner, descriptor, count);
    const CUresult result = mapping.owner != nullptr
                                ? mapping.owner->pager.set_access(mapping.address, descriptor, count)
                                : real(mapping.address, mapping.bytes, descriptor, count);
    // Memory that is not on the GPU bars the gate from here on, until it is.
    if (mapping.owner != nullptr) mine->memories().on_reach_changed(*mapping.owner);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr pointer) {
  const auto real = driver().cuMemGetAccess;
  Tenant* const mine = tenant_if_any();
  DeviceMemory* memory = nullptr;
  const auto info = mine != nullptr ? mine->memories().find_mapping(pointer, &memory) : std::nullopt;
  if (!info || flags == nullptr || location == nullptr) return real(flags, location, pointer);
  const CUmemAccessDesc asked{*location, CU_MEM_ACCESS_FLAGS_PROT_NONE};
  if (const CUresult wrong = check_rights(memory->device, &asked, 1); wrong != CUDA_SUCCESS) return wrong;
  *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  for (const CUmemAccessDesc& right : info->rights) {
    if (right.location.type == location->type && right.location.id == location->id) *flags = right.flags;
  }
  return CUDA_SUCCESS;
}

// ---- multicast

// A multicast object keeps physical places: what is bound to one stays on the GPU.
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle mc_handle, std::size_t mc_offset,
                            CUmemGenericAllocationHandle mem_handle, std::size_t mem_offset, std::size_t size,
                            unsigned long long flags) {
  const auto real = driver().cuMulticastBindMem;
  const auto its = ours(mem_handle);
  if (!its) return real(mc_handle, mc_offset, mem_handle, mem_offset, size, flags);
  std::vector<pager::DriverPiece> pieces;
  CUresult result = tenant()->memories().pin_handle(*its->memory, its->id, pager::PinReason::kRegistered, &pieces);
  if (result != CUDA_SUCCESS) return result;
  // Handles of ours may be several of the driver's. Each piece takes its part of what is asked for.
  std::uint64_t begin = 0;
  std::uint64_t bound = 0;
  for (const pager::DriverPiece& piece : pieces) {
    const std::uint64_t from = std::max<std::uint64_t>(begin, mem_offset);
    const std::uint64_t to = std::min<std::uint64_t>(begin + piece.bytes, mem_offset + size);
    if (from < to && result == CUDA_SUCCESS) {
      result = real(mc_handle, mc_offset + bound, piece.handle, from - begin, to - from, flags);
      if (result == CUDA_SUCCESS) bound += to - from;
    }
    begin += piece.bytes;
  }
  if (result == CUDA_SUCCESS && bound != size) result = CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) return result;
  if (bound != 0 && driver().cuMulticastUnbind != nullptr)
    driver().cuMulticastUnbind(mc_handle, its->memory->device, mc_offset, bound);
  its->memory->pager.unpin_handle(its->id, pager::PinReason::kRegistered);
  return result;
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle mc_handle, std::size_t mc_offset, CUdeviceptr pointer,
                             std::size_t size, unsigned long long flags) {
  const auto real = driver().cuMulticastBindAddr;
  const auto call = [&] { return real(mc_handle, mc_offset, pointer, size, flags); };
  Tenant* const mine = tenant_if_any();
  if (mine == nullptr) return call();
  return mine->memories().with_pinned(pointer, size, pager::PinReason::kRegistered, call);
}

}  // namespace gpumux::shim::hooks
