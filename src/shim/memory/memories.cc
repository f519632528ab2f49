// SPDX-License-Identifier: Apache-2.0
#include "shim/memory/memories.h"

#include <time.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "cuda/current_context.h"
#include "os/system_clock.h"

namespace gpumux::shim {
namespace {

using namespace std::chrono_literals;
using cuda::CUresult;

static_assert(base::kMaxSeatsPerTenant <= 64);
// Between two looks at work that is waited for. A guess: a short wait gets hardly longer, and a long one keeps no
// core busy.
constexpr base::Duration kShortestLook = 10us;
constexpr base::Duration kLongestLook = 200us;

}  // namespace

Memories::Memories(Owner& owner, const cuda::Driver& driver, gate::Gate& gate, Seats& seats, client::Agent& agent,
                   const MemorySettings& settings)
    : owner_(owner),
      driver_(driver),
      gate_(gate),
      seats_(seats),
      agent_(agent),
      settings_(settings),
      pager_thread_(driver, gate, seats, *this) {}

Memories::~Memories() {
  pager_thread_.stop();
  for (auto& memory : seats_memory_) delete memory.load();
}

DeviceMemory& Memories::of(std::uint32_t slot) {
  if (DeviceMemory* const memory = if_any(slot)) return *memory;
  cuda::CUdevice device = 0;
  {
    Seats::Locked seats(seats_);
    device = seats[slot].device;
  }
  const base::Locked locked(make_mutex_);
  if (DeviceMemory* const memory = if_any(slot)) return *memory;
  auto* const made = new DeviceMemory(driver_, settings_, device, slot, *this);  // for the life of the process
  if (unbound_.load(std::memory_order_seq_cst)) made->unbind();
  // seq_cst: pairs with unbind_all, which either finds this one or is seen by the next line.
  seats_memory_[slot].store(made, std::memory_order_seq_cst);
  if (unbound_.load(std::memory_order_seq_cst)) made->unbind();
  return *made;
}

DeviceMemory* Memories::owner_of(cuda::CUdeviceptr address) {
  return first([&](DeviceMemory& memory) { return memory.pager.owns(address); });
}

bool Memories::is_inside(std::uint32_t slot) const {
  const gate::ThreadRecord* const thread = gate::t_record;
  return thread != nullptr && (thread->passages[slot].load(std::memory_order_relaxed) & 1) != 0;
}

// ---- the program's threads

// Before the program gets the address. Evicted memory bars the gate until it is resident. A thread that has been given
// the address has synchronised with this thread, and finds the gate barred.
void Memories::born(DeviceMemory& memory) {
  if (memory.pager.evicted_bytes() != 0) update_bars(memory.slot);
  if (gate_.is_barred(memory.slot)) pager_thread_.wake();
  pager_thread_.note_change(memory);
}

void Memories::leave(gate::ThreadRecord& thread, std::uint32_t slot, gate::Passed passed) {
  if (passed == gate::Passed::kHolding) gate_.leave(thread, slot);
}

bool Memories::take_turn(std::uint32_t slot) {
  gate::ThreadRecord* const thread = gate::this_thread();
  if (thread == nullptr || gate_.pass(*thread, slot) != gate::Passed::kHolding) return false;
  leave(*thread, slot, gate::Passed::kHolding);
  return true;
}

void Memories::sleep_for(base::Duration duration) {
  const timespec pause{duration.count() / 1'000'000'000, duration.count() % 1'000'000'000};
  ::nanosleep(&pause, nullptr);
}

Memories::Answer Memories::ask(DeviceMemory& memory, const DeviceMemory::Need& need) {
  const base::Locked asking(memory.asking);
  DeviceMemory::Wish wish;
  {
    client::Agent::Announcement announcement(agent_);
    Seats::Locked seats(seats_);
    wish = memory.wish(need);
    // If it is not known now, the announcement says it.
    if (wish.ticket != 0) ++seats[memory.slot].awaiting_room;
    if (wish.ticket != 0 && seats[memory.slot].announced) {
      // A refusal tells people what the program had. The last report may be older than its last allocation.
      announcement.send(memory.report(gate_.is_granted(memory.slot) ? gate_.epoch(memory.slot) : 0, 0));
      announcement.send(wish.message);
    }
  }
  switch (wish.otherwise) {
    case DeviceMemory::Wish::Otherwise::kAsk: break;
    case DeviceMemory::Wish::Otherwise::kEnough: return Answer::kGiven;
    case DeviceMemory::Wish::Otherwise::kUnbounded: return Answer::kNoBounds;
    case DeviceMemory::Wish::Otherwise::kNoMore: return Answer::kRefused;
    case DeviceMemory::Wish::Otherwise::kNotKnown: memory.await_bounds(); return Answer::kGiven;
  }
  const std::uint32_t refused = memory.await(wish.ticket);
  Seats::Locked seats(seats_);
  --seats[memory.slot].awaiting_room;
  if (refused == 0) return Answer::kGiven;
  return refused == wire::kTooMuch ? Answer::kTooMuch : Answer::kRefused;
}

// Others give up memory to a lease holder only, and only a holder is told of room on the GPU. The call is tried after
// each turn. Several seats that each waited for more than a turn can bring would wait for ever.
std::optional<Memories::Answer> Memories::ask_in_turn(DeviceMemory& memory, const DeviceMemory::Need& need) {
  if (!take_turn(memory.slot)) return std::nullopt;
  const std::uint64_t epoch = gate_.epoch(memory.slot);
  const Answer answer = ask(memory, need);
  const bool holds = gate_.is_granted(memory.slot) && gate_.epoch(memory.slot) == epoch;
  return holds || gate_.is_ungated(memory.slot) ? answer : Answer::kTurnOver;
}

bool Memories::remedy(DeviceMemory& memory, Part part, Remedies& remedies, Lack lack) {
  using Remedy = Remedies::Remedy;
  // A thread that is inside the gate must not wait there.
  if (is_inside(memory.slot)) return false;
  const std::uint64_t bytes = remedies.bytes();
  const bool is_managed = part == Part::kBeside;
  for (Remedy remedy = remedies.failed(lack);;) {
    switch (remedy) {
      case Remedy::kTry:
      case Remedy::kDoWithoutRoom: return true;
      case Remedy::kGiveUp: return false;
      case Remedy::kReleasePools: remedy = remedies.ended(memory.pools.release(bytes) != 0); break;
      case Remedy::kTrim: remedy = remedies.ended(memory.trim(bytes) != 0); break;
      case Remedy::kAskForRoom:
        remedy = remedies.answered(
            ask(memory, {.room = remedies.room(), .commitment = bytes, .again = remedies.is_refused()}));
        break;
      case Remedy::kAskInTurn: {
        sleep_for(remedies.pause());
        const auto answer =
            ask_in_turn(memory, {.room = remedies.room(), .commitment = bytes, .again = remedies.is_refused()});
        if (!answer) return false;
        remedy = remedies.answered(*answer);
        break;
      }
      case Remedy::kAskForCommitment:
        // Memory that the driver's pools have given back by themselves counts no longer.
        memory.count_pools();
        remedy = remedies.answered(
            ask(memory, {.commitment = bytes, .is_managed = is_managed, .again = remedies.is_refused()}));
        break;
      case Remedy::kAwaitFrees: remedy = remedies.ended(await_frees(memory, bytes)); break;
      case Remedy::kAwaitDriver:
        sleep_for(remedies.pause());
        remedy = remedies.ended(true);
        break;
    }
  }
}

// cuMemFree waits for work that may still use the memory: all that has been submitted in its context. The streams are
// asked. Synchronising the context would break a capture that another thread begins.
CUresult Memories::wait_for_work(DeviceMemory& memory, cuda::CUcontext context) {
  gate::StreamSet& streams = seats_.streams(memory.slot);
  const os::SystemClock clock;
  const base::TimePoint start = clock.now();
  for (;;) {
    const gate::WorkState state = streams.look(context);
    if (state == gate::WorkState::kDone) return cuda::CUDA_SUCCESS;
    if (state == gate::WorkState::kPoisoned) break;
    // So the wait is an eighth too long at most, and no core is busy with it.
    sleep_for(std::clamp((clock.now() - start) / 8, kShortestLook, kLongestLook));
  }
  // The context is lost, and says why.
  const cuda::CurrentContext current(driver_, context);
  return current.result() == cuda::CUDA_SUCCESS ? driver_.cuCtxSynchronize() : current.result();
}

CUresult Memories::free(DeviceMemory& memory, cuda::CUdeviceptr address) {
  struct Waiting {
    Memories* memories;
    DeviceMemory* memory;
  } waiting{this, &memory};
  if (memory.pools.covers(address)) {
    const auto freeing = memory.pools.begin_free(address);
    if (!freeing) return cuda::CUDA_ERROR_INVALID_VALUE;
    const CUresult result = wait_for_work(memory, freeing->context);
    memory.pools.end_free(*freeing, result == cuda::CUDA_SUCCESS);
    synchronised();
    return result;
  }
  const auto info = memory.pager.find(address);
  const CUresult result = memory.pager.free(
      address,
      [](void* argument, cuda::CUcontext context) {
        const auto& its = *static_cast<Waiting*>(argument);
        return its.memories->wait_for_work(*its.memory, context);
      },
      &waiting);
  if (result == cuda::CUDA_SUCCESS && info) ipc_.forget(info->buffer_id << 8 | memory.slot);
  // Its evicted part no longer bars the gate; a free that failed has made it count again.
  if (gate_.is_barred(memory.slot) || result != cuda::CUDA_SUCCESS) update_bars(memory.slot);
  pager_thread_.note_change(memory);
  return result;
}

// ---- stream-ordered allocation

CUresult Memories::allocate_in_order(DeviceMemory& memory, cuda::CUmemoryPool pool, const StreamName& stream,
                                     std::uint64_t bytes, cuda::CUdeviceptr* address) {
  // Nothing that the GPU has changes by this: the memory is where the seat's memory is, and the gate says when that may
  // be used.
  if (memory.pools.reuse(pool, stream, bytes, address)) return cuda::CUDA_SUCCESS;
  const CUresult result = allocate(memory, Pools::segment_bytes(bytes), [&](pager::Placement placement) {
    return memory.pools.allocate(pool, stream, bytes, placement, address);
  });
  return result == Pools::kBeyondLimit ? cuda::CUDA_ERROR_OUT_OF_MEMORY : result;
}

CUresult Memories::take_segment(std::uint32_t slot, cuda::CUcontext context, std::uint64_t bytes,
                                pager::Placement placement, cuda::CUdeviceptr* address) {
  return of(slot).pager.allocate(context, bytes, placement, address);
}

void Memories::give_segment(std::uint32_t slot, cuda::CUdeviceptr address) {
  DeviceMemory& memory = of(slot);
  memory.pager.free(
      address, [](void*, cuda::CUcontext) { return cuda::CUDA_SUCCESS; }, nullptr);
  if (gate_.is_barred(slot)) update_bars(slot);
  pager_thread_.note_change(memory);
}

bool Memories::await_frees(DeviceMemory& memory, std::uint64_t bytes) {
  // A guess: longer than any kernel that an allocation is worth waiting for. The wait must end even if only this thread
  // could end it, by work that it has not yet submitted.
  constexpr base::Duration kLongest = 30s;
  const os::SystemClock clock;
  const base::TimePoint start = clock.now();
  // Memory that other threads free from here on is theirs to wait for.
  const std::uint64_t moment = memory.pools.moment();
  // While the daemon thought, the streams may have come to all frees.
  if (!memory.pools.has_pending(moment)) return memory.pools.release(bytes) != 0;
  do {
    const base::Duration waited = clock.now() - start;
    if (waited > kLongest) return false;
    sleep_for(waited < 1ms ? kShortestLook : kLongestLook);
  } while (memory.pools.has_pending(moment));
  return true;
}

DeviceMemory* Memories::owner_of_pool(cuda::CUmemoryPool pool) {
  return first([&](DeviceMemory& memory) { return memory.is_paged() && memory.pools.has(pool); });
}

DeviceMemory* Memories::owner_in_order(cuda::CUdeviceptr address) {
  return first([&](DeviceMemory& memory) { return memory.pools.owns(address); });
}

DeviceMemory* Memories::adopt(cuda::CUdeviceptr address) {
  DeviceMemory* const memory = owner_of(address);
  const auto info = memory != nullptr ? memory->pager.find(address) : std::nullopt;
  if (!info || info->base != address || info->handle != 0) return nullptr;
  if (!memory->pools.adopt(address, info->bytes, info->context)) return nullptr;
  ipc_.forget(info->buffer_id << 8 | memory->slot);
  return memory;
}

void Memories::context_gone_from_outside(cuda::CUcontext context) {
  each([&](DeviceMemory& memory) { memory.context_gone(context); });
}

void Memories::stream_gone(cuda::CUstream stream) {
  each([&](DeviceMemory& memory) { memory.pools.stream_gone(stream); });
}

void Memories::context_gone_from_pools(cuda::CUcontext context) {
  each([&](DeviceMemory& memory) { memory.pools.context_going(context); });
}

bool Memories::has_pools() {
  return first([](DeviceMemory& memory) { return memory.pools.reserved_bytes() != 0; }) != nullptr;
}

void Memories::forget_outside(std::uint64_t key) {
  if (DeviceMemory* const memory = first([&](DeviceMemory& its) { return its.remove_outside(key); }))
    pager_thread_.note_change(*memory);
}

std::optional<pager::MappingInfo> Memories::find_mapping(cuda::CUdeviceptr address, DeviceMemory** owner) {
  std::optional<pager::MappingInfo> mapping;
  *owner = first([&](DeviceMemory& memory) { return (mapping = memory.pager.find_mapping(address)).has_value(); });
  return mapping;
}

void Memories::on_reach_changed(DeviceMemory& memory) {
  if (gate_.is_barred(memory.slot)) update_bars(memory.slot);
  born(memory);
}

CUresult Memories::pin_handle(DeviceMemory& memory, std::uint64_t handle, pager::PinReason reason,
                              std::vector<pager::DriverPiece>* pieces) {
  gate::ThreadRecord* const thread = gate::this_thread();
  if (thread == nullptr) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
  // If no device may reach it yet, it need not be there.
  memory.pager.want_handle(handle, true);
  on_reach_changed(memory);
  const gate::Passed passed = gate_.hold(*thread, memory.slot);
  const CUresult result = passed == gate::Passed::kStranded ? cuda::CUDA_ERROR_OUT_OF_MEMORY
                                                            : memory.pager.pin_handle(handle, reason, pieces);
  leave(*thread, memory.slot, passed);
  memory.pager.want_handle(handle, false);
  on_reach_changed(memory);
  return result == cuda::CUDA_ERROR_NOT_READY ? cuda::CUDA_ERROR_OUT_OF_MEMORY : result;
}

CUresult Memories::export_handle(DeviceMemory& memory, cuda::CUdeviceptr address, cuda::CUipcMemHandle* handle) {
  gate::ThreadRecord* const thread = gate::this_thread();
  const auto info = memory.pager.find(address);
  if (thread == nullptr || handle == nullptr || !info) return cuda::CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t offset = info->base - info->mapping_base;
  // Numbers of allocations are the pager's own, so of one GPU.
  const std::uint64_t allocation = info->buffer_id << 8 | memory.slot;
  IpcHandle made;
  if (!ipc_.find(allocation, offset, info->bytes, &made)) {
    // Its memory must be there, and stay while it is pinned.
    const gate::Passed passed = gate_.hold(*thread, memory.slot);
    if (passed == gate::Passed::kStranded) return cuda::CUDA_ERROR_OUT_OF_MEMORY;
    std::vector<pager::ExportedPiece> pieces;
    std::uint64_t in_block = 0;
    const CUresult result = memory.pager.export_pieces(address, &pieces, &in_block);
    leave(*thread, memory.slot, passed);
    if (result != cuda::CUDA_SUCCESS) return result;
    if (!ipc_.serve(allocation, std::move(pieces), offset, info->bytes, &made)) {
      memory.pager.unpin(address, pager::PinReason::kExported);
      return cuda::CUDA_ERROR_OPERATING_SYSTEM;
    }
    pager_thread_.note_change(memory);
  }
  *handle = std::bit_cast<cuda::CUipcMemHandle>(made);
  return cuda::CUDA_SUCCESS;
}

CUresult Memories::open_handle(DeviceMemory& memory, cuda::CUcontext context, const cuda::CUipcMemHandle& handle,
                               cuda::CUdeviceptr* address) {
  const auto asked = std::bit_cast<IpcHandle>(handle);
  if (asked.magic != IpcHandle::kMagic) return cuda::CUDA_ERROR_NOT_FOUND;
  if (address == nullptr) return cuda::CUDA_ERROR_INVALID_VALUE;
  const auto received = IpcServer::ask(asked);
  if (!received) return cuda::CUDA_ERROR_MAP_FAILED;
  std::vector<pager::ExportedPiece> pieces;
  std::uint64_t bytes = 0;
  for (const IpcPiece& piece : *received) {
    pieces.push_back({piece.fd.get(), piece.bytes});
    bytes += piece.bytes;
  }
  // It was another process that wrote the handle.
  if (asked.offset >= bytes) return cuda::CUDA_ERROR_INVALID_VALUE;
  cuda::CUdeviceptr base = 0;
  const CUresult result = with_room(memory, 0, [&] { return memory.pager.import_pieces(context, pieces, &base); });
  if (result != cuda::CUDA_SUCCESS) return result;
  *address = base + asked.offset;
  memory.note_import();
  const base::Locked locked(opened_mutex_);
  opened_.insert({*address, {&memory, base}});
  return cuda::CUDA_SUCCESS;
}

CUresult Memories::close_handle(cuda::CUdeviceptr address) {
  Opened opened;
  {
    const base::Locked locked(opened_mutex_);
    const auto found = opened_.find(address);
    if (found == opened_.end()) return cuda::CUDA_ERROR_NOT_FOUND;
    opened = found->second;
    opened_.erase(found);
  }
  return free(*opened.memory, opened.base);
}

void Memories::pause(std::uint32_t slot) { pager_thread_.pause(slot); }

void Memories::resume(std::uint32_t slot) {
  pager_thread_.resume(slot);
  update_bars(slot);
  if (DeviceMemory* const memory = if_any(slot)) memory->changed.store(true, std::memory_order_release);
  pager_thread_.wake();
}

// ---- complete or not

CUresult Memories::enable_peer(std::uint32_t own, std::uint32_t peer) {
  const base::Locked locked(peers_mutex_);
  return enable_peer_locked(own, peer);
}

CUresult Memories::enable_peer_locked(std::uint32_t own, std::uint32_t peer) {
  // Before there are rights to use.
  connect(own, peer);
  if (peers_[{own, peer}] == 0) {
    if (const CUresult result = of(peer).pager.enable_peer(of(own).device); result != cuda::CUDA_SUCCESS) return result;
  }
  ++peers_[{own, peer}];
  return cuda::CUDA_SUCCESS;
}

CUresult Memories::disable_peer(std::uint32_t own, std::uint32_t peer) {
  const base::Locked locked(peers_mutex_);
  return disable_peer_locked(own, peer);
}

CUresult Memories::disable_peer_locked(std::uint32_t own, std::uint32_t peer) {
  int& count = peers_[{own, peer}];
  if (count == 0 || --count != 0) return cuda::CUDA_SUCCESS;
  return of(peer).pager.disable_peer(of(own).device);
}

// Rights are the whole seat's, because the pager knows nothing of pools. A program that gives rights to a pool's memory
// has no use for keeping them from the rest.
CUresult Memories::set_pool_access(cuda::CUmemoryPool pool, std::uint32_t owner, std::uint32_t accessor, bool may) {
  if (owner == accessor) return cuda::CUDA_SUCCESS;
  const base::Locked locked(peers_mutex_);
  const std::pair key{pool, accessor};
  if (pool_access_.contains(key) == may) return cuda::CUDA_SUCCESS;
  if (!may) {
    pool_access_.erase(key);
    return disable_peer_locked(accessor, owner);
  }
  const CUresult result = enable_peer_locked(accessor, owner);
  if (result == cuda::CUDA_SUCCESS) pool_access_.emplace(key, owner);
  return result;
}

void Memories::forget_pool_access(cuda::CUmemoryPool pool) {
  const base::Locked locked(peers_mutex_);
  for (auto given = pool_access_.lower_bound({pool, 0}); given != pool_access_.end() && given->first.first == pool;) {
    static_cast<void>(disable_peer_locked(given->first.second, given->second));
    given = pool_access_.erase(given);
  }
}

void Memories::connect(std::uint32_t a, std::uint32_t b) {
  if (a == b) return;
  const base::Locked locked(bars_mutex_);
  if ((connected_[a] & slot_bit(b)) != 0) return;
  const std::uint64_t all = connected_[a] | connected_[b] | slot_bit(a) | slot_bit(b);
  for (std::uint32_t slot = 0; slot < seats_.count(); ++slot) {
    if ((all & slot_bit(slot)) != 0) connected_[slot] = all;
  }
  update_bars_locked(all);
}

std::uint64_t Memories::group(std::uint32_t slot) const {
  const base::Locked locked(bars_mutex_);
  return connected_[slot] | slot_bit(slot);
}

void Memories::update_bars(std::uint32_t slot) {
  const base::Locked locked(bars_mutex_);
  update_bars_locked(connected_[slot] | slot_bit(slot));
}

void Memories::set_evicting(std::uint32_t slot, bool evicting) {
  const base::Locked locked(bars_mutex_);
  evicting_[slot] = evicting;
  update_bars_locked(connected_[slot] | slot_bit(slot));
}

void Memories::set_broken(std::uint32_t slot) {
  const base::Locked locked(bars_mutex_);
  broken_[slot].store(true, std::memory_order_relaxed);
  update_bars_locked(connected_[slot] | slot_bit(slot));
}

// The lock makes reading and storing one step. A thread that has evicted something comes after a pager thread that has
// not seen it, and bars again.
void Memories::update_bars_locked(std::uint64_t mask) {
  bool complete = true;
  for (std::uint32_t slot = 0; slot < seats_.count(); ++slot) {
    if ((mask & slot_bit(slot)) == 0) continue;
    const DeviceMemory* const memory = if_any(slot);
    const bool broken = broken_[slot].load(std::memory_order_relaxed);
    if (evicting_[slot] || (memory != nullptr && memory->pager.evicted_bytes() != 0 && !broken)) complete = false;
  }
  bool barred = false;
  for (std::uint32_t slot = 0; slot < seats_.count(); ++slot) {
    if ((mask & slot_bit(slot)) == 0) continue;
    if (complete) {
      gate_.unbar(slot);
      owner_.memory_came(slot);
    } else if (gate_.bar(slot)) {
      barred = true;
    }
  }
  // Under the lock: a thread that finds a seat barred already can rely on the memos being invalid.
  if (barred) gate::forget_memos();
}

void Memories::close_after_fork() {
  ipc_.close_after_fork();
  each([](DeviceMemory& memory) { memory.mover.close_after_fork(); });
}

}  // namespace gpumux::shim
