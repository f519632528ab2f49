// SPDX-License-Identifier: Apache-2.0
#include "shim/memory/pools.h"

#include <algorithm>
#include <cstdint>

namespace gpumux::shim {
namespace {

using cuda::CUresult;
using pager::lacks_memory;
using pager::round_up;

// An event costs 1.3 us to ask about. While memory is not short, one call asks about this many at
// most, which takes 20 us.
constexpr std::size_t kFewQuestions = 16;
constexpr std::size_t kAllQuestions = SIZE_MAX;

bool is_about_capture(CUresult result) {
  return result >= cuda::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= cuda::CUDA_ERROR_CAPTURED_EVENT;
}

std::uint64_t block_bytes(std::uint64_t bytes) {
  return round_up(bytes, bytes <= Pools::kLargestSmall ? Pools::kSmallStep : Pools::kLargeStep);
}

}  // namespace

Pools::Pools(const cuda::Driver& driver, Port& port, cuda::CUdevice device, std::uint32_t slot)
    : driver_(driver), port_(port), device_(device), slot_(slot) {}

std::uint64_t Pools::segment_bytes(std::uint64_t bytes) {
  return round_up(std::min(bytes, UINT64_MAX / 2), pager::kBlockBytes);
}

// ---- which pools

Pools::Pool* Pools::find_pool(cuda::CUmemoryPool handle) const {
  for (const auto& pool : pools_) {
    if (pool->handle == handle && !pool->is_destroyed) return pool.get();
  }
  return nullptr;
}

void Pools::add(cuda::CUmemoryPool handle, std::uint64_t largest) {
  auto pool = std::make_unique<Pool>();
  pool->handle = handle;
  pool->largest = largest;
  if (const auto get = driver_.cuMemPoolGetAttribute; get != nullptr) {
    get(handle, cuda::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &pool->threshold);
    for (int i = 0; i < 3; ++i) get(handle, static_cast<cuda::CUmemPool_attribute>(i + 1), &pool->reuse[i]);
  }
  const base::Locked locked(mutex_);
  if (find_pool(handle) == nullptr) pools_.push_back(std::move(pool));
}

bool Pools::has(cuda::CUmemoryPool handle) {
  {
    const base::Locked locked(mutex_);
    if (find_pool(handle) != nullptr) return true;
    if (default_ == nullptr && driver_.cuDeviceGetDefaultMemPool != nullptr)
      driver_.cuDeviceGetDefaultMemPool(&default_, device_);
    if (handle == nullptr || handle != default_) return false;
  }
  add(handle, 0);
  return true;
}

cuda::CUmemoryPool Pools::current() {
  const base::Locked locked(mutex_);
  // Under the lock: a thread that changes it calls forget_current afterwards.
  if (current_ == nullptr && driver_.cuDeviceGetMemPool != nullptr) driver_.cuDeviceGetMemPool(&current_, device_);
  return current_;
}

void Pools::forget_current() {
  const base::Locked locked(mutex_);
  current_ = nullptr;
}

void Pools::destroyed(cuda::CUmemoryPool handle) {
  {
    const base::Locked locked(mutex_);
    Pool* const pool = find_pool(handle);
    if (pool == nullptr) return;
    pool->is_destroyed = true;
    note_surplus();
  }
  release_surplus();
}

void Pools::forget_destroyed() {
  std::erase_if(pools_, [](const auto& pool) { return pool->is_destroyed && pool->reserved == 0; });
}

// ---- allocating

bool Pools::take_again(cuda::CUmemoryPool handle, const StreamName& stream, std::uint64_t bytes, Fit fit,
                       std::size_t questions, cuda::CUdeviceptr* address) {
  const base::Locked locked(mutex_);
  Pool* const pool = find_pool(handle);
  if (pool == nullptr) return false;
  if (questions != 0) merge_finished(questions);
  const auto block = take_free(*pool, stream, block_bytes(bytes), fit);
  if (block == blocks_.end()) return false;
  make_live(block, block_bytes(bytes), bytes);
  *address = block->first;
  return true;
}

bool Pools::reuse(cuda::CUmemoryPool pool, const StreamName& stream, std::uint64_t bytes, cuda::CUdeviceptr* address) {
  if (bytes == 0 || bytes > UINT64_MAX / 2 || address == nullptr) return false;
  return take_again(pool, stream, bytes, Fit::kClose, 0, address);
}

CUresult Pools::grow(cuda::CUmemoryPool handle, const StreamName& stream, std::uint64_t bytes,
                     pager::Placement placement, cuda::CUdeviceptr* address) {
  const std::uint64_t least = segment_bytes(bytes);
  const bool is_small = block_bytes(bytes) <= kLargestSmall;
  std::uint64_t size = least;
  Pool* pool = nullptr;
  {
    const base::Locked locked(mutex_);
    pool = find_pool(handle);
    if (pool == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    const auto has_room = [pool](std::uint64_t more) {
      return pool->largest == 0 || (more <= pool->largest && pool->reserved <= pool->largest - more);
    };
    const std::uint64_t step = std::min(pool->reserved / pager::kBlockBytes * pager::kBlockBytes, kLargestStep);
    if (!is_small && has_room(step)) size = std::max(least, step);
    if (!has_room(size)) return kBeyondLimit;
    pool->reserved += size;  // from here on it cannot go
  }
  cuda::CUdeviceptr base = 0;
  CUresult result = port_.take_segment(slot_, stream.context, size, placement, &base);
  if (lacks_memory(result) && size != least) {
    {
      const base::Locked locked(mutex_);
      pool->reserved -= size - least;
    }
    size = least;
    result = port_.take_segment(slot_, stream.context, size, placement, &base);
  }
  const base::Locked locked(mutex_);
  if (result != cuda::CUDA_SUCCESS) {
    pool->reserved -= size;
    forget_destroyed();
    return result;
  }
  pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
  segments_.emplace(base, Segment{size, stream.context, pool, is_small});
  Block whole;
  whole.bytes = size;
  whole.segment = base;
  const auto block = blocks_.emplace(base, std::move(whole)).first;
  make_live(block, block_bytes(bytes), bytes);
  *address = base;
  return result;
}

// The stream's work from here on comes after what still uses the memory.
CUresult Pools::depend(cuda::CUmemoryPool handle, const StreamName& stream, std::uint64_t bytes,
                       cuda::CUdeviceptr* address) {
  cuda::CUevent event = nullptr;
  cuda::CUdeviceptr taken = 0;
  std::uint64_t id = 0;
  {
    const base::Locked locked(mutex_);
    Pool* const pool = find_pool(handle);
    if (pool == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
    const auto block = take_pending(*pool, stream, block_bytes(bytes));
    if (block == blocks_.end()) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
    event = block->second.fence.event;
    taken = block->first;
    id = block->second.id;
  }
  const CUresult result = driver_.cuStreamWaitEvent(stream.stream, event, 0);
  const base::Locked locked(mutex_);
  const auto block = blocks_.find(taken);
  if (block == blocks_.end() || block->second.id != id) return cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (result != cuda::CUDA_SUCCESS) {
    put_free(block);
    return result;
  }
  make_live(block, block_bytes(bytes), bytes);
  *address = taken;
  return result;
}

CUresult Pools::allocate(cuda::CUmemoryPool pool, const StreamName& stream, std::uint64_t bytes,
                         pager::Placement placement, cuda::CUdeviceptr* address) {
  if (bytes == 0 || address == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  if (bytes > UINT64_MAX / 2) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  if (take_again(pool, stream, bytes, Fit::kClose, 0, address)) return cuda::CUDA_SUCCESS;
  if (take_again(pool, stream, bytes, Fit::kClose, kFewQuestions, address)) return cuda::CUDA_SUCCESS;
  if (has_surplus()) release_surplus();
  CUresult result = grow(pool, stream, bytes, placement, address);
  if (!lacks_memory(result) && result != kBeyondLimit) return result;
  if (take_again(pool, stream, bytes, Fit::kAny, kAllQuestions, address)) return cuda::CUDA_SUCCESS;
  // Free memory of the pools is released to make room for it: of this pool only, if the pool is full.
  if (result == kBeyondLimit ? trim(pool, 0) != 0 : release(segment_bytes(bytes)) != 0) {
    result = grow(pool, stream, bytes, placement, address);
    if (!lacks_memory(result) && result != kBeyondLimit) return result;
  }
  const CUresult depending = depend(pool, stream, bytes, address);
  return depending == cuda::CUDA_ERROR_OUT_OF_MEMORY ? result : depending;
}

// ---- freeing

bool Pools::owns(cuda::CUdeviceptr address) const {
  const base::Locked locked(mutex_);
  const auto block = blocks_.find(address);
  return block != blocks_.end() && block->second.use == Use::kLive;
}

bool Pools::covers(cuda::CUdeviceptr address) const {
  const base::Locked locked(mutex_);
  return holding(address) != blocks_.end();
}

std::optional<Pools::Freeing> Pools::begin_free(cuda::CUdeviceptr address) {
  const base::Locked locked(mutex_);
  const auto block = blocks_.find(address);
  if (block == blocks_.end() || block->second.use != Use::kLive) return std::nullopt;
  block->second.use = Use::kFreeing;
  return Freeing{address, block->second.id, segment_of(block->second).context};
}

void Pools::end_free(const Freeing& freeing, bool freed) {
  const base::Locked locked(mutex_);
  const auto block = blocks_.find(freeing.address);
  // Its context may have gone since.
  if (block == blocks_.end() || block->second.id != freeing.id) return;
  if (!freed) {
    block->second.use = Use::kLive;
    return;
  }
  segment_of(block->second).pool->used -= block->second.bytes;
  block->second.stream = {};
  put_free(block);
  note_surplus();
}

bool Pools::adopt(cuda::CUdeviceptr address, std::uint64_t bytes, cuda::CUcontext context) {
  const base::Locked locked(mutex_);
  if (holding(address) != blocks_.end()) return false;
  // A pool that is destroyed gives everything back as soon as nothing uses it, and nothing is allocated from it.
  const auto is_adopting = [](const auto& pool) { return pool->is_destroyed && pool->handle == nullptr; };
  auto pool = std::find_if(pools_.begin(), pools_.end(), is_adopting);
  if (pool == pools_.end()) {
    pool = pools_.insert(pools_.end(), std::make_unique<Pool>());
    (*pool)->is_destroyed = true;
  }
  (*pool)->reserved += bytes;
  (*pool)->used += bytes;
  segments_.emplace(address, Segment{bytes, context, pool->get(), false});
  Block block;
  block.bytes = bytes;
  block.requested = bytes;
  block.segment = address;
  block.use = Use::kLive;
  block.id = new_id();
  blocks_.emplace(address, std::move(block));
  return true;
}

CUresult Pools::free(cuda::CUdeviceptr address, const StreamName& stream) {
  std::uint64_t id = 0;
  Fence fence{.context = stream.context};
  {
    const base::Locked locked(mutex_);
    const auto block = blocks_.find(address);
    if (block == blocks_.end() || block->second.use != Use::kLive) return cuda::CUDA_ERROR_INVALID_VALUE;
    block->second.use = Use::kFreeing;
    id = block->second.id;
    fence.began = next_tick_;
    std::vector<cuda::CUevent>& spare = spare_[stream.context];
    if (!spare.empty()) {
      fence.event = spare.back();
      spare.pop_back();
    }
  }
  CUresult result = fence.event != nullptr ? cuda::CUDA_SUCCESS : make_event(&fence);
  const bool is_made = result == cuda::CUDA_SUCCESS;
  if (is_made) result = driver_.cuEventRecord(fence.event, stream.stream);
  const bool is_fenced = result == cuda::CUDA_SUCCESS;
  // A stream of a green context may accept no event of the library's. Then its work is waited for.
  if (!is_fenced && !is_about_capture(result)) result = driver_.cuStreamSynchronize(stream.stream);
  const base::Locked locked(mutex_);
  const auto block = blocks_.find(address);
  const bool is_there = block != blocks_.end() && block->second.id == id;
  // Its context has gone since, and usually the event with it.
  if (!is_there) return cuda::CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (!is_fenced && is_made) keep_event(fence);
  if (result != cuda::CUDA_SUCCESS) {
    block->second.use = Use::kLive;
    return result;
  }
  segment_of(block->second).pool->used -= block->second.bytes;
  block->second.stream = is_fenced ? stream : StreamName{};
  fence.tick = next_tick_++;
  if (is_fenced) block->second.fence = fence;
  put_free(block);
  note_surplus();
  return result;
}

// ---- what is known

Pools::Blocks::const_iterator Pools::holding(cuda::CUdeviceptr address) const {
  auto next = blocks_.upper_bound(address);
  if (next == blocks_.begin()) return blocks_.end();
  const auto block = std::prev(next);
  return address - block->first < block->second.bytes ? block : blocks_.end();
}

std::optional<Pools::Allocation> Pools::find(cuda::CUdeviceptr address) const {
  const base::Locked locked(mutex_);
  const auto block = holding(address);
  if (block == blocks_.end() || !is_used(block->second) || address - block->first >= block->second.requested)
    return std::nullopt;
  return Allocation{block->first, block->second.requested, block->second.id, segment_of(block->second).pool->handle};
}

std::optional<std::uint64_t> Pools::bytes_to_end(cuda::CUdeviceptr address) const {
  const std::optional<Allocation> allocation = find(address);
  return allocation ? std::optional(allocation->bytes - (address - allocation->base)) : std::nullopt;
}

std::uint64_t Pools::reserved_bytes() const {
  const base::Locked locked(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& pool : pools_) bytes += pool->reserved;
  return bytes;
}

CUresult Pools::get(cuda::CUmemoryPool handle, cuda::CUmemPool_attribute attribute, void* value) const {
  const base::Locked locked(mutex_);
  const Pool* const pool = find_pool(handle);
  if (pool == nullptr || value == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  auto* const number = static_cast<std::uint64_t*>(value);
  switch (attribute) {
    case cuda::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case cuda::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case cuda::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(value) = pool->reuse[attribute - 1];
      return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *number = pool->threshold; return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *number = pool->reserved; return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *number = pool->reserved_high; return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *number = pool->used; return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMPOOL_ATTR_USED_MEM_HIGH: *number = pool->used_high; return cuda::CUDA_SUCCESS;
  }
  return cuda::CUDA_ERROR_INVALID_VALUE;
}

CUresult Pools::set(cuda::CUmemoryPool handle, cuda::CUmemPool_attribute attribute, const void* value) {
  const base::Locked locked(mutex_);
  Pool* const pool = find_pool(handle);
  if (pool == nullptr || value == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  const auto number = [value] { return *static_cast<const std::uint64_t*>(value); };
  switch (attribute) {
    case cuda::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case cuda::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case cuda::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      pool->reuse[attribute - 1] = *static_cast<const int*>(value);
      return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      pool->threshold = number();
      note_surplus();
      return cuda::CUDA_SUCCESS;
    // High-water marks can only be started anew.
    case cuda::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      if (number() != 0) return cuda::CUDA_ERROR_INVALID_VALUE;
      pool->reserved_high = pool->reserved;
      return cuda::CUDA_SUCCESS;
    case cuda::CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      if (number() != 0) return cuda::CUDA_ERROR_INVALID_VALUE;
      pool->used_high = pool->used;
      return cuda::CUDA_SUCCESS;
    default: return cuda::CUDA_ERROR_INVALID_VALUE;
  }
}

// ---- giving back

void Pools::give(const std::vector<cuda::CUdeviceptr>& gone) {
  for (const cuda::CUdeviceptr address : gone) port_.give_segment(slot_, address);
}

std::uint64_t Pools::release(std::uint64_t bytes) {
  std::vector<cuda::CUdeviceptr> gone;
  std::uint64_t freed = 0;
  {
    const base::Locked locked(mutex_);
    const auto has_free = [](const auto& pool) { return !pool->free[0].empty() || !pool->free[1].empty(); };
    if (std::none_of(pools_.begin(), pools_.end(), has_free)) return 0;
    merge_finished(kAllQuestions);
    unite();
    for (const auto& pool : pools_) {
      if (freed < bytes) freed += detach_free(*pool, bytes - freed, &gone);
    }
    forget_destroyed();
    note_surplus();
  }
  give(gone);
  return freed;
}

void Pools::release_surplus() {
  std::vector<cuda::CUdeviceptr> gone;
  {
    const base::Locked locked(mutex_);
    merge_finished(kFewQuestions);
    for (const auto& pool : pools_) detach_surplus(*pool, &gone);
    forget_destroyed();
    note_surplus();
  }
  give(gone);
}

std::uint64_t Pools::trim(cuda::CUmemoryPool handle, std::uint64_t keep) {
  std::vector<cuda::CUdeviceptr> gone;
  std::uint64_t freed = 0;
  {
    const base::Locked locked(mutex_);
    Pool* const pool = find_pool(handle);
    if (pool == nullptr) return 0;
    merge_finished(kAllQuestions);
    unite();
    if (pool->reserved > keep) freed = detach_free(*pool, pool->reserved - keep, &gone);
    note_surplus();
  }
  give(gone);
  return freed;
}

// ---- ends

void Pools::stream_gone(cuda::CUstream stream) {
  const base::Locked locked(mutex_);
  for (auto& [address, block] : blocks_) {
    if (block.use == Use::kFree && block.stream.stream == stream) block.stream = {};
  }
}

void Pools::context_going(cuda::CUcontext context) {
  const base::Locked locked(mutex_);
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    Block& its = block->second;
    const Segment& segment = segment_of(its);
    if (its.use == Use::kFree) unlist(block);
    if (its.fence.context == context) its.fence = {};
    if (its.stream.context == context) its.stream = {};
    if (segment.context != context) {
      if (its.use == Use::kFree) list(block);
      ++block;
      continue;
    }
    drop_fence(its);
    if (is_used(its)) segment.pool->used -= its.bytes;
    block = blocks_.erase(block);
  }
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    if (segment->second.context == context) {
      segment->second.pool->reserved -= segment->second.bytes;
      segment = segments_.erase(segment);
    } else {
      ++segment;
    }
  }
  spare_.erase(context);
  forget_destroyed();
  note_surplus();
}

// ---- for tests

const char* Pools::check() const {
  const base::Locked locked(mutex_);
  std::map<const Pool*, std::pair<std::uint64_t, std::uint64_t>> sums;  // used, whole
  std::map<const Pool*, std::uint64_t> reserved;
  std::size_t free = 0;
  std::size_t pending = 0;
  for (const auto& [base, segment] : segments_) {
    reserved[segment.pool] += segment.bytes;
    std::uint64_t at = base;
    for (auto block = blocks_.find(base); at < base + segment.bytes; ++block) {
      if (block == blocks_.end() || block->first != at) return "blocks leave a gap";
      if (block->second.segment != base) return "a block is not of the segment that it lies in";
      at += block->second.bytes;
      if (is_used(block->second)) sums[segment.pool].first += block->second.bytes;
      if (block->second.use != Use::kFree) continue;
      ++free;
      if (!segment.pool->free[segment.is_small].contains({block->second.bytes, block->first}))
        return "a free block is not in its list";
      if (block->second.bytes == segment.bytes) sums[segment.pool].second += segment.bytes;
      if (!block->second.is_pending()) continue;
      ++pending;
      const auto found = pending_.find(block->second.fence.tick);
      if (found == pending_.end() || found->second != block->first) return "a pending block is not known as such";
    }
    if (at != base + segment.bytes) return "a block reaches beyond its segment";
  }
  if (pending != pending_.size()) return "pending blocks are known that are none";
  for (const auto& pool : pools_) {
    free -= pool->free[0].size() + pool->free[1].size();
    if (pool->reserved != reserved[pool.get()]) return "reserved is not the sum of the segments";
    if (pool->used != sums[pool.get()].first) return "used is not the sum of what is allocated";
    if (pool->whole != sums[pool.get()].second) return "whole is not the sum of the free segments";
    if (pool->largest != 0 && pool->reserved > pool->largest) return "a pool has more than it may";
  }
  return free == 0 ? nullptr : "free blocks are listed that are none";
}

}  // namespace gpumux::shim
