// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation (cuMemAllocAsync and its pools) out of the pager's memory, for the pools of one seat.
//
// Problem: the driver's pools map and unmap by themselves, so what they have cannot be taken off the GPU. Memory of the
// pager's can. But cuMemAlloc and cuMemFree wait, and programs use pools because these do not.
//
// Idea: a pool takes *segments* from the pager and divides them into *blocks*. An allocation may be used at once, which
// is more than a program may expect. For a free the order of streams matters. The block becomes free at once, and keeps
// the name of the stream that freed it and a *fence*. A fence is an event behind the work that the stream had been
// given until then. Fences have *ticks*, numbers that grow with each free. A stream that has come to one tick has come
// to all that are older. So a block has at most one fence. Blocks of one stream merge behind the newer tick, and blocks
// of several streams merge when they are done. A block may be handed out again
//
//     on the same stream            at once: what comes there comes after what was there
//     on any other                  when the fence is done, which is asked and never waited for
//     on any other, out of memory   behind a cuStreamWaitEvent for the fence, as the driver does it
//     to the pager again            when the fence is done and no other block of the segment is in use
//
// Memory from cuMemAlloc may be freed in the order of a stream, too. Such memory is adopted: it becomes a segment of a
// pool that nothing is allocated from. It goes back to the pager when its fence is done.
//
// Pools keep their handles: the driver made them, has nothing in them, and still answers all other questions. A pool
// keeps the free memory that its release threshold allows, and kKept beyond that. So a program that allocates and frees
// in turn calls the driver once for each free, to record the fence, and never to map. The rest is given back when the
// program synchronises, another allocation lacks memory, or the seat is evicted. Free memory of a pool is not worth
// copying.
//
// The lock is held for moments. Under it the driver is asked about events (as in gate/stream_set.h), so that no event
// is asked about after its context has gone. Memory is taken from and given to the port without it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/lock.h"
#include "cuda/driver.gen.h"
#include "gate/stream_name.h"
#include "pager/pager.h"

namespace gpumux::shim {

using gate::StreamName;  // stream_gone is called for each destruction

class Pools {
 public:
  // Where segments come from, and go to. Any thread; called without the lock.
  class Port {
   public:
    virtual cuda::CUresult take_segment(std::uint32_t slot, cuda::CUcontext context, std::uint64_t bytes,
                                        pager::Placement placement, cuda::CUdeviceptr* address) = 0;
    // Nothing uses it any more.
    virtual void give_segment(std::uint32_t slot, cuda::CUdeviceptr address) = 0;

   protected:
    ~Port() = default;
  };

  // A pool keeps this much even if its threshold says less: what the driver's own pools take from the GPU at a time.
  static constexpr std::uint64_t kKept = 32 * pager::kMebibyte;
  // Segments are taken in steps that grow with the pool, up to this. Each costs the driver 120 us in its life, and
  // again whenever it moves (pager/sizes.h). Larger allocations get segments of their own size, and so do all
  // allocations if memory is short.
  static constexpr std::uint64_t kLargestStep = 32 * pager::kMebibyte;
  // Up to this size allocations share segments of one block of the pager's. A guess: eight of the largest fit into one.
  static constexpr std::uint64_t kLargestSmall = std::uint64_t{256} * 1024;
  // Sizes are rounded up to these: small ones as the pager packs (kPackingBytes), large ones by a guess that wastes
  // less than a quarter.
  static constexpr std::uint64_t kSmallStep = 512;
  static constexpr std::uint64_t kLargeStep = std::uint64_t{64} * 1024;
  // Free memory of a segment that is larger than a step is divided only for an allocation of at least this part of it.
  // Exception: memory is short. Otherwise small allocations would keep the segment from ever being whole again.
  // The part is a guess.
  static constexpr std::uint64_t kLargestWaste = 8;

  // An allocation that the pool's maxSize forbids: no other seat can make room for it.
  static constexpr cuda::CUresult kBeyondLimit = cuda::CUDA_ERROR_NOT_PERMITTED;

  Pools(const cuda::Driver& driver, Port& port, cuda::CUdevice device, std::uint32_t slot);
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;

  // ---- which pools

  // From now on allocations from this pool are served here. `largest`: all that it may have; 0: no bound. Settings that
  // the driver has hold here, too.
  void add(cuda::CUmemoryPool pool, std::uint64_t largest);
  // Whether they are. For the device's default pool, that begins when it is first asked for.
  bool has(cuda::CUmemoryPool pool);
  // The pool that the device's allocations come from if they name none.
  cuda::CUmemoryPool current();
  // The program has chosen another.
  void forget_current();
  // The driver has destroyed it. Its allocations live until they are freed.
  void destroyed(cuda::CUmemoryPool pool);

  // ---- the program's threads

  // The least that an allocation of `bytes` takes from the port if nothing is free.
  static std::uint64_t segment_bytes(std::uint64_t bytes);

