// SPDX-License-Identifier: Apache-2.0
// The owner of each slot of host memory. The books lie in a file of memory that the daemon keeps, too. So they outlive
// the mover, as the slots' content does: a mover that is started again knows the owner of every slot.
//
//   kFree --writing--> kWriting --written--> kHeld --loaded--> kClean
//     ^                    |                   |  <---hold----    |
//     +---- released ------+-------------------+------------------+
//
// A seat names a slot by its number. `find` says whether that slot has the content of that block of the seat's: it may
// have been released, and be another block's by now. A slot in kWriting holds neither the old content nor yet the new
// one; the GPU's memory still has it.
//
// Any thread. Every entry changes by atomic stores, in an order that is right whenever the mover is killed.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_set>

#include "base/result.h"
#include "mover/copier/block_hash.h"

namespace gpumux::mover {

// The daemon's number of a seat; 0: none.
using SeatNumber = std::uint64_t;

// Content belongs to a block of a chunk of a seat. The seat never uses a chunk's number again.
struct Owner {
  SeatNumber seat = 0;
  std::uint64_t chunk = 0;
  std::uint32_t block = 0;
  bool operator==(const Owner&) const = default;
};

class Books {
 public:
  enum class State : std::uint32_t {
    kFree,
    kWriting,
    kHeld,   // the content of evicted memory
    kClean,  // the same as the GPU has: it may be released at any time
  };
  struct Held {
    bool hashed = false;
    BlockHash hash;
  };

  // Maps the file. Nothing: it is too small, or cannot be mapped. All zero means that all slots are free.
  // `slots_per_chunk`: of host memory, in which the slots are numbered one after the other.
  static base::Result<Books> open(int file, std::uint32_t slots, std::uint32_t slots_per_chunk);
  // Bytes of the file for so many slots.
  static std::uint64_t bytes_for(std::uint32_t slots) { return std::uint64_t{slots} * sizeof(Entry); }

  Books(Books&& other) noexcept;
  Books& operator=(Books&&) = delete;
  Books(const Books&) = delete;
  ~Books();

  std::uint32_t slots() const { return static_cast<std::uint32_t>(entries_.size()); }
  std::uint32_t slots_per_chunk() const { return slots_per_chunk_; }
  State state_of(std::uint32_t slot) const { return state_in(entries_[slot].word.load()); }
  // The slot, if it holds this owner's content.
  std::optional<Held> find(std::uint32_t slot, const Owner& owner) const;
  // The same, and it is held from now on, although the GPU may have the content, too.
  std::optional<Held> hold(std::uint32_t slot, const Owner& owner);
  // The same, and it is only a copy from now on. False: it is not this owner's.
  bool loaded(std::uint32_t slot, const Owner& owner);
  // The owner's content is of no use any more: the slot is the caller's to give back. False: it is not this owner's.
  bool take(std::uint32_t slot, const Owner& owner);
  // The same for any content of the seat's.
  bool take(std::uint32_t slot, SeatNumber seat);
  // Takes a copy that need not be there, from `*from` on, which moves on. Nothing: there is none.
  std::optional<std::uint32_t> reclaim(std::uint32_t* from);

  // By the caller that has the slot: it was free, taken, or held and in no other message's hands.
  void writing(std::uint32_t slot);
  void written(std::uint32_t slot, const Owner& owner, bool hashed, const BlockHash& hash);
  void released(std::uint32_t slot);

  // All seats that have content.
  std::unordered_set<SeatNumber> owners() const;
  // Bytes of content that the seat has in host memory.
  std::uint64_t bytes_of(SeatNumber seat) const;

 private:
  // The state, in the lowest bits, and above it how often the slot was written: the rest of an entry belongs together
  // if this has not changed while it was read.
  struct Entry {
    std::atomic<std::uint64_t> word;
    std::atomic<std::uint64_t> hashed;
    std::atomic<SeatNumber> seat;
    std::atomic<std::uint64_t> chunk;
    std::atomic<std::uint64_t> block;
    std::atomic<std::uint64_t> hash_low;
    std::atomic<std::uint64_t> hash_high;
  };
  static_assert(sizeof(Entry) == 56 && std::atomic<std::uint64_t>::is_always_lock_free);

  static constexpr std::uint64_t kStates = 4;
  static State state_in(std::uint64_t word) { return static_cast<State>(word % kStates); }
  static std::uint64_t with(std::uint64_t word, State state) {
    return word - word % kStates + static_cast<std::uint64_t>(state);
  }
  struct Snapshot {
    std::uint64_t word = 0;
    Owner owner;
    Held held;
  };
  std::optional<Snapshot> content_of(std::uint32_t slot) const;
  bool change(std::uint32_t slot, const Owner& owner, State state);
  void set(std::uint32_t slot, State state);

  Books(std::span<Entry> entries, std::uint32_t slots_per_chunk)
      : entries_(entries), slots_per_chunk_(slots_per_chunk) {}

  std::span<Entry> entries_;
  std::uint32_t slots_per_chunk_;
};

}  // namespace gpumux::mover
