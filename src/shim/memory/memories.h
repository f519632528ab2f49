// SPDX-License-Identifier: Apache-2.0
// The memory of all seats of this process: allocating and freeing for the program, and whether each seat is complete.
//
// A seat is complete when all memory that its work can reach is on the GPU: its own, and its peers'. While it is not,
// its gate is barred (gate/gate.h). The bar follows from three facts, under one lock: the pagers' evicted_bytes,
// evictions that are about to begin or under way, and connections between seats. update_bars() must be called whenever
// one of them may have changed, before a thread can act on the change:
//
//   - an allocation that was born evicted: before its address is handed out;
//   - an eviction: before it looks whether a thread is inside;
//   - a restoration that is over: afterwards.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/lock.h"
#include "client/agent.h"
#include "gate/gate.h"
#include "shim/memory/address_table.h"
#include "shim/memory/device_memory.h"
#include "shim/memory/ipc_server.h"
#include "shim/memory/pager_thread.h"
#include "shim/memory/remedies.h"
#include "shim/process/seats.h"

namespace gpumux::shim {

class Memories final : public Pools::Port {
 public:
  using Lack = Remedies::Lack;

  // The tenant whose memory it is. Outlives this object; any thread may call.
  struct Owner {
    // Memory that the seat's work can reach is to move: work that is frozen goes on, and drains.
    virtual void let_drain(std::uint32_t slot) = 0;
    // Its work is frozen, and stays so for as long as is_memory_away.
    virtual bool stands_still(std::uint32_t slot) = 0;
    // That has ended.
    virtual void memory_came(std::uint32_t slot) = 0;
    // Its work is frozen, or is about to be, or is being thawed.
    virtual bool is_frozen(std::uint32_t slot) = 0;
    // To the daemon's log and GPUMUX_LOG.
    virtual void note(wire::Severity severity, const std::string& text) = 0;

   protected:
    ~Owner() = default;
  };

  Memories(Owner& owner, const cuda::Driver& driver, gate::Gate& gate, Seats& seats, client::Agent& agent,
           const MemorySettings& settings);
  ~Memories();  // in tests: gives everything back
  Memories(const Memories&) = delete;
  Memories& operator=(const Memories&) = delete;

  base::Status start() { return pager_thread_.start(); }
  PagerThread& pager_thread() { return pager_thread_; }
  Owner& owner() { return owner_; }
  bool is_managed() const { return settings_.managed; }

  // The memory of an open seat; made at the first call. Calls no driver, so that the agent may ask.
  DeviceMemory& of(std::uint32_t slot);
  // Null: it was not made yet.
  DeviceMemory* if_any(std::uint32_t slot) { return seats_memory_[slot].load(std::memory_order_acquire); }
  // The first seat's memory for which `is` is true; null: none.
  template <class Is>
  DeviceMemory* first(Is is) {
    for (std::uint32_t slot = 0; slot < seats_.count(); ++slot) {
      if (DeviceMemory* const memory = if_any(slot); memory != nullptr && is(*memory)) return memory;
    }
    return nullptr;
  }
  template <class Act>
  void each(Act act) {
    first([&](DeviceMemory& memory) { return act(memory), false; });
  }
  // The owner of the allocation at this address; null: it is no seat's.
  DeviceMemory* owner_of(cuda::CUdeviceptr address);

  // ---- the program's threads

  // Each of these makes its call, and again after each remedy that has helped (remedies.h). A call that lacks memory
  // when no remedy is left gives CUDA_ERROR_OUT_OF_MEMORY.

