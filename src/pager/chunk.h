// SPDX-License-Identifier: Apache-2.0
// A chunk: one stretch of device addresses that has physical memory as a whole or not at all, and what is known of its
// content.
//
// Having memory takes the driver three steps, and any of them may fail, going back included. So the steps are kept as
// they are, next to where the valid content is:
//
//     step: kCreated -> kMapped -> kAccessible     each needs the one before
//     kCreated -> each view: kMapped -> kGranted   the same, if the program maps by itself
//     place: kNowhere, kDevice, kHost              where the program's content is
//
// Resident means kDevice (then it is complete). A chunk that is not resident may still hold memory, if the driver
// refused to take it back. The next attempt goes on from there. A failure thus never loses content: place changes only
// after the new place is complete.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/driver.gen.h"
#include "pager/bounds.h"
#include "pager/frame_keeper.h"
#include "pager/saved.h"
#include "pager/sizes.h"

namespace gpumux::pager {

enum class ChunkPlace : std::uint8_t {
  kNowhere,  // never written: allocated without a lease. Any content will do
  kDevice,
  kHost,  // in host memory: its `saved` says where
};

// A chunk of a handle of the program's, as the program has mapped it: at addresses and with rights of its choice
// (handles.cc).
struct View {
  cuda::CUdeviceptr address = 0;
  std::vector<cuda::CUmemAccessDesc> rights;  // one for each location; empty: none were given
  // From kGranted on, the program lacks nothing.
  enum class State : std::uint8_t {
    kAway,     // the driver has no such mapping
    kMapped,   // `rights` are not in force
    kGranted,  // `rights` are in force
    kGone,     // the program has no such mapping, but the driver still has; it is unmapped when the driver allows it
  };
  State state = State::kAway;
};

struct Chunk {
  cuda::CUdeviceptr address = 0;
  std::uint64_t bytes = 0;
  cuda::CUmemGenericAllocationHandle handle = 0;
  // How far it has memory at `address`.
  enum class Step : std::uint8_t { kNone, kCreated, kMapped, kAccessible };
  Step step = Step::kNone;
  // The owner of its memory, from kCreated on.
  enum class Owner : std::uint8_t {
    kSeat,
    kShared,   // the seat, but others may have it, now or later: it is freed, and given to no seat
    kForeign,  // another process: it takes none of the seat's room
  };
  Owner owner = Owner::kSeat;
  // None: its memory was made here.
  std::optional<KeptFrame> frame;
  ChunkPlace place = ChunkPlace::kNowhere;
  // Its memory came as a frame, and the program has closed the descriptor: the mover cannot be given it.
  bool is_stuck = false;
  // A thread works on it without holding the pager's lock. No other thread touches it until that is over.
  bool claimed = false;
  // The last eviction had nothing to copy; it may be so again.
  bool was_cheap = false;
  // For a handle of the program's: the properties that it is created with. Such a chunk is mapped where the program
  // wants it (views), and at `address` only if the pager cannot reach it there. Null: `address` is the program's.
  const cuda::CUmemAllocationProp* as = nullptr;
  std::vector<View> views;
  Saved saved;               // empty: never evicted
  std::uint64_t number = 0;  // no other chunk of this pager's has it, ever

  std::uint32_t block_count() const { return static_cast<std::uint32_t>(bytes / kBlockBytes); }
  // It may be restored into memory with any content: all of its own is known, and the program does not choose the
  // memory.
  bool fits_frames() const { return place == ChunkPlace::kHost && as == nullptr; }
  // Restoring it means copying something in.
  bool has_content() const { return place == ChunkPlace::kHost && !saved.empty(); }
  bool has_memory() const { return step >= Step::kCreated; }
  bool takes_room() const { return has_memory() && owner != Owner::kForeign; }
  // Others may have its memory from now on.
  void share() { owner = std::max(owner, Owner::kShared); }
  // It has memory wherever the program may look for it.
  bool is_complete() const;
};

// Gives chunks physical memory and takes it away. Knows the driver and nothing of the pager; never waits for the GPU.
class Mapper {
 public:
  Mapper(const cuda::Driver& driver, cuda::CUdevice device, Bounds& bounds)
      : driver_(driver), device_(device), bounds_(bounds) {}

  // Memory, mapped, accessible to the own device and to `peers`. Without asking the driver, CUDA_ERROR_OUT_OF_MEMORY if
  // the bound leaves no room. Goes on where an earlier attempt stopped. If it fails, it gives back what the driver
  // takes back, and returns the error of the step that failed.
  cuda::CUresult attach(Chunk& chunk, const std::vector<cuda::CUdevice>& peers) const;

  // For memory that another process has made: takes the room for it, or gives that back.
  bool take_room(const Chunk& chunk) const { return bounds_.take(chunk.bytes); }
  void give_room(const Chunk& chunk) const { bounds_.give(chunk.bytes); }
  // Maps that memory, which has the chunk's content. REQUIRES: its room is taken, and the chunk has no memory. If it
  // fails, memory and room are given back.
  cuda::CUresult adopt(Chunk& chunk, const KeptFrame& frame, const std::vector<cuda::CUdevice>& peers) const;
  // No process but the seat and the node's mover has its memory, and the program did not choose its properties.
  bool may_be_frame(const Chunk& chunk) const { return chunk.as == nullptr && chunk.owner == Chunk::Owner::kSeat; }

  // Unmaps and releases. Nothing on any device may still use the addresses: unmapping does not wait. If it fails and
  // the chunk is still complete, the program sees no change. If it fails otherwise, the next call does the rest.
  cuda::CUresult detach(Chunk& chunk) const;

  // A descriptor of the chunk's memory for another process, the caller's to close. From now on others may have it.
  cuda::CUresult share(Chunk& chunk, int* fd) const;

  // A descriptor of the memory for the node's mover, which lets go of it before the chunk's memory goes. The caller's
  // to close.
  cuda::CUresult lend(const Chunk& chunk, int* fd) const;

  // Changes one peer's rights to a mapped chunk.
  cuda::CUresult set_peer(const Chunk& chunk, cuda::CUdevice peer, bool may) const;

  // The properties that chunks are created with, for a process that imports them.
  cuda::CUmemAllocationProp properties() const;
  // Whether network adapters can be given chunks' memory, as far as the device has that.
  bool is_for_networks() const;

 private:
  cuda::CUresult make(Chunk& chunk) const;
  cuda::CUresult let_go(Chunk& chunk) const;
  cuda::CUresult map_home(Chunk& chunk, const std::vector<cuda::CUdevice>& peers) const;
  cuda::CUresult show(const Chunk& chunk, View& view) const;

  const cuda::Driver& driver_;
  const cuda::CUdevice device_;
  Bounds& bounds_;
};

}  // namespace gpumux::pager
