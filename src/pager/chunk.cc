// SPDX-License-Identifier: Apache-2.0
#include "pager/chunk.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/no_fork.h"

namespace gpumux::pager {

using cuda::CUresult;

cuda::CUmemAllocationProp Mapper::properties() const {
  cuda::CUmemAllocationProp properties{};
  properties.type = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
  // Memory made without this type can never be exported, and programs export what they allocated long ago (legacy IPC).
  properties.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, device_};
  // As memory from cuMemAlloc: network adapters can reach it.
  properties.allocFlags.gpuDirectRDMACapable = is_for_networks() ? 1 : 0;
  return properties;
}

bool Mapper::is_for_networks() const {
  int value = 0;
  return driver_.cuDeviceGetAttribute != nullptr &&
         driver_.cuDeviceGetAttribute(&value, cuda::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                                      device_) == cuda::CUDA_SUCCESS &&
         value != 0;
}

bool Chunk::is_complete() const {
  const auto seen = [](const View& view) { return view.state >= View::State::kGranted; };
  return step >= (as != nullptr ? Step::kCreated : Step::kAccessible) && std::all_of(views.begin(), views.end(), seen);
}

CUresult Mapper::map_home(Chunk& chunk, const std::vector<cuda::CUdevice>& peers) const {
  if (chunk.step < Chunk::Step::kMapped) {
    if (const CUresult result = driver_.cuMemMap(chunk.address, chunk.bytes, 0, chunk.handle, 0);
        result != cuda::CUDA_SUCCESS)
      return result;
    chunk.step = Chunk::Step::kMapped;
  }
  if (chunk.step == Chunk::Step::kAccessible) return cuda::CUDA_SUCCESS;
  std::vector<cuda::CUmemAccessDesc> rights;
  rights.reserve(peers.size() + 1);
  rights.push_back({{cuda::CU_MEM_LOCATION_TYPE_DEVICE, device_}, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  for (const cuda::CUdevice peer : peers)
    rights.push_back({{cuda::CU_MEM_LOCATION_TYPE_DEVICE, peer}, cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  const CUresult result = driver_.cuMemSetAccess(chunk.address, chunk.bytes, rights.data(), rights.size());
  if (result == cuda::CUDA_SUCCESS) chunk.step = Chunk::Step::kAccessible;
  return result;
}

CUresult Mapper::show(const Chunk& chunk, View& view) const {
  if (view.state == View::State::kAway) {
    if (const CUresult result = driver_.cuMemMap(view.address, chunk.bytes, 0, chunk.handle, 0);
        result != cuda::CUDA_SUCCESS)
      return result;
    view.state = view.rights.empty() ? View::State::kGranted : View::State::kMapped;
  }
  if (view.state == View::State::kGranted) return cuda::CUDA_SUCCESS;
  const CUresult result = driver_.cuMemSetAccess(view.address, chunk.bytes, view.rights.data(), view.rights.size());
  if (result == cuda::CUDA_SUCCESS) view.state = View::State::kGranted;
  return result;
}

CUresult Mapper::make(Chunk& chunk) const {
  cuda::CUmemAllocationProp wanted = chunk.as != nullptr ? *chunk.as : properties();
  // The node's mover must be given it, whatever the program wants of it.
  if (wanted.requestedHandleTypes == cuda::CU_MEM_HANDLE_TYPE_NONE)
    wanted.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return driver_.cuMemCreate(&chunk.handle, chunk.bytes, &wanted, 0);
}

CUresult Mapper::adopt(Chunk& chunk, const KeptFrame& frame, const std::vector<cuda::CUdevice>& peers) const {
  CUresult result = cuda::CUDA_ERROR_INVALID_VALUE;  // the program has closed the descriptor
  {
    const base::NoFork no_fork;
    if (const int fd = frame.keeper->descriptor(frame.number); fd >= 0) {
      result =
          driver_.cuMemImportFromShareableHandle(&chunk.handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                                 cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      ::close(fd);
    }
  }
  if (result != cuda::CUDA_SUCCESS) {
    frame.keeper->freed(frame.number);
    give_room(chunk);
    return result;
  }
  chunk.frame = frame;
  chunk.step = Chunk::Step::kCreated;
  result = map_home(chunk, peers);
  if (result != cuda::CUDA_SUCCESS) detach(chunk);
  return result;
}

// Its handle, which nothing is mapped from.
CUresult Mapper::let_go(Chunk& chunk) const {
  if (const CUresult result = driver_.cuMemRelease(chunk.handle); result != cuda::CUDA_SUCCESS) return result;
  const bool took_room = chunk.takes_room();
  chunk.step = Chunk::Step::kNone;
  chunk.handle = 0;
  chunk.owner = Chunk::Owner::kSeat;
  if (const auto frame = std::exchange(chunk.frame, std::nullopt)) frame->keeper->freed(frame->number);
  chunk.is_stuck = false;
  if (took_room) bounds_.give(chunk.bytes);
  return cuda::CUDA_SUCCESS;
}

CUresult Mapper::share(Chunk& chunk, int* fd) const {
  chunk.share();
  return lend(chunk, fd);
}

CUresult Mapper::lend(const Chunk& chunk, int* fd) const {
  if (!chunk.frame) {
    return driver_.cuMemExportToShareableHandle(fd, chunk.handle, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  }
  *fd = chunk.frame->keeper->descriptor(chunk.frame->number);
  return *fd >= 0 ? cuda::CUDA_SUCCESS : cuda::CUDA_ERROR_NOT_SUPPORTED;
}

CUresult Mapper::attach(Chunk& chunk, const std::vector<cuda::CUdevice>& peers) const {
  CUresult result = cuda::CUDA_SUCCESS;
  if (!chunk.has_memory()) {
    if (!bounds_.take(chunk.bytes)) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
    result = make(chunk);
    if (result == cuda::CUDA_SUCCESS) {
      chunk.step = Chunk::Step::kCreated;
    } else {
      bounds_.give(chunk.bytes);
    }
  }
  if (chunk.has_memory() && chunk.as == nullptr) result = map_home(chunk, peers);
  for (View& view : chunk.views) {
    if (result == cuda::CUDA_SUCCESS && view.state != View::State::kGone) result = show(chunk, view);
  }
  if (!chunk.is_complete()) detach(chunk);
  return result;
}

CUresult Mapper::detach(Chunk& chunk) const {
  if (chunk.step >= Chunk::Step::kMapped) {
    if (const CUresult result = driver_.cuMemUnmap(chunk.address, chunk.bytes); result != cuda::CUDA_SUCCESS)
      return result;
    chunk.step = Chunk::Step::kCreated;
  }
  for (auto view = chunk.views.begin(); view != chunk.views.end();) {
    if (view->state != View::State::kAway) {
      if (const CUresult result = driver_.cuMemUnmap(view->address, chunk.bytes); result != cuda::CUDA_SUCCESS)
        return result;
    }
    const bool gone = std::exchange(view->state, View::State::kAway) == View::State::kGone;
    view = gone ? chunk.views.erase(view) : view + 1;
  }
  return chunk.has_memory() ? let_go(chunk) : cuda::CUDA_SUCCESS;
}

CUresult Mapper::set_peer(const Chunk& chunk, cuda::CUdevice peer, bool may) const {
  const cuda::CUmemAccessDesc rights{
      {cuda::CU_MEM_LOCATION_TYPE_DEVICE, peer},
      may ? cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE : cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE};
  return driver_.cuMemSetAccess(chunk.address, chunk.bytes, &rights, 1);
}

}  // namespace gpumux::pager