  // Allocates by `call(placement)`, which asks the pager.
  template <class Call>
  cuda::CUresult allocate(DeviceMemory& memory, std::uint64_t bytes, Call call) {
    const std::uint64_t in_blocks = pager::round_up(std::min(bytes, UINT64_MAX / 2), pager::kBlockBytes);
    return acquire(memory, Part::kPaged, in_blocks, Lack::kNone, [&](const Remedies& remedies, Lack* lack) {
      gate::ThreadRecord* const thread = gate::this_thread();
      if (thread == nullptr) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
      const gate::Passed passed = gate_.try_pass(*thread, memory.slot);
      pager::Placement placement = remedies.placement();
      cuda::CUresult result = call(placement);
      // The seat's room is its own without the lease, too. But more comes with the lease only, and then the pager
      // thread brings what was born evicted.
      if (passed == gate::Passed::kNot && placement == pager::Placement::kResident && pager::lacks_memory(result)) {
        placement = pager::Placement::kEvicted;
        result = call(placement);
      }
      leave(*thread, memory.slot, passed);
      if (result == cuda::CUDA_SUCCESS) born(memory);
      *lack = Remedies::lack_of(placement, result);
      return result;
    });
  }
  // For memory that only the driver can make. `lack`: what the call lacked, if it was made already.
  template <class Call>
  cuda::CUresult with_room(DeviceMemory& memory, std::uint64_t bytes, Call call, Lack lack = Lack::kNone) {
    return acquire(memory, Part::kReserved, bytes, lack, [&](const Remedies&, Lack* its) { return make(call, its); });
  }
  // The same for memory of about `bytes` that counts as the seat's. Under a quota, the call is not made before `least`
  // bytes of the quota are left. `count(reserved)` counts it (DeviceMemory::add_outside).
  template <class Call, class Count>
  cuda::CUresult within_quota(DeviceMemory& memory, std::uint64_t bytes, std::uint64_t least, Call call, Count count) {
    const std::uint64_t reserved = memory.await_is_limited() ? least : 0;
    return acquire(memory, Part::kReserved, std::max(bytes, reserved), Lack::kNone, [&](const Remedies&, Lack* lack) {
      return committing(memory, Part::kReserved, reserved, lack, [&] {
        const cuda::CUresult result = make(call, lack);
        if (result == cuda::CUDA_SUCCESS) count(reserved);
        return result;
      });
    });
  }
  // Managed memory. The driver gives all that the host has, so it can lack only bounds. `call(address)` asks the
  // driver.
  template <class Call>
  cuda::CUresult allocate_managed(DeviceMemory& memory, cuda::CUcontext context, std::uint64_t bytes,
                                  cuda::CUdeviceptr* address, Call call) {
    const std::uint64_t pages = ManagedMemory::counted(std::min(bytes, UINT64_MAX / 4));
    return acquire(memory, Part::kBeside, pages, Lack::kNone, [&](const Remedies&, Lack* lack) {
      return committing(memory, Part::kBeside, pages, lack, [&] {
        const cuda::CUresult result = call(address);
        if (result != cuda::CUDA_SUCCESS) return result;
        memory.pager.bounds().uncommit(memory.managed.add({*address, bytes, context}), Part::kBeside);
        return result;
      });
    });
  }
  cuda::CUresult free(DeviceMemory& memory, cuda::CUdeviceptr address);
  // Memory that is the driver's, and counted under this key, is freed by `call()`.
  template <class Call>
  cuda::CUresult free_outside(std::uint64_t key, Call call) {
    std::optional<DeviceMemory::Freeing> freeing;
    DeviceMemory* const memory = first([&](DeviceMemory& its) { return (freeing = its.begin_free(key)).has_value(); });
    const cuda::CUresult result = call();
    if (memory == nullptr) return result;
    memory->end_free(*freeing, result == cuda::CUDA_SUCCESS);
    pager_thread_.note_change(*memory);
    return result;
  }

