// SPDX-License-Identifier: Apache-2.0
#include "pager/pager.h"

#include <algorithm>
#include <utility>

#include "cuda/relaxed_capture.h"
#include "pager/adapters.h"

namespace gpumux::pager {
namespace {

using cuda::CUresult;

}  // namespace

Pager::Pager(const cuda::Driver& driver, const Options& options) : state_(driver, options) {}

Pager::~Pager() {
  std::vector<std::unique_ptr<Range>> all;
  {
    const base::Locked locked(state_.mutex);
    while (!state_.table.all().empty()) all.push_back(state_.table.remove(*state_.table.all().begin()->second));
  }
  for (auto& range : all) state_.destroy(std::move(range));
  state_.trim(UINT64_MAX);
}

Pager::Found Pager::find_locked(cuda::CUdeviceptr address) const {
  Range* range = state_.table.find(address);
  // The home of a handle (handles.cc) is no address of the program's.
  if (range == nullptr || range->handle != nullptr) return find_mapping_locked(address);
  if (range->slab == nullptr) {
    // Addresses reserved beyond the requested size belong to no allocation.
    if (address - range->base >= range->requested_bytes) return {};
    return {range, nullptr, range->base};
  }
  const auto offset = range->slab->holding(address - range->base);
  if (!offset) return {};
  return {range, range->slab->find(*offset), range->base + *offset};
}

bool Pager::owns(cuda::CUdeviceptr address) const {
  const base::Locked locked(state_.mutex);
  const Range* range = state_.table.find(address);
  return range != nullptr && range->handle == nullptr;
}

std::optional<AddressInfo> Pager::find(cuda::CUdeviceptr address) const {
  const base::Locked locked(state_.mutex);
  const Found found = find_locked(address);
  if (found.range == nullptr) return std::nullopt;
  const Range& range = *found.range;
  AddressInfo info;
  info.base = found.base;
  info.bytes = found.piece != nullptr ? found.piece->bytes : range.requested_bytes;
  info.context = range.context;
  info.buffer_id = found.piece != nullptr ? found.piece->id : range.id;
  info.mapping_base = range.handle != nullptr ? found.base : range.base;
  info.mapping_bytes = range.bytes;
  info.handle = range.handle != nullptr ? range.id : 0;
  info.resident = range.resident_bytes() == range.bytes;
  info.pinned = range.pinned();
  return info;
}

std::optional<std::uint64_t> Pager::bytes_to_end(cuda::CUdeviceptr address) const {
  const base::Locked locked(state_.mutex);
  const Found found = find_locked(address);
  if (found.range == nullptr || found.range->handle != nullptr) return std::nullopt;
  const std::uint64_t bytes = found.piece != nullptr ? found.piece->bytes : found.range->requested_bytes;
  return bytes - (address - found.base);
}

// Allocation

std::unique_ptr<Range> Pager::take_reusable(std::uint64_t bytes) {
  const base::Locked locked(state_.mutex);
  // The most recently freed: its translations may still be in the GPU's caches.
  for (auto range = state_.reusable.rbegin(); range != state_.reusable.rend(); ++range) {
    if ((*range)->bytes != bytes) continue;
    std::unique_ptr<Range> taken = std::move(*range);
    state_.reusable.erase(std::next(range).base());
    state_.reusable_bytes -= bytes;
    taken->id = state_.next_id++;
    return taken;
  }
  return nullptr;
}

CUresult Pager::attach_all(Range& range) {
  for (Chunk& chunk : range.chunks) {
    CUresult result = state_.mapper.attach(chunk, range.peers);
    while (result == cuda::CUDA_ERROR_OUT_OF_MEMORY && state_.trim(chunk.bytes) != 0)
      result = state_.mapper.attach(chunk, range.peers);
    if (result != cuda::CUDA_SUCCESS) return result;
    chunk.place = ChunkPlace::kDevice;
  }
  return cuda::CUDA_SUCCESS;
}

CUresult Pager::make_range(std::uint64_t bytes, Placement placement, std::unique_ptr<Range>* range) {
  if (auto again = take_reusable(bytes)) {
    if (!state_.commit(*again)) {
      discard(std::move(again));
      return kBeyondCommitment;
    }
    *range = std::move(again);
    return cuda::CUDA_SUCCESS;
  }
  auto made = std::make_unique<Range>();
  const cuda::RelaxedCapture relaxed(state_.driver);
  const CUresult reserved = state_.driver.cuMemAddressReserve(&made->base, bytes, 0, 0, 0);
  if (reserved != cuda::CUDA_SUCCESS) return reserved;
  made->bytes = bytes;
  if (!state_.commit(*made)) {
    state_.driver.cuMemAddressFree(made->base, bytes);
    return kBeyondCommitment;
  }
  const std::uint64_t chosen = state_.options.chunk_bytes;
  made->chunks = make_chunks(made->base, bytes, chosen != 0 ? chosen : chunk_bytes_for(bytes));
  {
    const base::Locked locked(state_.mutex);
    made->id = state_.next_id++;
    made->peers = state_.peers;
  }
  const CUresult result = placement == Placement::kResident ? attach_all(*made) : cuda::CUDA_SUCCESS;
  if (result != cuda::CUDA_SUCCESS) {
    state_.destroy(std::move(made));
    return result;
  }
  *range = std::move(made);
  return cuda::CUDA_SUCCESS;
}

// Peers may have been enabled or disabled since the range was made, or while it was kept for reuse.
CUresult Pager::grant_peers(Range& range) {
  std::vector<cuda::CUdevice> wanted;
  {
    const base::Locked locked(state_.mutex);
    wanted = state_.peers;
  }
  for (const bool may : {true, false}) {
    const auto& want = may ? wanted : range.peers;
    const auto& have = may ? range.peers : wanted;
    for (const cuda::CUdevice peer : want) {
      if (std::find(have.begin(), have.end(), peer) != have.end()) continue;
      for (const Chunk& chunk : range.chunks) {
        if (chunk.place != ChunkPlace::kDevice) continue;
        if (const CUresult result = state_.mapper.set_peer(chunk, peer, may); result != cuda::CUDA_SUCCESS)
          return result;
      }
    }
  }
  range.peers = std::move(wanted);
  return cuda::CUDA_SUCCESS;
}

// Puts a range into the table, with the rights that ranges have at that moment.
CUresult Pager::insert(std::unique_ptr<Range> range, Range** inserted) {
  for (;;) {
    {
      const base::Locked locked(state_.mutex);
      if (range->peers == state_.peers) {
        if (range->holds_up()) state_.evicted_bytes.fetch_add(range->bytes - range->resident_bytes());
        *inserted = state_.table.insert(std::move(range));
        return cuda::CUDA_SUCCESS;
      }
    }
    if (const CUresult result = grant_peers(*range); result != cuda::CUDA_SUCCESS) {
      state_.destroy(std::move(range));
      return result;
    }
  }
}

CUresult Pager::allocate(cuda::CUcontext context, std::size_t bytes, Placement placement, cuda::CUdeviceptr* address) {
  if (address == nullptr || bytes == 0) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (bytes > UINT64_MAX - kBlockBytes) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  if (bytes <= kLargestPackedBytes) return allocate_packed(context, bytes, placement, address);
  std::unique_ptr<Range> range;
  if (const CUresult result = make_range(round_up(bytes, kBlockBytes), placement, &range); result != cuda::CUDA_SUCCESS)
    return result;
  range->requested_bytes = bytes;
  range->context = context;
  Range* inserted = nullptr;
  const CUresult result = insert(std::move(range), &inserted);
  // No other thread knows the address yet: the range cannot have gone.
  if (result == cuda::CUDA_SUCCESS) *address = inserted->base;
  return result;
}

CUresult Pager::allocate_packed(cuda::CUcontext context, std::size_t bytes, Placement placement,
                                cuda::CUdeviceptr* address) {
  const auto take = [&](Range& range) GPUMUX_REQUIRES(state_.mutex) {
    const auto offset = range.slab->take(bytes, state_.next_id);
    if (!offset) return false;
    ++state_.next_id;
    *address = range.base + *offset;
    return true;
  };
  {
    const base::Locked locked(state_.mutex);
    for (std::size_t i = open_slabs_.size(); i-- > 0;) {
      Range& range = *open_slabs_[i];
      if (range.slab->largest_free() == 0) {
        open_slabs_.erase(open_slabs_.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      if (range.context != context || range.is_doomed()) continue;
      // A seat that holds a lease gets memory that is resident.
      if (placement == Placement::kResident && range.chunks.front().place != ChunkPlace::kDevice) continue;
      if (take(range)) return cuda::CUDA_SUCCESS;
    }
  }
  std::unique_ptr<Range> range;
  if (const CUresult result = make_range(kBlockBytes, placement, &range); result != cuda::CUDA_SUCCESS) return result;
  range->requested_bytes = 0;
  range->context = context;
  range->slab = std::make_unique<Slab>();
  {
    // The first piece is taken before another thread can see the slab, and take all of it.
    const base::Locked locked(state_.mutex);
    take(*range);
  }
  const cuda::CUdeviceptr taken = *address;
  Range* inserted = nullptr;
  const CUresult result = insert(std::move(range), &inserted);
  if (result != cuda::CUDA_SUCCESS) return result;
  *address = taken;
  const base::Locked locked(state_.mutex);
  open_slabs_.push_back(inserted);
  return cuda::CUDA_SUCCESS;
}

CUresult Pager::lay_out_rows(std::size_t width_bytes, std::size_t height, unsigned element_bytes, std::size_t* pitch,
                             std::uint64_t* bytes) {
  const bool element = element_bytes == 4 || element_bytes == 8 || element_bytes == 16;
  if (width_bytes == 0 || height == 0 || !element) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (width_bytes > UINT64_MAX - kPitchBytes) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  *pitch = round_up(width_bytes, kPitchBytes);
  if (height > UINT64_MAX / *pitch) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  *bytes = *pitch * height;
  return cuda::CUDA_SUCCESS;
}

CUresult Pager::allocate_pitch(cuda::CUcontext context, std::size_t width_bytes, std::size_t height,
                               unsigned element_bytes, Placement placement, cuda::CUdeviceptr* address,
                               std::size_t* pitch) {
  if (address == nullptr || pitch == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  std::size_t row = 0;
  std::uint64_t bytes = 0;
  CUresult result = lay_out_rows(width_bytes, height, element_bytes, &row, &bytes);
  if (result == cuda::CUDA_SUCCESS) result = allocate(context, bytes, placement, address);
  if (result == cuda::CUDA_SUCCESS) *pitch = row;
  return result;
}

// Freeing

// Keeps a range for reuse, if it may be kept and there is room; destroys it otherwise. It is in no table any more.
void Pager::discard(std::unique_ptr<Range> range) {
  const bool keep = !range->foreign && range->handle == nullptr && !range->pinned() &&
                    range->bytes <= state_.options.reuse_bytes && range->resident_bytes() == range->bytes;
  if (!keep) {
    const cuda::RelaxedCapture relaxed(state_.driver);
    state_.destroy(std::move(range));
    return;
  }
  state_.uncommit(*range);
  for (Chunk& chunk : range->chunks) {
    state_.transfers.forget(chunk.saved, chunk.number);
    chunk.was_cheap = false;
  }
  range->slab.reset();
  range->life = Range::Life::kUsed;
  std::uint64_t surplus = 0;
  {
    const base::Locked locked(state_.mutex);
    state_.reusable_bytes += range->bytes;
    state_.reusable.push_back(std::move(range));
    if (state_.reusable_bytes > state_.options.reuse_bytes)
      surplus = state_.reusable_bytes - state_.options.reuse_bytes;
  }
  if (surplus != 0) {
    const cuda::RelaxedCapture relaxed(state_.driver);
    state_.trim(surplus);
  }
}

CUresult Pager::free(cuda::CUdeviceptr address, WaitForWork wait, void* argument) {
  if (address == 0) return cuda::CUDA_SUCCESS;
  cuda::CUcontext context = nullptr;
  std::uint64_t id = 0;
  {
    const base::Locked locked(state_.mutex);
    const Found found = find_locked(address);
    if (found.range == nullptr || found.range->handle != nullptr || found.base != address || found.range->is_doomed() ||
        (found.piece != nullptr ? found.piece->doomed : found.range->life == Range::Life::kAwaited))
      return cuda::CUDA_ERROR_INVALID_VALUE;
    context = found.range->context;
    id = found.id();
    if (found.piece != nullptr) {
      found.piece->doomed = true;
    } else {
      found.range->life = Range::Life::kAwaited;
    }
  }
  // The work that is waited for may be frozen. Until it has ended, the memory moves as all other.
  const CUresult waited = wait(argument, context);
  std::unique_ptr<Range> gone;
  {
    const base::Locked locked(state_.mutex);
    Found found = find_locked(address);
    while (found.range != nullptr && found.range->is_held) {
      state_.mutex.wait();
      found = find_locked(address);
    }
    // Another thread may have destroyed its context since, and the address may be another allocation's.
    if (found.range == nullptr || found.id() != id) return cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED;
    Range& range = *found.range;
    if (waited != cuda::CUDA_SUCCESS) {
      if (found.piece != nullptr) {
        found.piece->doomed = false;
      } else if (!range.is_doomed()) {
        range.life = Range::Life::kUsed;
      }
      return waited;
    }
    if (found.piece == nullptr) {
      state_.doom(range);
    } else {
      range.slab->give(address - range.base);
      if (range.is_doomed()) return cuda::CUDA_SUCCESS;  // all of it goes
      // An empty slab that is being moved stays, for the next allocation. A slab that is pinned goes like any other.
      if (!range.slab->empty() || range.claims != 0) {
        if (std::find(open_slabs_.begin(), open_slabs_.end(), &range) == open_slabs_.end())
          open_slabs_.push_back(&range);
        return cuda::CUDA_SUCCESS;
      }
      open_slabs_.erase(std::remove(open_slabs_.begin(), open_slabs_.end(), &range), open_slabs_.end());
      state_.doom(range);
    }
    gone = state_.remove(range);
  }
  if (gone == nullptr) return cuda::CUDA_SUCCESS;
  discard(std::move(gone));
  return cuda::CUDA_SUCCESS;
}

void Pager::context_going(cuda::CUcontext context) {
  std::vector<std::unique_ptr<Range>> gone;
  {
    const base::Locked locked(state_.mutex);
    std::vector<Range*> its;
    const auto find_its = [&]() GPUMUX_REQUIRES(state_.mutex) {
      its.clear();
      for (const auto& [base, range] : state_.table.all()) {
        if (range->context == context && range->life != Range::Life::kLeaving) its.push_back(range.get());
      }
      return std::any_of(its.begin(), its.end(), [](const Range* range) { return range->is_held; });
    };
    while (find_its()) state_.mutex.wait();
    for (Range* const range : its) {
      state_.doom(*range);
      open_slabs_.erase(std::remove(open_slabs_.begin(), open_slabs_.end(), range), open_slabs_.end());
      if (auto removed = state_.remove(*range)) gone.push_back(std::move(removed));
    }
  }
  for (auto& range : gone) state_.destroy(std::move(range));
}

// Jobs

CUresult Pager::begin_job() {
  {
    const base::Locked locked(state_.mutex);
    if (std::exchange(state_.job_running, true)) return cuda::CUDA_ERROR_NOT_READY;
  }
  state_.name_content();
  return cuda::CUDA_SUCCESS;
}

std::unique_ptr<Eviction> Pager::begin_eviction(const DrainedSeat& drained, std::uint64_t bytes, CUresult* error) {
  if (adapters_may_use_memory()) {
    *error = cuda::CUDA_ERROR_NOT_PERMITTED;
    return nullptr;
  }
  *error = begin_job();
  return *error == cuda::CUDA_SUCCESS ? std::make_unique<Eviction>(state_, drained, bytes) : nullptr;
}

std::unique_ptr<Restoration> Pager::begin_restoration(CUresult* error) {
  *error = begin_job();
  return *error == cuda::CUDA_SUCCESS ? std::make_unique<Restoration>(state_) : nullptr;
}

Counters Pager::counters() const {
  const base::Locked locked(state_.mutex);
  Counters counters;
  for (const auto& [base, range] : state_.table.all()) {
    const auto reason = std::find_if(range->pins.begin(), range->pins.end(), [](auto count) { return count != 0; });
    if (reason != range->pins.end())
      counters.unpageable[static_cast<std::size_t>(reason - range->pins.begin())] += range->resident_bytes();
    for (const Chunk& chunk : range->chunks) {
      if (chunk.claimed) continue;
      const std::uint64_t saved = slot_bytes(chunk.saved);
      counters.host_used += saved;
      if (chunk.place == ChunkPlace::kDevice) counters.clean_copies += saved;
    }
  }
  counters.moved = state_.moved;
  return counters;
}

}  // namespace gpumux::pager
