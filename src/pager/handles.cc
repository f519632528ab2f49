// SPDX-License-Identifier: Apache-2.0
// The program's own virtual memory: it creates memory by cuMemCreate and maps it by itself. It is paged as the rest is.
//
// A handle of the program's is a range whose addresses are the pager's own and normally without memory: a *home*. Each
// mapping that the program makes is a *view* of every chunk (chunk.h). Attaching a chunk maps all its views again, with
// the rights that the program gave; detaching takes them away. So the same memory may be mapped any number of times,
// unmapped and mapped elsewhere, and keeps its content, on the GPU or not. To copy, the pager goes by a view that its
// GPU may write, and maps the home only where there is none.
//
// The driver maps handles as a whole and in no other way (CUDA_ERROR_NOT_SUPPORTED; 580.159), and gives rights to whole
// mappings only. So there are no parts here: a mapping is an address and a list of rights.
//
// Memory that no device has a right to cannot be touched. So such a handle need not be on the GPU (Range::needed). It
// may be there or not until it is mapped, and holds no program up. cuMemSetAccess makes it count.
//
// A call of the program's claims all chunks of the handle, as a job claims one. It changes chunks that are on the GPU
// by the driver, and notes the change for the rest.
#include <unistd.h>

#include <algorithm>

#include "pager/pager.h"

namespace gpumux::pager {
namespace {

using cuda::CUresult;

// A handle that may be exported is one of the driver's, because the importer gets one. Larger handles would be too much
// to move at once, and are several of the driver's, which cannot be exported. JAX asks for all of its memory in one
// exportable handle, and exports none of it. No library is known to export more in one.
constexpr std::uint64_t kLargestWhole = 1024 * kMebibyte;

View& view_of(Chunk& chunk, cuda::CUdeviceptr mapping, cuda::CUdeviceptr home) {
  const cuda::CUdeviceptr address = mapping + (chunk.address - home);
  return *std::find_if(chunk.views.begin(), chunk.views.end(),
                       [&](const View& view) { return view.address == address && view.state != View::State::kGone; });
}

void erase_view(Chunk& chunk, const View& view) {
  chunk.views.erase(chunk.views.begin() + (&view - chunk.views.data()));
}

std::vector<cuda::CUmemAccessDesc> merged(std::vector<cuda::CUmemAccessDesc> rights, const cuda::CUmemAccessDesc* added,
                                          std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const cuda::CUmemLocation where = added[i].location;
    const auto same = [&](const cuda::CUmemAccessDesc& right) {
      return right.location.type == where.type && right.location.id == where.id;
    };
    rights.erase(std::remove_if(rights.begin(), rights.end(), same), rights.end());
    if (added[i].flags != cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE) rights.push_back(added[i]);
  }
  return rights;
}

// Calls `change(address, bytes)` for each row of neighbouring chunks that `is_in` holds for: one call of the driver
// does for all of them. `done(chunk)` follows for each. The first failure ends it.
template <class IsIn, class Change, class Done>
CUresult for_rows(Range& range, cuda::CUdeviceptr mapping, IsIn is_in, Change change, Done done) {
  for (std::size_t i = 0; i < range.chunks.size();) {
    if (!is_in(range.chunks[i])) {
      ++i;
      continue;
    }
    const std::size_t first = i;
    std::uint64_t bytes = 0;
    for (; i < range.chunks.size() && is_in(range.chunks[i]); ++i) bytes += range.chunks[i].bytes;
    const cuda::CUdeviceptr address = mapping + (range.chunks[first].address - range.base);
    if (const CUresult result = change(address, bytes); result != cuda::CUDA_SUCCESS) return result;
    for (std::size_t at = first; at < i; ++at) done(range.chunks[at]);
  }
  return cuda::CUDA_SUCCESS;
}

auto find_mapping_of(ProgramHandle& handle, cuda::CUdeviceptr address) {
  return std::find_if(handle.mappings.begin(), handle.mappings.end(),
                      [&](const ProgramHandle::Mapping& mapping) { return mapping.address == address; });
}

// The range that is mapped there, all of it claimed; null: there is none.
Range* claim_mapped(State& state, cuda::CUdeviceptr address) GPUMUX_REQUIRES(state.mutex) {
  const auto found = state.mappings.find(address);
  Range* const range = found == state.mappings.end() ? nullptr : state.claim_all(found->second);
  if (range == nullptr || find_mapping_of(*range->handle, address) != range->handle->mappings.end()) return range;
  state.unclaim_all(*range);
  return nullptr;
}

}  // namespace