  // Stream-ordered allocation from a pool that `memory.pools` has.
  cuda::CUresult allocate_in_order(DeviceMemory& memory, cuda::CUmemoryPool pool, const StreamName& stream,
                                   std::uint64_t bytes, cuda::CUdeviceptr* address);
  // The owner of a pool, and of an allocation from a pool; null: no seat's.
  DeviceMemory* owner_of_pool(cuda::CUmemoryPool pool);
  DeviceMemory* owner_in_order(cuda::CUdeviceptr address);
  // The program frees memory from cuMemAlloc in the order of a stream. The seat's pools have it from now on. Null: no
  // seat has it, or it is freed already.
  DeviceMemory* adopt(cuda::CUdeviceptr address);
  // The program has synchronised with some of its work.
  void synchronised() {
    each([](DeviceMemory& memory) {
      if (memory.pools.has_surplus()) memory.pools.release_surplus();
    });
  }
  // Seat `accessor` may, or may no longer, reach what is allocated from a pool of `owner`.
  cuda::CUresult set_pool_access(cuda::CUmemoryPool pool, std::uint32_t owner, std::uint32_t accessor, bool may);
  // The pool is destroyed, and no seat has rights by it. The driver may give its handle to a new pool.
  void forget_pool_access(cuda::CUmemoryPool pool);
  // Ends that concern pools: before a stream is destroyed; a context's end. has_pools: whether any seat has one.
  void stream_gone(cuda::CUstream stream);
  void context_gone_from_pools(cuda::CUcontext context);
  bool has_pools();
  // A context's end: the driver's own memory in it is gone.
  void context_gone_from_outside(cuda::CUcontext context);

  // Memory of the driver's own making has gone (DeviceMemory::add_outside), of any seat.
  void forget_outside(std::uint64_t key);

  // The program's own virtual memory (hooks_vmm.cc): its reservations and mappings.
  AddressTable& addresses() { return addresses_; }
  // The mapping of the pager's memory that holds the address, and the seat's memory that it belongs to.
  std::optional<pager::MappingInfo> find_mapping(cuda::CUdeviceptr address, DeviceMemory** owner);
  // A call has changed what the program has, or may reach. Called before the hook returns.
  void on_reach_changed(DeviceMemory& memory);
  // Brings a handle's memory to the GPU, where it stays until unpin_handle. Waits for the seat's turn, as a submission.
  cuda::CUresult pin_handle(DeviceMemory& memory, std::uint64_t handle, pager::PinReason reason,
                            std::vector<pager::DriverPiece>* pieces);

  // Makes `call()`, which gives others addresses of the program's mappings. The memory of these is on the GPU then, and
  // stays there if the call succeeds. From the first address that is in no mapping of ours, the rest is the driver's.
  template <class Call>
  cuda::CUresult with_pinned(cuda::CUdeviceptr address, std::uint64_t bytes, pager::PinReason reason, Call call) {
    std::vector<std::pair<DeviceMemory*, std::uint64_t>> pinned;
    cuda::CUresult result = cuda::CUDA_SUCCESS;
    for (cuda::CUdeviceptr at = address; at - address < bytes && result == cuda::CUDA_SUCCESS;) {
      DeviceMemory* memory = nullptr;
      const auto mapping = find_mapping(at, &memory);
      if (!mapping) break;
      std::vector<pager::DriverPiece> pieces;
      result = pin_handle(*memory, mapping->handle, reason, &pieces);
      if (result == cuda::CUDA_SUCCESS) pinned.emplace_back(memory, mapping->handle);
      at = mapping->address + mapping->bytes;
    }
    if (result == cuda::CUDA_SUCCESS) result = call();
    for (const auto& [memory, handle] : pinned) {
      if (result != cuda::CUDA_SUCCESS) memory->pager.unpin_handle(handle, reason);
    }
    return result;
  }

  // Legacy IPC of the pager's memory.
  cuda::CUresult export_handle(DeviceMemory& memory, cuda::CUdeviceptr address, cuda::CUipcMemHandle* handle);
  // CUDA_ERROR_NOT_FOUND: it is not one of ours.
  cuda::CUresult open_handle(DeviceMemory& memory, cuda::CUcontext context, const cuda::CUipcMemHandle& handle,
                             cuda::CUdeviceptr* address);
  // NOT_FOUND: the address was not opened by open_handle.
  cuda::CUresult close_handle(cuda::CUdeviceptr address);
  void close_after_fork();

  // Ends what the gate's pass or hold has begun, with what it returned.
  void leave(gate::ThreadRecord& thread, std::uint32_t slot, gate::Passed passed);

