// SPDX-License-Identifier: Apache-2.0
// A seat's managed memory (cuMemAllocManaged, GPUMUX_MEMORY=managed): what there is of it, and getting it out of the
// way of the next seat.
//
// Problem: managed memory moves by itself, page by page, when work touches it. So it needs no pager. But a GPU full of
// another program's pages gives them up one fault at a time, at a fraction of the bus's speed. The faults come in the
// middle of a kernel.
//
// Idea: the daemon says ahead that a seat's turn ends and how much of its managed memory is in the way
// (PrepareSwapOut). That part is asked for in host memory. Its preferred location is set there, so that a late kernel
// does not fetch it back, and it is prefetched. When the seat has a lease again, the preference is taken back. Pages
// that there is room for are prefetched to the GPU. All of it is advice: the driver keeps every page right without it.
// A hint that is lost, late or half followed costs time and nothing else.
//
// The program's own advice stands above it. Pages with a preferred location of the program's keep that: they are moved
// if it is this GPU, and left alone if it is not. So are ranges that it last prefetched to the host as a whole. (The
// driver does not say so of parts.) Advice goes by whole pages. Small allocations, which share pages, are not moved.
//
// Memory moves in bites, one under way at a time, on a stream of the library's own. That stream waits for no other, and
// no other waits for it. The pager thread steps without waiting, and can turn round after each bite. A piece is asked
// for under the lock. A range is taken out under the lock before the driver is told that it is freed. So no call of the
// library names memory that has gone, or that is another allocation's by now.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>

#include "base/interval_map.h"
#include "base/lock.h"
#include "cuda/driver.gen.h"

namespace gpumux::shim {

class ManagedMemory {
 public:
  // The host's pages, by which advice goes. Allocations are counted in them.
  static constexpr std::uint64_t kPageBytes = 4096;
  // At 21 to 50 GB/s (docs/pager.md) a bite takes 6 to 12 ms: that is how late the pager thread turns round. Far more
  // than a call costs.
  static constexpr std::uint64_t kBiteBytes = std::uint64_t{256} << 20;

  struct Range {
    cuda::CUdeviceptr address = 0;
    std::uint64_t bytes = 0;
    cuda::CUcontext context = nullptr;
  };

  ManagedMemory(const cuda::Driver& driver, cuda::CUdevice device) : driver_(driver), device_(device) {}
  ManagedMemory(const ManagedMemory&) = delete;
  ManagedMemory& operator=(const ManagedMemory&) = delete;