bool Pager::can_page(const cuda::CUmemAllocationProp& properties, std::uint64_t bytes) {
  if (properties.type != cuda::CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties.location.type != cuda::CU_MEM_LOCATION_TYPE_DEVICE || properties.win32HandleMetaData != nullptr ||
      properties.allocFlags.compressionType != 0 || properties.allocFlags.usage != 0)
    return false;
  if (bytes == 0 || bytes % kBlockBytes != 0) return false;
  switch (properties.requestedHandleTypes) {
    case cuda::CU_MEM_HANDLE_TYPE_NONE: return true;
    case cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: return true;
    default: return false;
  }
}

CUresult Pager::create_handle(std::uint64_t bytes, const cuda::CUmemAllocationProp& properties, Placement placement,
                              std::uint64_t* handle) {
  auto range = std::make_unique<Range>();
  if (const CUresult result = state_.driver.cuMemAddressReserve(&range->base, bytes, 0, 0, 0);
      result != cuda::CUDA_SUCCESS)
    return result;
  range->bytes = bytes;
  range->requested_bytes = bytes;
  range->needed = false;
  range->handle = std::make_unique<ProgramHandle>();
  range->handle->properties = properties;
  if (!state_.commit(*range)) {
    state_.driver.cuMemAddressFree(range->base, bytes);
    return kBeyondCommitment;
  }
  const bool whole = properties.requestedHandleTypes != cuda::CU_MEM_HANDLE_TYPE_NONE && bytes <= kLargestWhole;
  const std::uint64_t chosen = state_.options.chunk_bytes;
  range->chunks = make_chunks(range->base, bytes, whole ? bytes : chosen != 0 ? chosen : chunk_bytes_for(bytes));
  for (Chunk& chunk : range->chunks) chunk.as = &range->handle->properties;
  const CUresult result = placement == Placement::kResident ? attach_all(*range) : cuda::CUDA_SUCCESS;
  if (result != cuda::CUDA_SUCCESS) {
    state_.destroy(std::move(range));
    return result;
  }
  const base::Locked locked(state_.mutex);
  range->id = state_.next_id++;
  *handle = range->id;
  state_.table.insert(std::move(range));
  return cuda::CUDA_SUCCESS;
}

// With the lock held; lets go of it while another thread of the program's works on it. Takes the range out of the table
// if the program has no reference to the handle and no mapping of it. False: it has, or a job works on it, after which
// it goes.
bool Pager::let_go_locked(std::uint64_t handle, std::unique_ptr<Range>* gone) {
  const auto is_over = [](const Range& range) {
    return range.handle->references == 0 && range.handle->mappings.empty();
  };
  Range* range = state_.table.by_id(handle);
  while (range != nullptr && range->is_held) {
    state_.mutex.wait();
    range = state_.table.by_id(handle);
  }
  // While this thread waited another one may have mapped it, or have been here.
  if (range == nullptr || !is_over(*range) || range->is_doomed()) return false;
  state_.doom(*range);
  *gone = state_.remove(*range);
  return *gone != nullptr;
}

CUresult Pager::release_handle(std::uint64_t handle) {
  std::unique_ptr<Range> gone;
  {
    const base::Locked locked(state_.mutex);
    Range* range = state_.table.by_id(handle);
    if (range == nullptr || range->handle == nullptr || range->is_doomed() || range->handle->references == 0)
      return cuda::CUDA_ERROR_INVALID_VALUE;
    --range->handle->references;
    if (!let_go_locked(handle, &gone)) return cuda::CUDA_SUCCESS;
  }
  discard(std::move(gone));
  return cuda::CUDA_SUCCESS;
}

CUresult Pager::retain_handle(cuda::CUdeviceptr address, std::uint64_t* handle) {
  const base::Locked locked(state_.mutex);
  const Found found = find_mapping_locked(address);
  if (found.range == nullptr || found.range->is_doomed()) return cuda::CUDA_ERROR_INVALID_VALUE;
  ++found.range->handle->references;
  *handle = found.range->id;
  return cuda::CUDA_SUCCESS;
}

bool Pager::find_handle(std::uint64_t handle, std::uint64_t* bytes, cuda::CUmemAllocationProp* properties) const {
  const base::Locked locked(state_.mutex);
  const Range* range = state_.table.by_id(handle);
  if (range == nullptr || range->handle == nullptr || range->is_doomed()) return false;
  *bytes = range->bytes;
  *properties = range->handle->properties;
  return true;
}

