// SPDX-License-Identifier: Apache-2.0
// The process's device addresses: the reserved ranges, the mappings in them, and their access rights.
//
// The problem: kernels and copies must compute on real bytes at addresses that look like the driver's. An access to an
// address that is not mapped, or is unmapped while a kernel runs, must be an error of that kernel. It must never crash
// the host program. And a host program that follows a device pointer must crash, as it does with a real GPU.
//
// The idea: two reservations of the same size without any access rights. Device addresses are addresses in the first,
// which stays without rights (only managed memory is mapped there). The GPUs' view of address a is at a + view_offset:
// there physical memory is mapped. A thread that computes holds a Reader (a shared lock) for a short piece of work. It
// asks the Reader for each range, and works on what it gets; mapping and unmapping take the lock alone. So memory never
// goes away under a piece, and is checked anew for each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <shared_mutex>
#include <vector>

#include "sim/cuda/physical_memory.h"

namespace gpumux::sim {

enum class Touch : std::uint8_t { kRead = 1, kWrite = 2 };

enum class MemoryKind : std::uint8_t {
  kDevice,    // cuMemAlloc and its relatives
  kMapped,    // the virtual memory API
  kPool,      // stream-ordered
  kManaged,   // unified
  kImported,  // legacy IPC
  kHost,      // pinned or registered host memory
};

// The context whose kernels or copies touch memory.
struct Accessor {
  std::uint32_t gpu = 0;
  std::uint64_t context = 0;                             // its id
  std::shared_ptr<const std::set<std::uint64_t>> peers;  // ids of the contexts whose memory it may reach; may be null
  bool copy_engine = false;  // copies reach plain memory of any GPU, through host memory if need be
};

// One mapped range.
struct Mapping {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  std::shared_ptr<PhysicalMemory> memory;       // null: host memory
  std::uint64_t offset = 0;                     // in `memory`
  std::uint64_t context = 0;                    // the owner's id; 0: none (the virtual memory API, pools)
  std::array<std::uint8_t, kMaxGpus> access{};  // kMapped and kPool: bits of Touch for each GPU
  std::uint64_t allocation = 0;                 // the range as the program knows it (an allocation; a mapping)
  std::uint64_t allocation_bytes = 0;
  unsigned host_flags = 0;      // kHost: as given to cuMemHostAlloc or cuMemHostRegister
  bool registered = false;      // kHost: the program's own memory
  std::uint64_t buffer_id = 0;  // unique in this process, never used again
  void* pool = nullptr;         // kPool: the pool's handle
  bool sync_memops = false;     // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
};

inline constexpr std::uint64_t kPageBytes = std::uint64_t{2} << 20;  // granularity of physical memory, as the driver's
inline constexpr std::uint64_t kHostPage = 4096;

class AddressSpace {
 public:
  // Reserves address space; null if the system refuses.
  static AddressSpace* create();

  // A free range of addresses, at `hint` if that is free (0: anywhere); 0: none left. `bytes` is a multiple of
  // kPageBytes.
  std::uint64_t reserve(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t hint);
  // False: no such reservation, or something is mapped in it.
  bool unreserve(std::uint64_t base, std::uint64_t bytes);
  // The reservation that holds the whole range; nothing if there is none.
  bool reserved(std::uint64_t base, std::uint64_t bytes) const;

  enum class MapResult { kOk, kOverlap, kSystem };
  // Maps into reserved addresses. Fills in buffer_id.
  MapResult map(Mapping mapping);
  // Takes mappings away at once, even from kernels that use them. False, and nothing done, unless the range is exactly
  // a row of whole mappings.
  bool unmap(std::uint64_t base, std::uint64_t bytes);
  // Host memory that devices may touch. False: it overlaps other such memory.
  bool add_host(Mapping mapping);
  bool remove_host(std::uint64_t base);
  // Changes rights of mapped ranges (the virtual memory API, pools). False unless the range is a row of whole mappings.
  bool set_access(std::uint64_t base, std::uint64_t bytes, std::uint32_t gpu, std::uint8_t bits);
  // Gives the memory behind an allocation a file of its own, wherever it is mapped.
  bool give_own_file(PhysicalMemory& memory);

  // A copy of the mapping that holds the address; nothing if none does.
  std::optional<Mapping> find(std::uint64_t address) const;
  // False: nothing is mapped there.
  bool set_sync_memops(std::uint64_t address, bool value);
  bool is_device_address(std::uint64_t address) const { return address - base_ < bytes_; }
  // Are all these addresses mapped? Host memory that is not known counts as mapped: it is the program's own.
  bool mapped(std::uint64_t address, std::uint64_t bytes) const;

  // In a piece of work on memory. Mappings stay as they are as long as it lives.
  class Reader {
   public:
    explicit Reader(const AddressSpace& space) : space_(space), lock_(space.mutex_) {}
    // The bytes, or null if any of them may not be touched so. With `pageable`, unknown host memory is passed as it is.
    std::byte* resolve(std::uint64_t address, std::uint64_t bytes, const Accessor& who, Touch how,
                       bool pageable = false) const;

   private:
    const AddressSpace& space_;
    std::shared_lock<std::shared_mutex> lock_;
  };

 private:
  AddressSpace() = default;
  bool map_pages(const Mapping& mapping);
  bool may_touch(const Mapping& mapping, const Accessor& who, Touch how) const;
  const Mapping* at(std::uint64_t address) const;

  std::uint64_t base_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t view_offset_ = 0;

  mutable std::shared_mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> free_;      // base: bytes; neighbours are joined
  std::map<std::uint64_t, std::uint64_t> reserved_;  // base: bytes
  std::map<std::uint64_t, Mapping> mappings_;        // by base, host memory among them
  std::uint64_t next_buffer_id_ = 1;
};

}  // namespace gpumux::sim