  // As it is counted.
  static std::uint64_t counted(std::uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

  // ---- the program's threads

  // Returns how much, as counted, has turned out to be gone: another thread has freed it, and has not yet said so.
  std::uint64_t add(const Range& range);
  // Around the driver's cuMemFree. Nothing: no range begins there.
  struct Freeing {
    cuda::CUdeviceptr address = 0;
    std::uint64_t id = 0;
    std::uint64_t counted = 0;
  };
  std::optional<Freeing> begin_free(cuda::CUdeviceptr address);
  // True: it is gone by this call.
  bool end_free(const Freeing& freeing, bool freed);
  // The context is gone, and all memory in it; returns how much, as counted.
  std::uint64_t context_gone(cuda::CUcontext context);
  // Advice of the program's own, given by `call()`. Nothing: this address is none of the seat's.
  template <class Call>
  std::optional<cuda::CUresult> advise(cuda::CUdeviceptr address, std::uint64_t bytes, cuda::CUmem_advise advice,
                                       cuda::CUmemLocation place, Call call) {
    const base::Locked locked(mutex_);
    if (live_at(address) == nullptr) return std::nullopt;
    const cuda::CUresult result = call();
    if (result == cuda::CUDA_SUCCESS) follow(address, bytes, advice, place);
    return result;
  }

  // ---- the pager thread

  // `bytes` bytes should go to host memory.
  void evict(std::uint64_t bytes);
  // All of it may be as the program wants it again. Up to `room` bytes are fetched. (No more has left than others
  // lacked, and they give that up now. So there is room next to the memory that has not left, although that may be more
  // than the GPU holds.)
  void come_back(std::uint64_t room);
  // The lease is lost: no more is fetched.
  void stop_coming_back();
  // One bite more. False: nothing is under way, and nothing to be done.
  bool step();

  // ---- any thread

  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  // Bytes that have left and are not back.
  std::uint64_t away_bytes() const { return away_bytes_.load(std::memory_order_relaxed); }
  bool is_at_home() const { return is_at_home_.load(std::memory_order_relaxed); }

 private:
  enum class Aim : std::uint8_t { kStay, kLeave, kComeBack };
  struct Live {
    Range range;
    std::uint64_t id = 0;   // another allocation may come to lie where one was
    bool is_going = false;  // a thread frees it
  };
  // A row of whole pages of one range that are all in the same state.
  struct Piece {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    cuda::CUcontext context = nullptr;
    std::uint64_t bytes() const { return end - begin; }
  };
  struct Away {
    bool is_advised = false;
  };
  struct Stream {
    cuda::CUstream stream = nullptr;
    bool is_running = false;  // at a piece, as far as is known
  };

  const Live* live_at(cuda::CUdeviceptr address) const GPUMUX_REQUIRES(mutex_);
  void follow(cuda::CUdeviceptr address, std::uint64_t bytes, cuda::CUmem_advise advice, cuda::CUmemLocation place)
      GPUMUX_REQUIRES(mutex_);
  void forget(const Range& range) GPUMUX_REQUIRES(mutex_);
  bool can_move() GPUMUX_REQUIRES(mutex_);
  bool is_running() GPUMUX_REQUIRES(mutex_);
  std::optional<Piece> next_to_leave() GPUMUX_REQUIRES(mutex_);
  bool send_away(const Piece& piece) GPUMUX_REQUIRES(mutex_);
  std::optional<Piece> next_to_come_back() GPUMUX_REQUIRES(mutex_);
  bool fetch(const Piece& piece) GPUMUX_REQUIRES(mutex_);
  bool was_left_with_the_host(const Piece& piece) const GPUMUX_REQUIRES(mutex_);
  bool prefers_other(std::uint64_t address) const GPUMUX_REQUIRES(mutex_);
  cuda::CUresult prefer_host(const Piece& piece) GPUMUX_REQUIRES(mutex_);
  void prefer_nothing(const Piece& piece) GPUMUX_REQUIRES(mutex_);
  cuda::CUresult prefetch(const Piece& piece, bool to_host) GPUMUX_REQUIRES(mutex_);
  Stream* stream_of(cuda::CUcontext context) GPUMUX_REQUIRES(mutex_);
  std::uint64_t cut(std::uint64_t begin, std::uint64_t end) const GPUMUX_REQUIRES(mutex_);
  void note() GPUMUX_REQUIRES(mutex_);

  const cuda::Driver& driver_;
  const cuda::CUdevice device_;

  // Held while the driver is asked for a piece, never while it is waited for.
  base::Mutex mutex_;
  std::map<cuda::CUdeviceptr, Live> ranges_ GPUMUX_GUARDED_BY(mutex_);
  std::uint64_t next_id_ GPUMUX_GUARDED_BY(mutex_) = 1;
  base::IntervalMap<cuda::CUmemLocation> preferred_ GPUMUX_GUARDED_BY(mutex_);  // by the program
  base::IntervalMap<Away> away_ GPUMUX_GUARDED_BY(mutex_);
  base::IntervalMap<bool> not_fetched_ GPUMUX_GUARDED_BY(mutex_);  // came back to where the program had not asked for
                                                                   // them: our prefetch was the last
  std::map<cuda::CUcontext, Stream> streams_ GPUMUX_GUARDED_BY(mutex_);
  int can_move_ GPUMUX_GUARDED_BY(mutex_) = -1;  // not known yet
  Aim aim_ GPUMUX_GUARDED_BY(mutex_) = Aim::kStay;
  std::uint64_t to_go_ GPUMUX_GUARDED_BY(mutex_) = 0;   // bytes that are still to leave, or may still be fetched
  std::uint64_t cursor_ GPUMUX_GUARDED_BY(mutex_) = 0;  // the walk for that has come up to here
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> away_bytes_{0};
  std::atomic<bool> is_at_home_{true};
};

}  // namespace gpumux::shim