CUresult Pager::map_handle(std::uint64_t handle, cuda::CUdeviceptr address) {
  Range* range = nullptr;
  {
    const base::Locked locked(state_.mutex);
    range = state_.table.by_id(handle);
    if (range == nullptr || range->handle == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    range = state_.claim_all(handle);
    // Another thread has released it since: natively it would be no handle any more.
    if (range == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    if (range->handle->references == 0) {
      state_.unclaim_all(*range);
      return cuda::CUDA_ERROR_INVALID_VALUE;
    }
  }
  CUresult result = cuda::CUDA_SUCCESS;
  std::size_t mapped = 0;
  for (Chunk& chunk : range->chunks) {
    View view;
    view.address = address + (chunk.address - range->base);
    if (chunk.place == ChunkPlace::kDevice) {
      result = state_.driver.cuMemMap(view.address, chunk.bytes, 0, chunk.handle, 0);
      if (result != cuda::CUDA_SUCCESS) break;
      view.state = View::State::kGranted;
    }
    chunk.views.push_back(std::move(view));
    ++mapped;
  }
  if (result != cuda::CUDA_SUCCESS) {
    for (std::size_t i = 0; i < mapped; ++i) {
      Chunk& chunk = range->chunks[i];
      View& view = view_of(chunk, address, range->base);
      if (view.state != View::State::kAway &&
          state_.driver.cuMemUnmap(view.address, chunk.bytes) != cuda::CUDA_SUCCESS) {
        view.state = View::State::kGone;
      } else {
        erase_view(chunk, view);
      }
    }
  }
  std::unique_ptr<Range> gone;
  {
    const base::Locked locked(state_.mutex);
    state_.unclaim_all(*range);
    if (result == cuda::CUDA_SUCCESS) {
      range->handle->mappings.push_back({state_.next_id++, address, {}});
      state_.mappings.emplace(address, handle);
      return result;
    }
    if (!let_go_locked(handle, &gone)) return result;
  }
  discard(std::move(gone));
  return result;
}

CUresult Pager::unmap_handle(cuda::CUdeviceptr address) {
  Range* range = nullptr;
  {
    const base::Locked locked(state_.mutex);
    range = claim_mapped(state_, address);
    if (range == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  }
  const cuda::CUdeviceptr home = range->base;
  const auto view_at = [&](Chunk& chunk) {
    const cuda::CUdeviceptr at = address + (chunk.address - home);
    return std::find_if(chunk.views.begin(), chunk.views.end(),
                        [&](const View& view) { return view.address == at && view.state != View::State::kGone; });
  };
  // A failure of the first call keeps the mapping: nothing has changed, and the program may try again. After that there
  // is no way back: what the driver still has goes when it can.
  bool some = false;
  CUresult result = for_rows(
      *range, address,
      [&](Chunk& chunk) {
        const auto view = view_at(chunk);
        return view != chunk.views.end() && view->state != View::State::kAway;
      },
      [&](cuda::CUdeviceptr at, std::uint64_t bytes) { return state_.driver.cuMemUnmap(at, bytes); },
      [&](Chunk& chunk) {
        chunk.views.erase(view_at(chunk));
        some = true;
      });
  if (some) result = cuda::CUDA_SUCCESS;
  for (Chunk& chunk : range->chunks) {
    if (result != cuda::CUDA_SUCCESS) break;
    const auto view = view_at(chunk);
    if (view == chunk.views.end()) continue;
    if (view->state != View::State::kAway) {
      view->state = View::State::kGone;
    } else {
      chunk.views.erase(view);
    }
  }
  std::unique_ptr<Range> gone;
  {
    const base::Locked locked(state_.mutex);
    state_.unclaim_all(*range);
    if (result != cuda::CUDA_SUCCESS) return result;
    range->handle->mappings.erase(find_mapping_of(*range->handle, address));
    state_.mappings.erase(address);
    state_.update_needed(*range);
    if (!let_go_locked(range->id, &gone)) return cuda::CUDA_SUCCESS;
  }
  discard(std::move(gone));
  return cuda::CUDA_SUCCESS;
}

CUresult Pager::set_access(cuda::CUdeviceptr address, const cuda::CUmemAccessDesc* rights, std::size_t count) {
  Range* range = nullptr;
  std::vector<cuda::CUmemAccessDesc> before;
  {
    const base::Locked locked(state_.mutex);
    range = claim_mapped(state_, address);
    if (range == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    before = find_mapping_of(*range->handle, address)->rights;
  }
  const std::vector<cuda::CUmemAccessDesc> after = merged(before, rights, count);
  const auto is_there = [&](Chunk& chunk) {
    const View& view = view_of(chunk, address, range->base);
    return view.state == View::State::kGranted;
  };
  const auto set = [&](const cuda::CUmemAccessDesc* the, std::size_t number, auto done) {
    return for_rows(
        *range, address, is_there,
        [&](cuda::CUdeviceptr at, std::uint64_t bytes) { return state_.driver.cuMemSetAccess(at, bytes, the, number); },
        done);
  };
  std::vector<Chunk*> changed;
  const CUresult result = set(rights, count, [&](Chunk& chunk) { changed.push_back(&chunk); });
  if (result == cuda::CUDA_SUCCESS) {
    for (Chunk& chunk : range->chunks) view_of(chunk, address, range->base).rights = after;
  } else if (!changed.empty()) {
    // All or nothing: the locations get their former rights back. If that fails, the new rights stay, and the program
    // is not told.
    std::vector<cuda::CUmemAccessDesc> back(rights, rights + count);
    for (cuda::CUmemAccessDesc& right : back) {
      right.flags = cuda::CU_MEM_ACCESS_FLAGS_PROT_NONE;
      for (const cuda::CUmemAccessDesc& had : before) {
        if (had.location.type == right.location.type && had.location.id == right.location.id) right.flags = had.flags;
      }
    }
    set(back.data(), back.size(), [](Chunk&) {});
  }
  const base::Locked locked(state_.mutex);
  state_.unclaim_all(*range);
  if (result != cuda::CUDA_SUCCESS) return result;
  find_mapping_of(*range->handle, address)->rights = after;
  state_.update_needed(*range);
  return cuda::CUDA_SUCCESS;
}

Pager::Found Pager::find_mapping_locked(cuda::CUdeviceptr address) const {
  auto next = state_.mappings.upper_bound(address);
  if (next == state_.mappings.begin()) return {};
  --next;
  Range* range = state_.table.by_id(next->second);
  if (range == nullptr || address - next->first >= range->bytes) return {};
  return {range, nullptr, next->first};
}

std::optional<MappingInfo> Pager::find_mapping(cuda::CUdeviceptr address) const {
  const base::Locked locked(state_.mutex);
  const Found found = find_mapping_locked(address);
  if (found.range == nullptr) return std::nullopt;
  const auto mapping = find_mapping_of(*found.range->handle, found.base);
  MappingInfo info;
  info.address = found.base;
  info.bytes = found.range->bytes;
  info.id = mapping->id;
  info.handle = found.range->id;
  info.properties = found.range->handle->properties;
  info.rights = mapping->rights;
  return info;
}

void Pager::want_handle(std::uint64_t handle, bool want) {
  const base::Locked locked(state_.mutex);
  Range* range = state_.table.by_id(handle);
  if (range == nullptr || range->handle == nullptr) return;
  if (want) {
    ++range->handle->wanted;
  } else {
    --range->handle->wanted;
  }
  state_.update_needed(*range);
}

CUresult Pager::pin_handle(std::uint64_t handle, PinReason reason, std::vector<DriverPiece>* pieces) {
  const base::Locked locked(state_.mutex);
  Range* range = state_.table.by_id(handle);
  if (range == nullptr || range->handle == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  range = state_.claim_all(handle);
  if (range == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  state_.unclaim_all(*range);
  if (range->resident_bytes() != range->bytes) return cuda::CUDA_ERROR_NOT_READY;
  ++range->pins[static_cast<std::size_t>(reason)];
  pieces->clear();
  for (const Chunk& chunk : range->chunks) pieces->push_back({chunk.handle, chunk.bytes});
  return cuda::CUDA_SUCCESS;
}

CUresult Pager::unpin_handle(std::uint64_t handle, PinReason reason) {
  const base::Locked locked(state_.mutex);
  Range* range = state_.table.by_id(handle);
  if (range == nullptr || range->handle == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  std::uint32_t& count = range->pins[static_cast<std::size_t>(reason)];
  if (count == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  --count;
  return cuda::CUDA_SUCCESS;
}

const char* Pager::check_handle(const Range& range) const {
  if (range.handle == nullptr) return range.needed ? nullptr : "memory with an address of its own is not needed";
  const ProgramHandle& handle = *range.handle;
  if (handle.references == 0 && handle.mappings.empty()) return "nobody has a handle any more, and it is there";
  if (range.needed != (handle.wanted != 0 || handle.is_accessible())) return "a handle is needed and is not, or not so";
  for (const ProgramHandle::Mapping& mapping : handle.mappings) {
    const auto known = state_.mappings.find(mapping.address);
    if (known == state_.mappings.end() || known->second != range.id) return "a mapping is not found by its address";
    for (const Chunk& chunk : range.chunks) {
      const auto at = [&](const View& view) {
        return view.state != View::State::kGone && view.address == mapping.address + (chunk.address - range.base) &&
               view.rights.size() == mapping.rights.size();
      };
      if (std::count_if(chunk.views.begin(), chunk.views.end(), at) != 1) return "a chunk lacks a view of a mapping";
    }
  }
  for (const Chunk& chunk : range.chunks) {
    const auto live = std::count_if(chunk.views.begin(), chunk.views.end(),
                                    [](const View& v) { return v.state != View::State::kGone; });
    if (static_cast<std::size_t>(live) != handle.mappings.size()) return "a chunk has a view that nobody made";
  }
  return nullptr;
}

}  // namespace gpumux::pager
