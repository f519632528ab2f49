// SPDX-License-Identifier: Apache-2.0
#include "pager/chunk.h"

#include <fcntl.h>
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

std::uint64_t Chunk::likely_host_bytes() const {
  if (was_cheap) return 0;
  if (content.empty()) return bytes;
  std::uint64_t sum = 0;
  for (const Block& block : content) sum += !block.slot && block.kind != Block::Kind::kConstant ? kBlockBytes : 0;
  return sum;
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

// The daemon's keeper of frames takes memory that it has lent, or that was made here.
bool Mapper::may_be_given(const Chunk& chunk) const {
  return frames_ != nullptr && may_be_frame(chunk) && (!chunk.frame || chunk.frame->keeper == frames_) &&
         frames_->wants(chunk.frame ? chunk.frame->number : 0, chunk.bytes);
}

CUresult Mapper::import_memory(int fd, cuda::CUmemGenericAllocationHandle* handle) const {
  return driver_.cuMemImportFromShareableHandle(handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                                cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

// None: there is none, or the driver does not import it.
std::optional<KeptFrame> Mapper::take_frame(std::uint64_t bytes, cuda::CUmemGenericAllocationHandle* handle) const {
  std::optional<Frames::Lent> lent;
  {
    const base::NoFork no_fork;
    lent = frames_->take(bytes);
    if (!lent) return std::nullopt;
    const CUresult result = import_memory(lent->fd, handle);
    ::close(lent->fd);
    if (result == cuda::CUDA_SUCCESS) return KeptFrame{frames_, lent->number};
  }
  frames_->freed(lent->number);
  return std::nullopt;
}

CUresult Mapper::make(Chunk& chunk, Content content) const {
  if (content == Content::kOverwritten && frames_ != nullptr) {
    chunk.frame = take_frame(chunk.bytes, &chunk.handle);
    if (chunk.frame) return cuda::CUDA_SUCCESS;
  }
  cuda::CUmemAllocationProp wanted = chunk.as != nullptr ? *chunk.as : properties();
  // The node's mover must be given it, whatever the program wants of it.
  if (wanted.requestedHandleTypes == cuda::CU_MEM_HANDLE_TYPE_NONE && is_lendable_.load(std::memory_order_relaxed))
    wanted.requestedHandleTypes = cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return driver_.cuMemCreate(&chunk.handle, chunk.bytes, &wanted, 0);
}

CUresult Mapper::adopt(Chunk& chunk, const KeptFrame& frame, const std::vector<cuda::CUdevice>& peers) const {
  CUresult result = cuda::CUDA_ERROR_INVALID_VALUE;  // the program has closed the descriptor
  {
    const base::NoFork no_fork;
    if (const int fd = frame.keeper->descriptor(frame.number); fd >= 0) {
      result = import_memory(fd, &chunk.handle);
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
CUresult Mapper::let_go(Chunk& chunk, Fate fate) const {
  bool is_given = fate == Fate::kHandedOver && may_be_given(chunk);
  std::optional<base::NoFork> no_fork;
  int fd = -1;
  if (is_given && !chunk.frame) {
    no_fork.emplace();
    is_given = driver_.cuMemExportToShareableHandle(&fd, chunk.handle, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                                    0) == cuda::CUDA_SUCCESS;
    // A program that another thread starts in this moment is not to keep the memory.
    if (is_given) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  if (const CUresult result = driver_.cuMemRelease(chunk.handle); result != cuda::CUDA_SUCCESS) {
    if (is_given && fd >= 0) ::close(fd);
    return result;
  }
  const bool took_room = chunk.takes_room();
  chunk.step = Chunk::Step::kNone;
  chunk.handle = 0;
  chunk.owner = Chunk::Owner::kSeat;
  const std::optional<KeptFrame> frame = std::exchange(chunk.frame, std::nullopt);
  // Before the room is another seat's: a seat that hears of that looks for the frame.
  if (is_given) {
    frames_->give(frame ? frame->number : 0, chunk.bytes, fd);
  } else if (frame) {
    frame->keeper->freed(frame->number);
  }
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

CUresult Mapper::attach(Chunk& chunk, const std::vector<cuda::CUdevice>& peers, Content content) const {
  CUresult result = cuda::CUDA_SUCCESS;
  if (!chunk.has_memory()) {
    if (!bounds_.take(chunk.bytes)) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
    result = make(chunk, content);
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

CUresult Mapper::reach(Chunk& chunk) const {
  chunk.reach = chunk.address;
  if (chunk.step == Chunk::Step::kAccessible) return cuda::CUDA_SUCCESS;
  for (const View& view : chunk.views) {
    if (view.state != View::State::kGranted) continue;
    for (const cuda::CUmemAccessDesc& right : view.rights) {
      if (right.location.type != cuda::CU_MEM_LOCATION_TYPE_DEVICE || right.location.id != device_ ||
          right.flags != cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        continue;
      chunk.reach = view.address;
      return cuda::CUDA_SUCCESS;
    }
  }
  return map_home(chunk, {});
}

CUresult Mapper::detach(Chunk& chunk, Fate fate) const {
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
  return chunk.has_memory() ? let_go(chunk, fate) : cuda::CUDA_SUCCESS;
}

CUresult Mapper::set_peer(const Chunk& chunk, cuda::CUdevice peer, bool may) const {
  const cuda::CUmemAccessDesc rights{
      {cuda::CU_MEM_LOCATION_TYPE_DEVICE, peer},
      may ? cuda::CU_MEM_ACCESS_FLAGS_PROT_READWRITE : cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE};
  return driver_.cuMemSetAccess(chunk.address, chunk.bytes, &rights, 1);
}

}  // namespace gpumux::pager
