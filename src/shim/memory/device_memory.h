// SPDX-License-Identifier: Apache-2.0
// One seat's memory, as the tenant sees it. It has the pager, the daemon's bounds (docs/memory.md), the seat's memory
// outside the pager, and the threads that wait for more room.
//
// Until the daemon has said how much the seat may have, it may have nothing. A thread that allocates waits for that, a
// moment after the first context was made. So there is no time in which a quota is not in force. Without a daemon there
// are no bounds.
//
//     kAsking --Room--> kBounded --no daemon any more, and told to go on without--> kUnbounded --Room--> kBounded
//        \--no daemon, or a daemon that does not speak of memory--> kUnbounded
//
// Any thread may call any function, but not while it holds another lock of the shim's than `asking` and the agent's (an
// Announcement). This one (mutex_) is held for moments, never across a call of the driver.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/lock.h"
#include "client/mover_connection.h"
#include "pager/pager.h"
#include "shim/memory/managed_memory.h"
#include "shim/memory/pools.h"
#include "shim/process/settings.h"
#include "wire/messages.h"

namespace gpumux::shim {

class DeviceMemory {
 public:
  DeviceMemory(const cuda::Driver& driver, const MemorySettings& settings, cuda::CUdevice device, std::uint32_t slot,
               Pools::Port& pools_port);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  const std::uint32_t slot;
  const cuda::CUdevice device;
  client::MoverConnection mover;  // the node's
  // The loss of its connection for which this daemon has been asked for another one; 0: none.
  std::atomic<std::uint64_t> asked_for_mover{0};
  pager::Pager pager;
  Pools pools;  // stream-ordered allocation, out of the pager's memory
  ManagedMemory managed;

  // Whether allocations on this GPU are the pager's. Calls the driver once.
  bool is_paged();

  // Whether the pager has anything that a context's end could concern.
  bool has_anything() const { return pager.bounds().committed() != 0 || pager.bounds().used() != 0 || has_imports_; }
  // Freed memory that is kept for reuse goes back to the driver, at least `bytes`; returns how much.
  std::uint64_t trim(std::uint64_t bytes) {
    pools.release(bytes);
    return pager.trim(bytes);
  }
  // Memory of other processes is neither used nor committed here.
  void note_import() { has_imports_ = true; }

  // ---- bounds

  // An older sequence than the newest is ignored. False: it was.
  bool set_room(const wire::Room& room);
  // No daemon says them any more, and from now on there are none. Where there is a quota, the process has as much of it
  // for itself as a daemon has ever told it of. One that has never had a daemon gets nothing: it does not know what the
  // others of its run have.
  void unbind();
  // A new connection: bounds stay, but the daemon has not said them yet.
  void on_connected();
  // The seat is known to a daemon, which says how much room there is, if it ever does. If it does not for a while
  // (expire_asking), there are no bounds.
  void on_opened(base::TimePoint now);
  // How long until it must be called again; nothing: not needed.
  std::optional<base::Duration> expire_asking(base::TimePoint now);