  // Out of what is free, without asking the driver anything. False: there is nothing that fits.
  bool reuse(cuda::CUmemoryPool pool, const StreamName& stream, std::uint64_t bytes, cuda::CUdeviceptr* address);
  // By any means but waiting. CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, pager::kBeyondCommitment,
  // kBeyondLimit.
  cuda::CUresult allocate(cuda::CUmemoryPool pool, const StreamName& stream, std::uint64_t bytes,
                          pager::Placement placement, cuda::CUdeviceptr* address);

  // Whether an allocation begins at the address.
  bool owns(cuda::CUdeviceptr address) const;
  // Whether it lies in memory of a pool's, allocated or free.
  bool covers(cuda::CUdeviceptr address) const;
  // An allocation of the pager's becomes one of a pool, so that it can be freed in the order of a stream. False: it is
  // one already.
  bool adopt(cuda::CUdeviceptr address, std::uint64_t bytes, cuda::CUcontext context);
  // cuMemFreeAsync. Not gated: it gives the GPU nothing to do.
  cuda::CUresult free(cuda::CUdeviceptr address, const StreamName& stream);
  // cuMemFree, in two steps; between them the caller waits for work that may use it. `context`: where that work runs.
  struct Freeing {
    cuda::CUdeviceptr address = 0;
    std::uint64_t id = 0;
    cuda::CUcontext context = nullptr;
  };
  std::optional<Freeing> begin_free(cuda::CUdeviceptr address);
  void end_free(const Freeing& freeing, bool freed);

  struct Allocation {
    cuda::CUdeviceptr base = 0;
    std::uint64_t bytes = 0;  // as requested
    std::uint64_t id = 0;     // never used again in this process
    cuda::CUmemoryPool pool = nullptr;
  };
  // The allocation that the address lies in.
  std::optional<Allocation> find(cuda::CUdeviceptr address) const;
  // From the address to its end; nothing: it lies in none.
  std::optional<std::uint64_t> bytes_to_end(cuda::CUdeviceptr address) const;

  // Attributes. They do not count memory that the driver itself has in the pool.
  cuda::CUresult get(cuda::CUmemoryPool pool, cuda::CUmemPool_attribute attribute, void* value) const;
  cuda::CUresult set(cuda::CUmemoryPool pool, cuda::CUmemPool_attribute attribute, const void* value);
  // Gives back what is free until the pool has no more than this; returns how much.
  std::uint64_t trim(cuda::CUmemoryPool pool, std::uint64_t keep);

  // ---- giving back

  // At least `bytes` of what is free in any pool, even what a pool may keep; returns how much.
  std::uint64_t release(std::uint64_t bytes);
  // Releases memory beyond what pools may keep. Called when the program has synchronised.
  void release_surplus();
  bool has_surplus() const { return surplus_.load(std::memory_order_relaxed); }
  // Whether there are free blocks that work may still use, but not for ever; of blocks that were freed before this
  // moment.
  std::uint64_t moment() const;
  bool has_pending(std::uint64_t before = UINT64_MAX);

  // ---- ends

  // Before the stream is destroyed: another one may get its handle.
  void stream_gone(cuda::CUstream stream);
  // The context's memory goes with it, or has gone, and so do its events. Its work is over.
  void context_going(cuda::CUcontext context);

  // For tests: what is wrong with the tables; null: nothing.
  const char* check() const;
  std::uint64_t reserved_bytes() const;

 private:
  struct Pool;
  struct Segment {
    std::uint64_t bytes = 0;
    cuda::CUcontext context = nullptr;
    Pool* pool = nullptr;
    bool is_small = false;
  };
  struct Fence {
    cuda::CUevent event = nullptr;  // null: no work uses the block any more
    cuda::CUcontext context = nullptr;
    std::uint64_t tick = 0;   // given when the event was recorded
    std::uint64_t began = 0;  // the recording came after all ticks below this one
  };
  enum class Use : std::uint8_t {
    kLive,
    kFreeing,  // a thread frees it
    kFree,
    kTaking,  // a thread makes an allocation of it
  };
  struct Block {
    std::uint64_t bytes = 0;
    std::uint64_t requested = 0;
    cuda::CUdeviceptr segment = 0;
    Use use = Use::kFree;
    std::uint64_t id = 0;
    StreamName stream;  // that freed it; no context: none
    Fence fence;        // until it is known to be done

    bool is_pending() const { return fence.event != nullptr; }
  };
  using Blocks = std::map<cuda::CUdeviceptr, Block>;
  using FreeList = std::set<std::pair<std::uint64_t, cuda::CUdeviceptr>>;  // by size
  struct Pool {
    cuda::CUmemoryPool handle = nullptr;
    std::uint64_t largest = 0;
    bool is_destroyed = false;
    std::uint64_t threshold = 0;
    int reuse[3] = {1, 1, 1};  // by CUmemPool_attribute
    std::uint64_t reserved = 0, reserved_high = 0;
    std::uint64_t used = 0, used_high = 0;
    std::uint64_t whole = 0;  // of segments of which nothing is in use
    FreeList free[2];         // large blocks, small ones
    bool may_take_done() const { return reuse[1] != 0; }
    bool may_depend() const { return reuse[2] != 0; }
  };
  enum class Fit { kClose, kAny };