  // Around the end of a context: no job runs between these two.
  void pause(std::uint32_t slot);
  void resume(std::uint32_t slot);
  // Waits for the work of a context, even if streams capture.
  cuda::CUresult wait_for_work(DeviceMemory& memory, cuda::CUcontext context);

  // Contexts of `own` get, or lose, access to the memory of `peer`. Counted: contexts share a device.
  cuda::CUresult enable_peer(std::uint32_t own, std::uint32_t peer);
  cuda::CUresult disable_peer(std::uint32_t own, std::uint32_t peer);
  // Work of one seat reaches the memory of the other from now on.
  void connect(std::uint32_t a, std::uint32_t b);
  // Seats that are complete or not together, as bits; the seat itself among them.
  std::uint64_t group(std::uint32_t slot) const;
  // Whether the seat has unified memory. Any thread.
  bool has_unified(std::uint32_t slot) {
    const DeviceMemory* const memory = if_any(slot);
    return memory != nullptr && memory->managed.bytes() != 0;
  }
  // Something of its memory, or of a connected seat's, is away or about to leave. Any thread.
  bool is_memory_away(std::uint32_t slot) const { return gate_.is_barred(slot); }
  // Frozen work of these seats goes on behind its closed gate, and drains. Any thread.
  void let_drain(std::uint64_t group);

  // Makes bars follow from what is evicted and being evicted.
  void update_bars(std::uint32_t slot);
  // The pager thread: an eviction of this seat begins, or is over.
  void set_evicting(std::uint32_t slot, bool evicting);
  // Its context is broken. It counts as complete, so that its program gets the error.
  void set_broken(std::uint32_t slot);
  bool is_broken(std::uint32_t slot) const { return broken_[slot].load(std::memory_order_relaxed); }

  // ---- the agent's thread

  void on_connected();
  // With the agent and the seats locked: the first word about a seat on a connection.
  void announce(client::Agent::Announcement& announcement, std::uint32_t slot);
  void on_opened(std::uint32_t slot);
  void on_room(const wire::Room& room);
  void on_mover_opened(const wire::MoverOpened& opened, os::FileDescriptor connection);
  // Asks the daemon for another connection to the mover, once for each that is lost. The pager thread.
  void tend_connection(DeviceMemory& memory);
  bool has_mover(std::uint32_t slot) {
    DeviceMemory* const memory = if_any(slot);
    return memory != nullptr && memory->mover.is_connected();
  }
  void on_lost();
  void unbind(std::uint32_t slot);
  void unbind_all();

  // ---- messages, from any thread; false: the seat is not known to a daemon

  bool send_report(DeviceMemory& memory, std::uint32_t flags);

  // ---- Pools::Port

  cuda::CUresult take_segment(std::uint32_t slot, cuda::CUcontext context, std::uint64_t bytes,
                              pager::Placement placement, cuda::CUdeviceptr* address) override;
  void give_segment(std::uint32_t slot, cuda::CUdeviceptr address) override;

 private:
  using Answer = Remedies::Answer;
  using Part = pager::Bounds::Part;

