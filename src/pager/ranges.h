// SPDX-License-Identifier: Apache-2.0
// The device allocations of one seat: stretches of reserved addresses, in chunks.
//
// A range is one large allocation, or a slab: one block of 2 MiB that small allocations share. Nothing here locks: it
// all belongs to the pager's lock, except the chunks that a thread has claimed (chunk.h).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "pager/chunk.h"
#include "pager/packing.h"

namespace gpumux::pager {

// Why memory must stay where it is. A party outside the pager knows its physical place, and would not notice that it
// moves.
enum class PinReason : std::uint8_t {
  kExported,    // another process may have opened it
  kImported,    // another process owns it
  kRegistered,  // with a library that keeps physical addresses (NCCL's user buffers, say)
  kRdma,        // a network adapter reads or writes it
};
inline constexpr std::size_t kPinReasons = 4;

// Memory from cuMemCreate. It has no address. The program maps it as often as it likes, always as a whole; the driver
// refuses other mappings (CUDA_ERROR_NOT_SUPPORTED, 580.159). docs/pager.md says how it pages.
struct ProgramHandle {
  struct Mapping {
    std::uint64_t id = 0;  // the buffer's id in pointer attributes
    cuda::CUdeviceptr address = 0;
    std::vector<cuda::CUmemAccessDesc> rights;  // one for each location
  };
  cuda::CUmemAllocationProp properties{};
  std::uint32_t references = 1;  // of the program's; mapped memory lives on without
  std::uint32_t wanted = 0;      // number of reasons to have it on the GPU although no device may reach it
  std::vector<Mapping> mappings;

  // Whether a device may reach it.
  bool is_accessible() const;
};

struct Range {
  std::uint64_t id = 0;  // never used again in this process; the buffer's id in pointer attributes
  cuda::CUdeviceptr base = 0;
  std::uint64_t bytes = 0;            // reserved: a multiple of 2 MiB
  std::uint64_t requested_bytes = 0;  // as the program said; 0: a slab
  cuda::CUcontext context = nullptr;  // in which it was allocated; its end is the allocation's
  std::vector<Chunk> chunks;
  std::vector<cuda::CUdevice> peers;  // devices with rights, other than its own
  std::array<std::uint32_t, kPinReasons> pins{};
  std::uint32_t claims = 0;  // chunks of it that are claimed
  bool is_held = false;      // by a thread of the program's, for as long as some calls of the driver's (claim_all)
  enum class Life : std::uint8_t {
    kUsed,
    kAwaited,  // a thread waits for work that may still use it, and then frees it
    kDoomed,   // being freed: nothing new begins with it
    kLeaving,  // the same, and it goes when its last claim ends
  };
  Life life = Life::kUsed;
  bool committed = false;  // counted against the commitment
  bool foreign = false;    // another process's memory: has no handles of ours, goes without being kept for reuse
  std::unique_ptr<Slab> slab;
  std::unique_ptr<ProgramHandle> handle;  // of cuMemCreate; then `base` is known to the pager alone
  // Work may reach it, so no thread may submit while it is evicted. Memory that no work can reach may stay away.
  bool needed = true;
  std::uint32_t waiters = 0;  // threads that wait for claims to end: jobs begin nothing new with it

  bool is_doomed() const { return life >= Life::kDoomed; }
  bool holds_up() const { return needed && !is_doomed(); }
  bool pinned() const;
  // Resident bytes.
  std::uint64_t resident_bytes() const;
};

// Divides a range's addresses into chunks of `chunk_bytes`; the last one may be smaller. None has memory yet.
std::vector<Chunk> make_chunks(cuda::CUdeviceptr base, std::uint64_t bytes, std::uint64_t chunk_bytes);

class RangeTable {
 public:
  Range* insert(std::unique_ptr<Range> range);
  std::unique_ptr<Range> remove(Range& range);

  // The range that holds the address; null: none.
  Range* find(cuda::CUdeviceptr address) const;
  // By id; null: it is gone.
  Range* by_id(std::uint64_t id) const;

  // In the order of addresses.
  const std::map<cuda::CUdeviceptr, std::unique_ptr<Range>>& all() const { return by_base_; }

 private:
  std::map<cuda::CUdeviceptr, std::unique_ptr<Range>> by_base_;
  std::map<std::uint64_t, Range*> by_id_;
};

}  // namespace gpumux::pager
