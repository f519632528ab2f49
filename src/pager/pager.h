// SPDX-License-Identifier: Apache-2.0
// The pager of one seat (one process on one GPU). The program's device memory has addresses that never change, and
// physical memory that comes and goes.
//
// Callers and threads:
//   - the program's threads (through the shim's hooks): allocate, free, find, pin, peers. Any number at a time, also
//     while a job runs. None of them waits for a lease. The call free waits for the GPU, by the caller's means.
//   - one thread (the pager thread): begin_eviction, begin_restoration, and stepping the job until it is over.
//   - any thread: counters, bounds, trim.
//
// Placement. kResident: the memory is there when the call returns. If there is no room, the call fails with
// CUDA_ERROR_OUT_OF_MEMORY: nothing here waits for room. A thread that is inside the gate (its seat holds a lease)
// leaves it then, has room made, and tries again. A thread outside allocates kEvicted instead: addresses only, which
// the next restoration brings to life. So the gate must let no thread pass while evicted_bytes() is not zero.
//
// docs/pager.md has the picture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/driver.gen.h"
#include "pager/counters.h"
#include "pager/drained.h"
#include "pager/eviction.h"
#include "pager/options.h"
#include "pager/restoration.h"
#include "pager/state.h"

namespace gpumux::pager {

enum class Placement : std::uint8_t { kResident, kEvicted };

// The result of an allocation that lacks commitment (bounds.h), and nothing else as far as is known. It never reaches a
// program; no memory call of the driver's has it.
inline constexpr cuda::CUresult kBeyondCommitment = cuda::CUDA_ERROR_SYSTEM_NOT_READY;
constexpr bool lacks_memory(cuda::CUresult result) {
  return result == cuda::CUDA_ERROR_OUT_OF_MEMORY || result == kBeyondCommitment;
}

// The facts about an address, for cuMemGetAddressRange and the pointer attributes. Never asks the driver.
struct AddressInfo {
  cuda::CUdeviceptr base = 0;  // the allocation's
  std::uint64_t bytes = 0;     // as requested
  cuda::CUcontext context = nullptr;
  std::uint64_t buffer_id = 0;
  cuda::CUdeviceptr mapping_base = 0;  // of the memory that it lies in: itself, or the block that it shares
  std::uint64_t mapping_bytes = 0;
  bool resident = false;  // all of it
  bool pinned = false;
  std::uint64_t handle = 0;  // of a mapping of the program's: its memory, as create_handle names it; 0: of cuMemAlloc
};

// The facts about a mapping of the program's.
struct MappingInfo {
  cuda::CUdeviceptr address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t id = 0;
  std::uint64_t handle = 0;
  cuda::CUmemAllocationProp properties{};
  std::vector<cuda::CUmemAccessDesc> rights;
};

// Part of a handle's memory, as the driver knows it.
struct DriverPiece {
  cuda::CUmemGenericAllocationHandle handle = 0;
  std::uint64_t bytes = 0;
};

// One physical piece of an allocation, as a descriptor that another process can import. The receiver owns the
// descriptor.
struct ExportedPiece {
  int fd = -1;
  std::uint64_t bytes = 0;
};

class Pager {
 public:
  // Waits until the work that `context` has submitted is over, as cuMemFree does (the shim knows how, captures and
  // all). If it fails, the free returns its error and frees nothing.
  using WaitForWork = cuda::CUresult (*)(void* argument, cuda::CUcontext context);

  Pager(const cuda::Driver& driver, const Options& options);
  // Gives everything back to the driver. No job may be left.
  ~Pager();
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  // cuMemAlloc and cuMemAllocPitch. CUDA_ERROR_INVALID_VALUE and CUDA_ERROR_OUT_OF_MEMORY as natively.
  cuda::CUresult allocate(cuda::CUcontext context, std::size_t bytes, Placement placement, cuda::CUdeviceptr* address);
  cuda::CUresult allocate_pitch(cuda::CUcontext context, std::size_t width_bytes, std::size_t height,
                                unsigned element_bytes, Placement placement, cuda::CUdeviceptr* address,
                                std::size_t* pitch);