  bool is_bounded() const { return rule_.load(std::memory_order_acquire) == Rule::kBounded; }
  // The size of its GPU as the program is told; 0: as the driver says.
  std::uint64_t told_total() const { return total_.load(std::memory_order_relaxed); }
  // The same, once the daemon has said it, or has not for some seconds.
  std::uint64_t await_total();
  // How much the program is told that it can still allocate, of told_total(). It does not grow while the program frees
  // nothing: programs measure what they need by the difference of two answers. So the most that they may have falls at
  // once, and rises when they have freed something since the last answer.
  std::uint64_t told_free();
  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, as the program has set it for the allocation at `base`; nothing: it has not.
  // `id`: the allocation's buffer ID, for a later one at the same place is another one.
  void set_sync_memops(cuda::CUdeviceptr base, std::uint64_t id, bool value);
  std::optional<bool> sync_memops(cuda::CUdeviceptr base, std::uint64_t id) const;
  // Whether there is a quota. Waits as await_bounds does.
  bool await_is_limited();
  // A thread's need beyond what the seat has now, in bytes.
  struct Need {
    std::uint64_t room = 0;        // on the GPU
    std::uint64_t commitment = 0;  // allocated, on the GPU or not
    bool is_managed = false;       // the commitment is for managed memory, which never takes room
    bool again = false;            // the daemon has refused an earlier need of the same call
  };
  // Held by the thread that asks the daemon, from its wish to the answer. So an answer is about the need of that thread
  // alone. Before all other locks.
  base::Mutex asking;
  struct Wish {
    // Why there is nothing to ask, and no ticket: the bounds allow it already; there are none; they are not known yet;
    // no daemon could allow more.
    enum class Otherwise : std::uint8_t { kAsk, kEnough, kUnbounded, kNotKnown, kNoMore };
    Otherwise otherwise = Otherwise::kAsk;
    std::uint32_t ticket = 0;
    wire::RoomWanted message{};
  };
  // The message to the daemon. REQUIRES: `asking`; the agent's lock, so that tickets are sent in order.
  Wish wish(const Need& need);
  // Waits for the answer: the reason for which the daemon refuses (wire::Room::refused), or 0: it is given.
  std::uint32_t await(std::uint32_t ticket);
  // Waits until the first bounds are known, or that there are none: at most as long as the tenant looks for a daemon.
  void await_bounds() { await_bounds(base::Duration::max()); }
  // The newest wish that is not answered, to be said again on a new connection. ticket 0: none.
  wire::RoomWanted open_wish();

  // ---- what the pager does not have

  // Device memory of the driver's own making. `key` names it (an address, a handle). It goes with `context`, unless
  // that is null. The caller's reservation for it ends.
  void add_outside(wire::Unpageable reason, std::uint64_t key, std::uint64_t bytes, cuda::CUcontext context,
                   std::uint64_t reserved);
  // False: it is not known here.
  bool remove_outside(std::uint64_t key);
  // The same in two steps, around the driver's call that frees it. Another thread may be given the same name before
  // that call returns. Managed memory, too.
  struct Freeing {
    std::uint64_t key = 0;
    std::uint64_t number = 0;  // of the entry
    std::optional<ManagedMemory::Freeing> managed;
  };
  std::optional<Freeing> begin_free(std::uint64_t key);
  void end_free(const Freeing& freeing, bool freed);
  // The context is gone, and with it all memory in it.
  void context_gone(cuda::CUcontext context);
  // The driver has refused what the room allows. Up to `bytes` of the room that is left count as taken from now on;
  // returns how many.
  std::uint64_t claim_hidden(std::uint64_t bytes);
  void release_hidden(std::uint64_t bytes);
  // For memory that is asked about and not followed (pools).
  void set_outside(wire::Unpageable reason, std::uint64_t bytes);
  // A pool of the driver's has been allocated from: what it has reserved is counted from now on.
  void count_pool(cuda::CUmemoryPool pool);
  void forget_pool(cuda::CUmemoryPool pool);
  // From now on graphs may have memory of their own.
  void note_graph_memory() { has_graph_memory_.store(true, std::memory_order_relaxed); }
  // Asks the driver again: pools and graphs give memory back at moments of their own.
  void count_pools();
  std::uint64_t outside_bytes() const { return outside_total_.load(std::memory_order_relaxed); }
  // Allocated in all, in whole blocks; managed memory in pages.
  std::uint64_t allocated_bytes() const {
    return pager.bounds().committed() + pager.bounds().committed(pager::Bounds::Part::kBeside) + outside_bytes();
  }

  // ---- reports

  wire::Memory report(std::uint64_t epoch, std::uint32_t flags);
  // The newest bound that is in force and has not been reported.
  bool has_unreported_room() const;
  // Something has changed that people want to see.
  std::atomic<bool> changed{false};

 private:
  enum class Rule : std::uint8_t { kAsking, kBounded, kUnbounded, kOwnQuota };
  struct Outside {
    wire::Unpageable reason;
    std::uint64_t bytes;
    cuda::CUcontext context;
    std::uint64_t number;
  };

