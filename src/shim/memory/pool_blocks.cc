// SPDX-License-Identifier: Apache-2.0
// The blocks of pools: how they are divided and become whole again, and when nothing uses them any more.
#include <algorithm>
#include <cstdint>

#include "cuda/current_context.h"
#include "cuda/relaxed_capture.h"
#include "shim/memory/pools.h"

namespace gpumux::shim {
namespace {

using cuda::CUresult;

// Events kept for the next frees; a program that frees more before anything is done makes and destroys the rest.
// How many is a guess.
constexpr std::size_t kMostSpare = 1024;
// Numbers of the pager's allocations come from below.
constexpr std::uint64_t kFirstId = std::uint64_t{1} << 48;

constinit std::atomic<std::uint64_t> g_next_id{kFirstId};

}  // namespace

std::uint64_t Pools::new_id() { return g_next_id.fetch_add(1, std::memory_order_relaxed); }

// ---- blocks, with the lock held

bool Pools::is_whole(const Block& block) const { return segment_of(block).bytes == block.bytes; }

// A free block is in the list of its size; in pending_, if something may still use it.
void Pools::list(Blocks::iterator block) {
  const Segment& segment = segment_of(block->second);
  segment.pool->free[segment.is_small].insert({block->second.bytes, block->first});
  if (is_whole(block->second)) segment.pool->whole += segment.bytes;
  if (block->second.is_pending()) pending_.emplace(block->second.fence.tick, block->first);
}

void Pools::unlist(Blocks::iterator block) {
  const Segment& segment = segment_of(block->second);
  segment.pool->free[segment.is_small].erase({block->second.bytes, block->first});
  if (is_whole(block->second)) segment.pool->whole -= segment.bytes;
  if (block->second.is_pending()) pending_.erase(block->second.fence.tick);
}

void Pools::put_free(Blocks::iterator block) {
  block->second.use = Use::kFree;
  list(block);
  merge(block);
}

bool Pools::may_merge(const Block& low, const Block& high) const {
  if (low.use != Use::kFree || high.use != Use::kFree || low.segment != high.segment) return false;
  if (low.stream == high.stream) return is_behind(low, high) || is_behind(high, low);
  // Blocks that no work uses any more may go to any stream, if the pool allows it.
  if (!low.is_pending() && !high.is_pending() && segment_of(low).pool->may_take_done()) return true;
  // A rest that rounding left over merges with the block that it was left over from.
  const auto is_rest = [](const Block& block) {
    return block.stream.context == nullptr && !block.is_pending() && block.bytes < pager::kBlockBytes;
  };
  return is_rest(low) || is_rest(high);
}

// Whether `early` is done when the fence of `late` is: its fence is older, and of the same stream. Two fences that
// threads record at the same time have no known order.
bool Pools::is_behind(const Block& late, const Block& early) {
  if (!early.is_pending()) return true;
  return late.stream.context != nullptr && late.stream == early.stream && early.fence.tick < late.fence.began;
}

// With its neighbours, as far as they are free in the same way. Returns what it has become.
Pools::Blocks::iterator Pools::merge(Blocks::iterator block) {
  const auto join = [this](Blocks::iterator low, Blocks::iterator high) GPUMUX_REQUIRES(mutex_) {
    unlist(low);
    unlist(high);
    Block& into = low->second;
    into.bytes += high->second.bytes;
    const StreamName theirs = high->second.stream;
    if (into.stream.context == nullptr) {
      into.stream = theirs;
    } else if (theirs.context != nullptr && !(into.stream == theirs)) {
      into.stream = {};
    }
    if (!is_behind(into, high->second)) std::swap(into.fence, high->second.fence);
    drop_fence(high->second);
    blocks_.erase(high);
    list(low);
    return low;
  };
  if (const auto high = std::next(block); high != blocks_.end() && may_merge(block->second, high->second))
    block = join(block, high);
  if (block != blocks_.begin()) {
    const auto low = std::prev(block);
    if (may_merge(low->second, block->second)) block = join(low, block);
  }
  return block;
}

// An unlisted block becomes an allocation; what is left over stays free as it was.
void Pools::make_live(Blocks::iterator block, std::uint64_t bytes, std::uint64_t requested) {
  Block& taken = block->second;
  Pool& pool = *segment_of(taken).pool;
  if (taken.bytes > bytes) {
    Block rest;
    rest.bytes = taken.bytes - bytes;
    rest.segment = taken.segment;
    rest.stream = taken.stream;
    rest.fence = std::exchange(taken.fence, {});
    taken.bytes = bytes;
    list(blocks_.emplace(block->first + bytes, std::move(rest)).first);
  }
  drop_fence(taken);
  taken.use = Use::kLive;
  taken.requested = requested;
  taken.id = new_id();
  pool.used += bytes;
  pool.used_high = std::max(pool.used_high, pool.used);
}

// The smallest that fits.
Pools::Blocks::iterator Pools::take_free(Pool& pool, const StreamName& stream, std::uint64_t bytes, Fit fit) {
  const bool is_small = bytes <= kLargestSmall;
  for (const bool small : {is_small, !is_small}) {
    if (small != is_small && fit == Fit::kClose) break;
    FreeList& list = pool.free[small];
    for (auto entry = list.lower_bound({bytes, 0}); entry != list.end(); ++entry) {
      const auto block = blocks_.find(entry->second);
      const Block& found = block->second;
      const Segment& segment = segment_of(found);
      if (segment.context != stream.context) continue;
      const bool is_waste = segment.bytes > kLargestStep && found.bytes / kLargestWaste > bytes;
      if (fit == Fit::kClose && is_waste) continue;
      const bool is_done = !found.is_pending() && (pool.may_take_done() || found.stream.context == nullptr);
      if (!is_done && !(found.stream == stream)) continue;
      unlist(block);
      return block;
    }
  }
  return blocks_.end();
}

// The smallest block that work of other streams may still use. It belongs to the caller, with its fence.
Pools::Blocks::iterator Pools::take_pending(Pool& pool, const StreamName& stream, std::uint64_t bytes) {
  if (!pool.may_depend()) return blocks_.end();
  for (FreeList& list : pool.free) {
    for (auto entry = list.lower_bound({bytes, 0}); entry != list.end(); ++entry) {
      const auto block = blocks_.find(entry->second);
      if (!block->second.is_pending() || segment_of(block->second).context != stream.context) continue;
      unlist(block);
      block->second.use = Use::kTaking;
      block->second.id = new_id();
      return block;
    }
  }
  return blocks_.end();
}

// ---- fences, with the lock held but where it says otherwise

// Without the lock: this makes an event.
CUresult Pools::make_event(Fence* fence) const {
  const cuda::WorkingContext current(driver_, fence->context);
  if (current.result() != cuda::CUDA_SUCCESS) return current.result();
  return driver_.cuEventCreate(&fence->event, cuda::CU_EVENT_DISABLE_TIMING);
}

void Pools::drop_fence(Block& block) {
  if (block.is_pending()) keep_event(std::exchange(block.fence, {}));
}

void Pools::keep_event(const Fence& fence) {
  std::vector<cuda::CUevent>& spare = spare_[fence.context];
  if (spare.size() < kMostSpare) return spare.push_back(fence.event);
  driver_.cuEventDestroy_v2(fence.event);
}

// Finds out what is done, the oldest first. A stream that has not come to one tick has not come to newer ones.
void Pools::merge_finished(std::size_t questions) {
  if (pending_.empty()) return;
  const cuda::RelaxedCapture relaxed(driver_);
  std::vector<StreamName> busy;
  for (auto next = pending_.begin(); next != pending_.end() && questions != 0;) {
    const auto [tick, address] = *next;
    const auto block = blocks_.find(address);
    const StreamName stream = block->second.stream;
    if (std::find(busy.begin(), busy.end(), stream) == busy.end()) {
      --questions;
      // A lasting error, of a broken context, leaves the block where it is: the program does not miss it there.
      if (driver_.cuEventQuery(block->second.fence.event) == cuda::CUDA_SUCCESS) {
        pending_.erase(next);
        drop_fence(block->second);
        merge(block);
      } else if (stream.context != nullptr) {
        busy.push_back(stream);
      }
    }
    next = pending_.upper_bound(tick);
  }
}

std::uint64_t Pools::moment() const {
  const base::Locked locked(mutex_);
  return next_tick_;
}

bool Pools::has_pending(std::uint64_t before) {
  const base::Locked locked(mutex_);
  const cuda::RelaxedCapture relaxed(driver_);
  for (const auto& [tick, address] : pending_) {
    if (tick >= before) break;
    if (driver_.cuEventQuery(blocks_.find(address)->second.fence.event) == cuda::CUDA_ERROR_NOT_READY) return true;
  }
  return false;
}

// ---- what is free leaves, with the lock held

void Pools::detach(Blocks::iterator block, std::vector<cuda::CUdeviceptr>* gone) {
  unlist(block);
  const auto segment = segments_.find(block->second.segment);
  segment->second.pool->reserved -= segment->second.bytes;
  gone->push_back(segment->first);
  segments_.erase(segment);
  blocks_.erase(block);
}

// Neighbours that were kept apart, because only their own streams might have them, become one where nothing uses any
// part of their segment.
void Pools::unite() {
  for (const auto& [base, segment] : segments_) {
    const auto first = blocks_.find(base);
    auto end = first;
    bool is_free = true;
    for (; end != blocks_.end() && end->second.segment == base; ++end)
      is_free = is_free && end->second.use == Use::kFree && !end->second.is_pending();
    if (!is_free || is_whole(first->second)) continue;
    for (auto block = first; block != end; ++block) unlist(block);
    blocks_.erase(std::next(first), end);
    first->second.bytes = segment.bytes;
    first->second.stream = {};
    list(first);
  }
}

// Whole segments that nothing uses, the largest first.
std::uint64_t Pools::detach_free(Pool& pool, std::uint64_t bytes, std::vector<cuda::CUdeviceptr>* gone) {
  std::uint64_t freed = 0;
  for (FreeList& list : pool.free) {
    std::vector<cuda::CUdeviceptr> addresses;
    for (auto entry = list.rbegin(); entry != list.rend(); ++entry) addresses.push_back(entry->second);
    for (const cuda::CUdeviceptr address : addresses) {
      if (freed >= bytes) return freed;
      const auto block = blocks_.find(address);
      if (block->second.is_pending() || !is_whole(block->second)) continue;
      freed += block->second.bytes;
      detach(block, gone);
    }
  }
  return freed;
}

void Pools::detach_surplus(Pool& pool, std::vector<cuda::CUdeviceptr>* gone) {
  if (pool.is_destroyed) {
    detach_free(pool, UINT64_MAX, gone);
  } else if (pool.reserved > pool.threshold && pool.whole > kKept) {
    detach_free(pool, std::min(pool.reserved - pool.threshold, pool.whole - kKept), gone);
  }
}

void Pools::note_surplus() {
  const bool any = std::any_of(pools_.begin(), pools_.end(), [](const auto& pool) {
    return pool->is_destroyed ? pool->whole != 0 : pool->reserved > pool->threshold && pool->whole > kKept;
  });
  surplus_.store(any, std::memory_order_relaxed);
}

}  // namespace gpumux::shim