  // How cuMemAllocPitch lays rows out, and what they come to; the errors are its own.
  static cuda::CUresult lay_out_rows(std::size_t width_bytes, std::size_t height, unsigned element_bytes,
                                     std::size_t* pitch, std::uint64_t* bytes);

  // cuMemFree, for addresses that this pager owns. CUDA_ERROR_INVALID_VALUE for an inner address, or twice.
  cuda::CUresult free(cuda::CUdeviceptr address, WaitForWork wait, void* argument);

  // Whether the address lies in memory of this pager's. Freed addresses that are still reserved do not.
  bool owns(cuda::CUdeviceptr address) const;
  std::optional<AddressInfo> find(cuda::CUdeviceptr address) const;
  // As Mapper::is_for_networks: of memory from allocate().
  bool is_for_networks() const { return state_.mapper.is_for_networks(); }
  // From the address to the end of the allocation that it lies in. Nothing: it lies in none, or in a mapping of the
  // program's.
  std::optional<std::uint64_t> bytes_to_end(cuda::CUdeviceptr address) const;

  // ---- the program's own virtual memory (handles.cc). Handles are named by number; mappings are of whole handles. No
  // call waits for the GPU, or for room; each waits for the job that holds a chunk of the same memory.

  // Whether memory of these properties can be the pager's. The rest is the driver's alone.
  static bool can_page(const cuda::CUmemAllocationProp& properties, std::uint64_t bytes);
  // cuMemCreate. kResident: it is on the GPU when this returns. Even so it may be away while no device may reach it.
  cuda::CUresult create_handle(std::uint64_t bytes, const cuda::CUmemAllocationProp& properties, Placement placement,
                               std::uint64_t* handle);
  // cuMemRelease. Mapped memory lives on. CUDA_ERROR_INVALID_VALUE: released as often as it was retained.
  cuda::CUresult release_handle(std::uint64_t handle);
  // cuMemRetainAllocationHandle. CUDA_ERROR_INVALID_VALUE: nothing is mapped there.
  cuda::CUresult retain_handle(cuda::CUdeviceptr address, std::uint64_t* handle);
  // Size and properties; false: no such handle.
  bool find_handle(std::uint64_t handle, std::uint64_t* bytes, cuda::CUmemAllocationProp* properties) const;
  // cuMemMap of the whole handle, at addresses that are reserved and free: the caller knows.
  cuda::CUresult map_handle(std::uint64_t handle, cuda::CUdeviceptr address);
  // cuMemUnmap, cuMemSetAccess of one mapping. After rights were given evicted_bytes() may have grown.
  cuda::CUresult unmap_handle(cuda::CUdeviceptr address);
  cuda::CUresult set_access(cuda::CUdeviceptr address, const cuda::CUmemAccessDesc* rights, std::size_t count);
  std::optional<MappingInfo> find_mapping(cuda::CUdeviceptr address) const;
  // It must be on the GPU although no device may reach it: it counts as evicted until it is there. Counted.
  void want_handle(std::uint64_t handle, bool want);
  // As pin. The driver's handles do not change until unpin_handle.
  cuda::CUresult pin_handle(std::uint64_t handle, PinReason reason, std::vector<DriverPiece>* pieces);
  cuda::CUresult unpin_handle(std::uint64_t handle, PinReason reason);

  // The context is about to be destroyed, reset or released for the last time, or has gone: frees its allocations. Its
  // work must be over.
  void context_going(cuda::CUcontext context);

  // Memory that must stay. Counted: each pin needs an unpin. CUDA_ERROR_NOT_READY: it is not resident now; pin inside
  // the gate.
  cuda::CUresult pin(cuda::CUdeviceptr address, PinReason reason);
  cuda::CUresult unpin(cuda::CUdeviceptr address, PinReason reason);