  static std::uint64_t new_id();  // never used before in this process
  Pool* find_pool(cuda::CUmemoryPool pool) const GPUMUX_REQUIRES(mutex_);
  Blocks::iterator take_free(Pool& pool, const StreamName& stream, std::uint64_t bytes, Fit fit)
      GPUMUX_REQUIRES(mutex_);
  Blocks::iterator take_pending(Pool& pool, const StreamName& stream, std::uint64_t bytes) GPUMUX_REQUIRES(mutex_);
  void make_live(Blocks::iterator block, std::uint64_t bytes, std::uint64_t requested) GPUMUX_REQUIRES(mutex_);
  cuda::CUresult grow(cuda::CUmemoryPool handle, const StreamName& stream, std::uint64_t bytes,
                      pager::Placement placement, cuda::CUdeviceptr* address);
  bool take_again(cuda::CUmemoryPool handle, const StreamName& stream, std::uint64_t bytes, Fit fit,
                  std::size_t questions, cuda::CUdeviceptr* address);
  cuda::CUresult depend(cuda::CUmemoryPool handle, const StreamName& stream, std::uint64_t bytes,
                        cuda::CUdeviceptr* address);
  void list(Blocks::iterator block) GPUMUX_REQUIRES(mutex_);
  void unlist(Blocks::iterator block) GPUMUX_REQUIRES(mutex_);
  void put_free(Blocks::iterator block) GPUMUX_REQUIRES(mutex_);
  Blocks::iterator merge(Blocks::iterator block) GPUMUX_REQUIRES(mutex_);
  static bool is_behind(const Block& late, const Block& early);
  bool may_merge(const Block& low, const Block& high) const GPUMUX_REQUIRES(mutex_);
  void merge_finished(std::size_t questions) GPUMUX_REQUIRES(mutex_);
  void unite() GPUMUX_REQUIRES(mutex_);
  cuda::CUresult make_event(Fence* fence) const;
  void drop_fence(Block& block) GPUMUX_REQUIRES(mutex_);
  void keep_event(const Fence& fence) GPUMUX_REQUIRES(mutex_);
  const Segment& segment_of(const Block& block) const GPUMUX_REQUIRES(mutex_) {
    return segments_.find(block.segment)->second;
  }
  bool is_whole(const Block& block) const GPUMUX_REQUIRES(mutex_);
  static bool is_used(const Block& block) { return block.use == Use::kLive || block.use == Use::kFreeing; }
  void detach(Blocks::iterator block, std::vector<cuda::CUdeviceptr>* gone) GPUMUX_REQUIRES(mutex_);
  std::uint64_t detach_free(Pool& pool, std::uint64_t bytes, std::vector<cuda::CUdeviceptr>* gone)
      GPUMUX_REQUIRES(mutex_);
  void detach_surplus(Pool& pool, std::vector<cuda::CUdeviceptr>* gone) GPUMUX_REQUIRES(mutex_);
  void note_surplus() GPUMUX_REQUIRES(mutex_);
  void forget_destroyed() GPUMUX_REQUIRES(mutex_);
  void give(const std::vector<cuda::CUdeviceptr>& gone);
  Blocks::const_iterator holding(cuda::CUdeviceptr address) const GPUMUX_REQUIRES(mutex_);

  const cuda::Driver& driver_;
  Port& port_;
  const cuda::CUdevice device_;
  const std::uint32_t slot_;

  mutable base::Mutex mutex_;
  std::vector<std::unique_ptr<Pool>> pools_ GPUMUX_GUARDED_BY(mutex_);  // few
  std::map<cuda::CUdeviceptr, Segment> segments_ GPUMUX_GUARDED_BY(mutex_);
  Blocks blocks_ GPUMUX_GUARDED_BY(mutex_);                                       // of all segments, without gaps
  std::map<std::uint64_t, cuda::CUdeviceptr> pending_ GPUMUX_GUARDED_BY(mutex_);  // free blocks with fences, by tick
  std::map<cuda::CUcontext, std::vector<cuda::CUevent>> spare_ GPUMUX_GUARDED_BY(mutex_);
  std::uint64_t next_tick_ GPUMUX_GUARDED_BY(mutex_) = 1;
  cuda::CUmemoryPool default_ GPUMUX_GUARDED_BY(mutex_) = nullptr;  // null: not asked yet
  cuda::CUmemoryPool current_ GPUMUX_GUARDED_BY(mutex_) = nullptr;
  std::atomic<bool> surplus_{false};  // written under the lock
};

}  // namespace gpumux::shim
