// SPDX-License-Identifier: Apache-2.0
// Memory that several GPUs or processes reach. The calls themselves are the driver's. The hooks see which seats belong
// together. Work on one GPU may now wait for work on another, or read what it writes. So their leases are granted and
// revoked together.
#include "shim/hooks/hooks.gen.h"
#include "shim/hooks/submit.h"
#include "shim/tenant/gangs.h"

namespace gpumux::shim::hooks {
namespace {

// The seats of the calling thread's context and of another; `memories` null: not both are known.
struct PeerSeats {
  Memories* memories = nullptr;
  std::uint32_t own = 0;
  std::uint32_t peer = 0;
};

PeerSeats peer_seats(CUcontext peer_context) {
  const Here at = here();
  const auto peer = at.memory != nullptr ? tenant()->seat_of(peer_context) : std::nullopt;
  if (!peer || *peer == at.memory->slot) return {};
  return {at.memories, at.memory->slot, *peer};
}

// Allocations from a pool of ours are the pager's, which gives the rights.
CUresult give_pool_access(CUmemoryPool pool, const CUmemAccessDesc* accesses, std::size_t count) {
  Tenant* const mine = tenant_if_any();
  DeviceMemory* const owner = mine != nullptr ? mine->memories().owner_of_pool(pool) : nullptr;
  for (std::size_t i = 0; owner != nullptr && i < count; ++i) {
    if (accesses[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) continue;
    const bool may = accesses[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    const auto accessor = mine->seat_of_device(accesses[i].location.id);
    if (!accessor) continue;
    const CUresult result = mine->memories().set_pool_access(pool, owner->slot, *accessor, may);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

// A handle that the library in another process has made. CUDA_ERROR_NOT_FOUND: it is the driver's.
CUresult open_ours(CUdeviceptr* pointer, const CUipcMemHandle& handle) {
  const Here at = here();
  return at.memory != nullptr ? at.memories->open_handle(*at.memory, at.context, handle, pointer)
                              : CUDA_ERROR_NOT_FOUND;
}

}  // namespace

// Peer access does not cover mapped memory, and the pager's is mapped. So the pager itself gives the rights, to all
// memory that it has and will have. From then on the two seats are complete or not together, for work on one reaches
// the other's memory.
CUresult cuCtxEnablePeerAccess(CUcontext peer_context, unsigned int flags) {
  const CUresult result = own_gang(driver().cuCtxEnablePeerAccess(peer_context, flags));
  if (result != CUDA_SUCCESS) return result;
  const PeerSeats seats = peer_seats(peer_context);
  if (seats.memories == nullptr) return result;
  const CUresult given = seats.memories->enable_peer(seats.own, seats.peer);
  if (given != CUDA_SUCCESS) driver().cuCtxDisablePeerAccess(peer_context);
  return given;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer_context) {
  const CUresult result = driver().cuCtxDisablePeerAccess(peer_context);
  if (result != CUDA_SUCCESS) return result;
  const PeerSeats seats = peer_seats(peer_context);
  return seats.memories != nullptr ? seats.memories->disable_peer(seats.own, seats.peer) : result;
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* map, std::size_t count) {
  const CUresult result = driver().cuMemPoolSetAccess(pool, map, count);
  if (result != CUDA_SUCCESS) return result;
  if (const CUresult given = give_pool_access(pool, map, count); given != CUDA_SUCCESS) return given;
  return names_another_device(map, count) ? own_gang(result) : result;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle* mc_handle, const CUmulticastObjectProp* properties) {
  return sharing_gang(own_gang(driver().cuMulticastCreate(mc_handle, properties)));
}
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle mc_handle, CUdevice device) {
  return sharing_gang(own_gang(driver().cuMulticastAddDevice(mc_handle, device)));
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  if (Tenant* const mine = tenant_if_any()) {
    DeviceMemory* const owner = mine->memories().owner_of(pointer);
    // As natively: what comes from a pool is shared by the pool's own means.
    if (owner != nullptr && owner->pools.covers(pointer)) return CUDA_ERROR_INVALID_VALUE;
    if (owner != nullptr) return sharing_gang(mine->memories().export_handle(*owner, pointer, handle));
  }
  return sharing_gang(driver().cuIpcGetMemHandle(handle, pointer));
}
CUresult cuIpcOpenMemHandle(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned int flags) {
  if (const CUresult result = open_ours(pointer, handle); result != CUDA_ERROR_NOT_FOUND) return sharing_gang(result);
  return sharing_gang(driver().cuIpcOpenMemHandle(pointer, handle, flags));
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pointer, CUipcMemHandle handle, unsigned int flags) {
  if (const CUresult result = open_ours(pointer, handle); result != CUDA_ERROR_NOT_FOUND) return sharing_gang(result);
  return sharing_gang(driver().cuIpcOpenMemHandle_v2(pointer, handle, flags));
}
CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
  if (Tenant* const mine = tenant_if_any()) {
    const CUresult result = mine->memories().close_handle(pointer);
    if (result != CUDA_ERROR_NOT_FOUND) return result;
  }
  return driver().cuIpcCloseMemHandle(pointer);
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                        CUmemAllocationHandleType sh_handle_type) {
  return sharing_gang(driver().cuMemImportFromShareableHandle(handle, os_handle, sh_handle_type));
}
CUresult cuMemPoolExportToShareableHandle(void* handle, CUmemoryPool pool, CUmemAllocationHandleType handle_type,
                                          unsigned long long flags) {
  return sharing_gang(driver().cuMemPoolExportToShareableHandle(handle, pool, handle_type, flags));
}
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* handle, CUmemAllocationHandleType handle_type,
                                            unsigned long long flags) {
  return sharing_gang(driver().cuMemPoolImportFromShareableHandle(pool, handle, handle_type, flags));
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launch_params_list, unsigned int device_count,
                                              unsigned int flags) {
  const auto real = driver().cuLaunchCooperativeKernelMultiDevice;
  SeveralPassages passages(tenant());
  for (unsigned int i = 0; launch_params_list != nullptr && i < device_count; ++i) {
    passages.add_stream(at_stream(launch_params_list[i].hStream, StreamVariant::kLegacy).stream);
  }
  if (!passages.enter()) return CUDA_ERROR_OUT_OF_MEMORY;
  return real(launch_params_list, device_count, flags);
}

}  // namespace gpumux::shim::hooks
