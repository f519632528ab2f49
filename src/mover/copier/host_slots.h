// SPDX-License-Identifier: Apache-2.0
// Borrowed host memory, divided into slots of one block each.
//
// A chunk is registered with the driver (pinned) right before it is first copied to or from. It stays registered until
// it is given back. Registering runs at about the bus's speed and holds locks of the driver's. For every switch it is
// too slow. It is fast enough once for each chunk, while the copies of the one before are under way.
//
// Any thread may call any function. The lock is a leaf: under it neither the lender nor the driver is called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/lock.h"
#include "cuda/driver.gen.h"
#include "mover/copier/host_memory.h"
#include "mover/copier/sizes.h"

namespace gpumux::mover {

struct LentChunk;

// One block's place in host memory. Empty: none.
struct HostSlot {
  LentChunk* chunk = nullptr;
  std::uint32_t index = 0;

  explicit operator bool() const { return chunk != nullptr; }
  std::byte* address() const;
  // Does `next` follow this one in memory, so that one copy can fill both?
  bool is_followed_by(const HostSlot& next) const { return next.chunk == chunk && next.index == index + 1; }
};

struct LentChunk {
  HostChunk memory;
  std::vector<bool> used;
  std::uint32_t used_count = 0;
  bool is_registered = false;  // under HostSlots::registering_
};

inline std::byte* HostSlot::address() const { return chunk->memory.address + std::uint64_t{index} * kBlockBytes; }

// Hears what becomes of slots, on the thread that does it. Under no lock.
struct SlotBooks {
  // Its content is about to be overwritten.
  virtual void writing(const HostSlot& slot) = 0;
  // It is free again.
  virtual void given(const HostSlot& slot) = 0;

 protected:
  ~SlotBooks() = default;
};

class HostSlots {
 public:
  HostSlots(const cuda::Driver& driver, HostMemory& lender, SlotBooks* books = nullptr)
      : driver_(driver), lender_(lender), books_(books) {}
  // Gives everything back. The driver must still be there, with the context in which chunks were registered.
  ~HostSlots();
  HostSlots(const HostSlots&) = delete;
  HostSlots& operator=(const HostSlots&) = delete;

  // Up to `count` slots next to each other in memory, appended to `slots`; returns how many. 0: borrow first.
  std::uint32_t take(std::uint32_t count, std::vector<HostSlot>* slots);
  void give(HostSlot slot);

  // One more chunk from the lender. False: it has none now.
  bool borrow();
  // A chunk that the lender had lent before, with the slots that are in use. False: it is not usable.
  bool adopt(const HostChunk& memory, std::vector<bool> used);
  // The slot of the chunk that the lender calls `id`; empty: there is none.
  HostSlot find(std::uint64_t id, std::uint32_t index) const;

  // Before a copy to it.
  void begin_writing(const HostSlot& slot) {
    if (books_ != nullptr) books_->writing(slot);
  }

  // Makes the slot's chunk fit for asynchronous copies.
  cuda::CUresult ensure_registered(const HostSlot& slot);

  // Gives an unused chunk back, if more than `keep` bytes are borrowed. False: there is nothing to give back.
  bool shrink(std::uint64_t keep);

  std::uint64_t borrowed_bytes() const;
  std::uint64_t used_bytes() const;

  // Null, or what is wrong with the sums, which are counted again. For tests, while no job runs.
  const char* check() const;

 private:
  void give_back(LentChunk& chunk);

  const cuda::Driver& driver_;
  HostMemory& lender_;
  SlotBooks* const books_;
  base::Mutex registering_;  // one thread at a time registers; before mutex_
  mutable base::Mutex mutex_;
  std::vector<std::unique_ptr<LentChunk>> chunks_ GPUMUX_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, LentChunk*> by_id_ GPUMUX_GUARDED_BY(mutex_);
  std::uint64_t borrowed_bytes_ GPUMUX_GUARDED_BY(mutex_) = 0;
  std::uint64_t used_blocks_ GPUMUX_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpumux::mover