  // Descriptors of the allocation's physical pieces, in order; pins it (kExported). Small allocations share their
  // block: the whole block is exported, and `offset` says where in it the allocation begins.
  cuda::CUresult export_pieces(cuda::CUdeviceptr address, std::vector<ExportedPiece>* pieces, std::uint64_t* offset);
  // Maps another process's pieces, next to each other, as one allocation, unpageable (kImported) until it is freed.
  // The descriptors stay the caller's.
  cuda::CUresult import_pieces(cuda::CUcontext context, const std::vector<ExportedPiece>& pieces,
                               cuda::CUdeviceptr* address);

  // Another device of this process may (no longer) reach all memory of this seat, now and after each restoration.
  // Enabling is undone when it fails half way.
  cuda::CUresult enable_peer(cuda::CUdevice peer);
  cuda::CUresult disable_peer(cuda::CUdevice peer);

  // Zero: every allocation is resident, and a thread that holds a lease may submit.
  std::uint64_t evicted_bytes() const { return state_.evicted_bytes.load(); }

  // The seat's bounds: physical memory on the GPU, and allocations in all. Beyond them allocations fail with
  // CUDA_ERROR_OUT_OF_MEMORY and restorations starve, without asking the driver. The caller evicts down to them. Any
  // thread, at any moment.
  Bounds& bounds() { return state_.bounds; }
  const Bounds& bounds() const { return state_.bounds; }

  // Jobs: one at a time. Null: another one is running, or memory may not move now (*error says which).
  std::unique_ptr<Eviction> begin_eviction(const DrainedSeat& drained, std::uint64_t bytes, cuda::CUresult* error);
  std::unique_ptr<Restoration> begin_restoration(cuda::CUresult* error);

  // Freed memory that is kept for reuse goes back to the driver; returns how much.
  std::uint64_t trim(std::uint64_t bytes) { return state_.trim(bytes); }
  Counters counters() const;

  // Checks that all tables agree. Returns null, or what is wrong. For tests. No job may be running.
  const char* check() const;

 private:
  struct Found {
    Range* range = nullptr;
    Slab::Piece* piece = nullptr;  // of a slab
    cuda::CUdeviceptr base = 0;
    // Of the allocation; never used again.
    std::uint64_t id() const { return piece != nullptr ? piece->id : range->id; }
  };

  Found find_locked(cuda::CUdeviceptr address) const GPUMUX_REQUIRES(state_.mutex);
  Found find_mapping_locked(cuda::CUdeviceptr address) const GPUMUX_REQUIRES(state_.mutex);
  cuda::CUresult pin_locked(const Found& found, PinReason reason) GPUMUX_REQUIRES(state_.mutex);
  bool let_go_locked(std::uint64_t handle, std::unique_ptr<Range>* gone) GPUMUX_REQUIRES(state_.mutex);
  const char* check_handle(const Range& range) const GPUMUX_REQUIRES(state_.mutex);
  std::unique_ptr<Range> take_reusable(std::uint64_t bytes);
  cuda::CUresult make_range(std::uint64_t bytes, Placement placement, std::unique_ptr<Range>* range);
  cuda::CUresult attach_all(Range& range);
  cuda::CUresult insert(std::unique_ptr<Range> range, Range** inserted);
  cuda::CUresult grant_peers(Range& range);
  cuda::CUresult allocate_packed(cuda::CUcontext context, std::size_t bytes, Placement placement,
                                 cuda::CUdeviceptr* address);
  cuda::CUresult change_peer(cuda::CUdevice peer, bool may);
  void discard(std::unique_ptr<Range> range);
  cuda::CUresult begin_job();

  // Slabs that have room, by context; most recently useful first. A hint: full ones leave when they are met.
  std::vector<Range*> open_slabs_;
  mutable State state_;
};

}  // namespace gpumux::pager