  void await_bounds(base::Duration at_most);
  void unbind_locked() GPUMUX_REQUIRES(mutex_);
  std::uint64_t own_quota() const GPUMUX_REQUIRES(mutex_);
  void apply_locked() GPUMUX_REQUIRES(mutex_);
  void remove_locked(std::map<std::uint64_t, Outside>::iterator outside) GPUMUX_REQUIRES(mutex_);

  const cuda::Driver& driver_;
  const MemorySettings& settings_;
  std::atomic<int> is_paged_{-1};
  std::atomic<bool> has_imports_{false};
  std::atomic<bool> has_graph_memory_{false};
  std::atomic<Rule> rule_{Rule::kAsking};  // written under mutex_
  std::atomic<std::uint64_t> total_{0};
  // As told_free has answered last.
  std::uint64_t told_most_ GPUMUX_GUARDED_BY(mutex_) = 0;
  std::uint64_t told_allocated_ GPUMUX_GUARDED_BY(mutex_) = 0;
  std::map<cuda::CUdeviceptr, std::pair<std::uint64_t, bool>> sync_memops_ GPUMUX_GUARDED_BY(mutex_);
  std::atomic<bool> is_limited_{false};
  std::atomic<std::uint64_t> outside_total_{0};
  std::uint64_t hidden_ GPUMUX_GUARDED_BY(mutex_) = 0;  // in addition to outside_total_

  mutable base::Mutex mutex_;  // threads that wait for rule, room or answers wait at it
  wire::Room room_ GPUMUX_GUARDED_BY(mutex_);
  std::optional<base::TimePoint> looked_at_ GPUMUX_GUARDED_BY(mutex_);  // nothing: no daemon knows the seat
  base::Duration asked_for_ GPUMUX_GUARDED_BY(mutex_){};  // since one does, less the time in which no thread looked
  std::uint32_t reported_sequence_ GPUMUX_GUARDED_BY(mutex_) = 0;
  std::uint32_t last_ticket_ GPUMUX_GUARDED_BY(mutex_) = 0;
  std::uint32_t answered_ GPUMUX_GUARDED_BY(mutex_) = 0;
  std::uint32_t refused_ GPUMUX_GUARDED_BY(mutex_) = 0;  // the newest ticket that was
  std::uint32_t refused_for_ GPUMUX_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, Outside> outside_ GPUMUX_GUARDED_BY(mutex_);
  std::uint64_t next_number_ GPUMUX_GUARDED_BY(mutex_) = 1;
  base::Mutex pools_mutex_;  // held while the driver is asked; before mutex_
  std::vector<cuda::CUmemoryPool> pools_ GPUMUX_GUARDED_BY(pools_mutex_);
  std::array<std::uint64_t, wire::kUnpageableReasons> outside_by_reason_ GPUMUX_GUARDED_BY(mutex_){};
  wire::RoomWanted newest_wish_ GPUMUX_GUARDED_BY(mutex_);
};

// Memory that the daemon takes for free and the driver does not have. A seat that the driver refuses what its room
// allows claims that memory for its own, more each time, until it is given the memory. By then other seats have had to
// make way for the claim. The thread that asks the driver owns it, one thread at a time.
class HiddenClaim {
 public:
  // The driver still refuses, `waited` after it did so first. Whether more is claimed now.
  bool refused(DeviceMemory& memory, base::Duration waited);
  // False: nothing was claimed.
  bool release(DeviceMemory& memory);

 private:
  // A dead tenant's memory is usually back within a tenth of a second. NVML's next looks tell the daemon of other
  // programs' memory within two seconds. From then on the driver's word is believed, and the claim doubles each time: 4
  // GiB before a thread stops waiting.
  static constexpr base::Duration kEvery = std::chrono::milliseconds(250);
  static constexpr std::uint64_t kFirst = std::uint64_t{64} << 20;

  std::uint64_t claimed_ = 0;
  std::uint64_t next_ = kFirst;
  base::Duration due_ = kEvery;
};

}  // namespace gpumux::shim
