// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation: what comes from plain pools of a paged seat's GPU is the pager's (shim/memory/pools.h).
// The rest is left to the driver, counted, and stays on the GPU. The rest is pools that can be shared with other
// processes, in host or managed memory, or of another GPU than the stream's. It is also the memory of graphs, which
// captured allocations and frees belong to. If nothing is paged, it is everything.
#include "gate/stream_name.h"
#include "shim/hooks/hooks.gen.h"
#include "shim/hooks/submit.h"

namespace gpumux::shim::hooks {
namespace {

// A stream and its seat; `memory` null: there is none, and the driver says why.
struct StreamPlace {
  Tenant* tenant = nullptr;
  DeviceMemory* memory = nullptr;
  StreamName name;
  bool is_known = false;  // false: a stream of a green context has no plain one, for which events could be made
};

StreamPlace place_of(Tenant* mine, CUstream handle, StreamVariant variant) {
  StreamPlace place{mine, nullptr, {}, true};
  if (mine == nullptr || driver().cuCtxGetCurrent == nullptr || driver().cuStreamGetCtx == nullptr) return place;
  const CUstream stream = at_stream(handle, variant).stream;
  CUcontext context = nullptr;
  const bool is_default = stream == nullptr || stream == gate::kPerThreadStream;
  if (!is_default && (driver().cuStreamGetCtx(stream, &context) != CUDA_SUCCESS || context == nullptr)) {
    place.is_known = false;
    context = nullptr;
  }
  if (context == nullptr && driver().cuCtxGetCurrent(&context) != CUDA_SUCCESS) return place;
  if (context == nullptr) return place;
  const auto slot = mine->seat_of(context);
  if (!slot) return place;
  place.memory = &mine->memories().of(*slot);
  place.name = gate::name_of(context, stream);
  return place;
}

bool is_capturing(const StreamPlace& place) {
  return place.tenant->captures().any() && shim::is_capturing(driver(), place.name.stream);
}

// The driver's own memory. An allocation may make it take some, so it passes the gate, and is tried once more when
// others have made room.
template <class Call>
CUresult left_to_driver(const StreamPlace& place, CUmemoryPool pool, std::size_t bytes, Call call) {
  // The GPU of a pool of ours may be another one than the stream's.
  DeviceMemory* const owner = place.tenant->memories().owner_of_pool(pool);
  DeviceMemory& memory = owner != nullptr ? *owner : *place.memory;
  const CUresult result = place.tenant->memories().with_room(memory, bytes, [&] {
    // The thread leaves the gate before it waits for room.
    const Passage passage(Where{place.name.stream});
    return passage.is_stranded() ? CUDA_ERROR_OUT_OF_MEMORY : call();
  });
  if (result != CUDA_SUCCESS) return result;
  memory.count_pool(pool);
  place.tenant->memories().pager_thread().note_change(memory);
  return result;
}

// `pool` null: the current pool of the stream's GPU.
template <class Call>
CUresult allocate_from(CUdeviceptr* pointer, std::size_t bytes, CUmemoryPool pool, CUstream stream,
                       StreamVariant variant, Call call) {
  if (pointer == nullptr || bytes == 0) return call();
  const StreamPlace place = place_of(tenant(), stream, variant);
  if (place.memory == nullptr) return call();
  if (is_capturing(place)) {
    const Passage passage(Where{place.name.stream});
    if (passage.is_stranded()) return CUDA_ERROR_OUT_OF_MEMORY;
    place.memory->note_graph_memory();
    return call();
  }
  if (pool == nullptr) pool = place.memory->pools.current();
  if (!place.is_known || !place.memory->is_paged() || !place.memory->pools.has(pool))
    return left_to_driver(place, pool, bytes, call);
  return place.tenant->memories().allocate_in_order(*place.memory, pool, place.name, bytes, pointer);
}

// If no event can be recorded behind the stream's work, the thread waits for that work.
CUresult free_after(DeviceMemory& owner, CUdeviceptr pointer, CUstream stream) {
  const auto freeing = owner.pools.begin_free(pointer);
  if (!freeing) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = driver().cuStreamSynchronize(stream);
  owner.pools.end_free(*freeing, result == CUDA_SUCCESS);
  return result;
}

CUresult free_in_order(CUdeviceptr pointer, CUstream stream, StreamVariant variant,
                       CUresult (*real)(CUdeviceptr, CUstream)) {
  Tenant* const mine = tenant_if_any();
  if (mine == nullptr || pointer == 0) return real(pointer, stream);
  Memories& memories = mine->memories();
  DeviceMemory* owner = memories.owner_in_order(pointer);
  if (owner == nullptr && memories.owner_of(pointer) == nullptr)
    return memories.free_outside(pointer, [&] { return real(pointer, stream); });
  const StreamPlace place = place_of(mine, stream, variant);
  if (place.memory == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  // Memory that a graph frees has to be allocated in a graph.
  if (is_capturing(place)) return CUDA_ERROR_INVALID_VALUE;
  if (owner == nullptr) owner = memories.adopt(pointer);
  if (owner == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return place.is_known ? owner->pools.free(pointer, place.name) : free_after(*owner, pointer, place.name.stream);
}

// The pager has the allocations of such a pool: not shared, in device memory, and nothing special.
bool is_plain(const CUmemPoolProps& properties) {
  return properties.allocType == CU_MEM_ALLOCATION_TYPE_PINNED && properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE &&
         properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties.usage == 0;
}

DeviceMemory* owner_of(CUmemoryPool pool) {
  Tenant* const mine = tenant_if_any();
  return mine != nullptr && pool != nullptr ? mine->memories().owner_of_pool(pool) : nullptr;
}

bool is_amount(CUmemPool_attribute attribute) {
  return attribute >= CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT && attribute <= CU_MEMPOOL_ATTR_USED_MEM_HIGH;
}

template <class Call>
void for_each_seat(Call call) {
  if (Tenant* const mine = tenant_if_any()) mine->memories().each(call);
}

}  // namespace

CUresult cuMemAllocAsync(CUdeviceptr* pointer, std::size_t bytes, CUstream stream) {
  return allocate_from(pointer, bytes, nullptr, stream, StreamVariant::kLegacy,
                       [&] { return driver().cuMemAllocAsync(pointer, bytes, stream); });
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* pointer, std::size_t bytes, CUstream stream) {
  return allocate_from(pointer, bytes, nullptr, stream, StreamVariant::kPtsz,
                       [&] { return driver().cuMemAllocAsync_ptsz(pointer, bytes, stream); });
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* pointer, std::size_t bytes, CUmemoryPool pool, CUstream stream) {
  const auto call = [&] { return driver().cuMemAllocFromPoolAsync(pointer, bytes, pool, stream); };
  return pool != nullptr ? allocate_from(pointer, bytes, pool, stream, StreamVariant::kLegacy, call) : call();
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* pointer, std::size_t bytes, CUmemoryPool pool, CUstream stream) {
  const auto call = [&] { return driver().cuMemAllocFromPoolAsync_ptsz(pointer, bytes, pool, stream); };
  return pool != nullptr ? allocate_from(pointer, bytes, pool, stream, StreamVariant::kPtsz, call) : call();
}

// Neither gated nor waited for: it only says from where on in the stream the memory is free.
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  return free_in_order(pointer, stream, StreamVariant::kLegacy, driver().cuMemFreeAsync);
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
  return free_in_order(pointer, stream, StreamVariant::kPtsz, driver().cuMemFreeAsync_ptsz);
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  const CUresult result = driver().cuMemPoolCreate(pool, properties);
  if (result != CUDA_SUCCESS || !is_plain(*properties)) return result;
  Tenant* const mine = tenant();
  const auto slot = mine != nullptr ? mine->seat_of_device(properties->location.id) : std::nullopt;
  if (slot && mine->memories().of(*slot).is_paged()) mine->memories().of(*slot).pools.add(*pool, properties->maxSize);
  return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  // Before it is gone: no thread may ask it anything then.
  for_each_seat([pool](DeviceMemory& memory) { memory.forget_pool(pool); });
  const CUresult result = driver().cuMemPoolDestroy(pool);
  if (result != CUDA_SUCCESS) return result;
  for_each_seat([pool](DeviceMemory& memory) {
    memory.pools.forget_current();
    memory.pools.destroyed(pool);
  });
  if (Tenant* const mine = tenant_if_any()) mine->memories().forget_pool_access(pool);
  return result;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  const CUresult result = driver().cuDeviceSetMemPool(device, pool);
  for_each_seat([](DeviceMemory& memory) { memory.pools.forget_current(); });
  return result;
}
CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  const CUresult result = driver().cuMemSetMemPool(location, type, pool);
  for_each_seat([](DeviceMemory& memory) { memory.pools.forget_current(); });
  return result;
}

// The driver may have something in the same pool (allocations for streams of other GPUs).
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const CUresult result = driver().cuMemPoolGetAttribute(pool, attribute, value);
  DeviceMemory* const owner = result == CUDA_SUCCESS && is_amount(attribute) ? owner_of(pool) : nullptr;
  std::uint64_t ours = 0;
  if (owner == nullptr || owner->pools.get(pool, attribute, &ours) != CUDA_SUCCESS) return result;
  *static_cast<std::uint64_t*>(value) += ours;
  return result;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const CUresult result = driver().cuMemPoolSetAttribute(pool, attribute, value);
  if (result != CUDA_SUCCESS) return result;
  DeviceMemory* const owner = owner_of(pool);
  return owner != nullptr ? owner->pools.set(pool, attribute, value) : result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, std::size_t min_bytes_to_keep) {
  const CUresult result = driver().cuMemPoolTrimTo(pool, min_bytes_to_keep);
  DeviceMemory* const owner = result == CUDA_SUCCESS ? owner_of(pool) : nullptr;
  if (owner != nullptr) owner->pools.trim(pool, min_bytes_to_keep);
  return result;
}

// Graphs have their memory from the driver, when they run.
CUresult cuGraphAddMemAllocNode(CUgraphNode* graph_node, CUgraph graph, const CUgraphNode* dependencies,
                                std::size_t dependency_count, CUDA_MEM_ALLOC_NODE_PARAMS* node_params) {
  const auto real = driver().cuGraphAddMemAllocNode;
  const CUresult result = real(graph_node, graph, dependencies, dependency_count, node_params);
  Tenant* const mine = result == CUDA_SUCCESS ? tenant_if_any() : nullptr;
  if (mine == nullptr || node_params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return result;
  if (const auto slot = mine->seat_of_device(node_params->poolProps.location.id))
    mine->memories().of(*slot).note_graph_memory();
  return result;
}

}  // namespace gpumux::shim::hooks