  // Makes an attempt, and again after each remedy. `attempt(remedies, &lack)` sets what it lacks. `lack`: of an attempt
  // that the caller has made. `part`: what the memory counts as.
  template <class Attempt>
  cuda::CUresult acquire(DeviceMemory& memory, Part part, std::uint64_t bytes, Lack lack, Attempt attempt) {
    Remedies remedies(bytes);
    for (;;) {
      if (lack != Lack::kNone && !remedy(memory, part, remedies, lack)) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
      lack = Lack::kNone;
      const cuda::CUresult result = attempt(std::as_const(remedies), &lack);
      if (lack == Lack::kNone) return result;
    }
  }
  // Carries remedies out until the call should be made again. False: it should not.
  bool remedy(DeviceMemory& memory, Part part, Remedies& remedies, Lack lack);
  // The driver's call.
  template <class Call>
  static cuda::CUresult make(Call call, Lack* lack) {
    const cuda::CUresult result = call();
    if (result == cuda::CUDA_ERROR_OUT_OF_MEMORY) *lack = Lack::kDriver;
    return result;
  }
  // Commits `bytes` for what `call` makes. Nothing stays committed for a call that fails.
  template <class Call>
  cuda::CUresult committing(DeviceMemory& memory, Part part, std::uint64_t bytes, Lack* lack, Call call) {
    if (bytes != 0 && !memory.pager.bounds().commit(bytes, part)) {
      *lack = Lack::kCommitment;
      return cuda::CUDA_ERROR_OUT_OF_MEMORY;
    }
    const cuda::CUresult result = call();
    if (result == cuda::CUDA_SUCCESS) {
      pager_thread_.note_change(memory);
    } else {
      memory.pager.bounds().uncommit(bytes, part);
    }
    return result;
  }
  // Waits for what has been freed in the order of streams, as long as something is under way. False: nothing was, and
  // the pools have no such memory to release; or it takes too long.
  bool await_frees(DeviceMemory& memory, std::uint64_t bytes);
  cuda::CUresult enable_peer_locked(std::uint32_t own, std::uint32_t peer) GPUMUX_REQUIRES(peers_mutex_);
  cuda::CUresult disable_peer_locked(std::uint32_t own, std::uint32_t peer) GPUMUX_REQUIRES(peers_mutex_);
  // Waits for the seat's lease, at the gate as a submission does. False: this thread may not wait for it.
  bool take_turn(std::uint32_t slot);

  template <class Message>
  bool send(std::uint32_t slot, const Message& message);
  static void sleep_for(base::Duration duration);
  void born(DeviceMemory& memory);
  // Asks the daemon for more, and waits for its answer. No lock is held, and the thread is not inside the gate.
  Answer ask(DeviceMemory& memory, const DeviceMemory::Need& need);
  // The same in the seat's turn. Nothing: this thread may not wait for that.
  std::optional<Answer> ask_in_turn(DeviceMemory& memory, const DeviceMemory::Need& need);
  bool is_inside(std::uint32_t slot) const;
  void update_bars_locked(std::uint64_t mask) GPUMUX_REQUIRES(bars_mutex_);

  Owner& owner_;
  const cuda::Driver& driver_;
  gate::Gate& gate_;
  Seats& seats_;
  client::Agent& agent_;
  const MemorySettings settings_;
  PagerThread pager_thread_;
  IpcServer ipc_;
  AddressTable addresses_;
  base::Mutex opened_mutex_;
  struct Opened {
    DeviceMemory* memory = nullptr;
    cuda::CUdeviceptr base = 0;
  };
  // By the address that the program was given.
  std::multimap<cuda::CUdeviceptr, Opened> opened_ GPUMUX_GUARDED_BY(opened_mutex_);
  std::atomic<bool> unbound_{false};  // for seats that are opened from now on
  base::Mutex make_mutex_;
  std::array<std::atomic<DeviceMemory*>, base::kMaxSeatsPerTenant> seats_memory_{};

  base::Mutex peers_mutex_;
  // How many contexts, and pools, have access.
  std::map<std::pair<std::uint32_t, std::uint32_t>, int> peers_ GPUMUX_GUARDED_BY(peers_mutex_);
  // Pool and accessor: the owner.
  std::map<std::pair<cuda::CUmemoryPool, std::uint32_t>, std::uint32_t> pool_access_ GPUMUX_GUARDED_BY(peers_mutex_);

  mutable base::Mutex bars_mutex_;
  // The others of the group.
  std::array<std::uint64_t, base::kMaxSeatsPerTenant> connected_ GPUMUX_GUARDED_BY(bars_mutex_){};
  std::array<bool, base::kMaxSeatsPerTenant> evicting_ GPUMUX_GUARDED_BY(bars_mutex_){};
  std::array<std::atomic<bool>, base::kMaxSeatsPerTenant> broken_{};
};

}  // namespace gpumux::shim
