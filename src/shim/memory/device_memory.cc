// SPDX-License-Identifier: Apache-2.0
#include "shim/memory/device_memory.h"

#include <algorithm>
#include <utility>

#include "os/system_clock.h"

namespace gpumux::shim {
namespace {

using namespace std::chrono_literals;
using Part = pager::Bounds::Part;

// A daemon says how much room there is right behind SeatOpened. After this long without a word, it is a daemon that
// leaves memory to the driver. The time is a guess.
constexpr base::Duration kFirstRoom = 3s;
// A wait is made of steps of this length, so that the time that the process was frozen does not count. A guess.
constexpr base::Duration kLook = 100ms;

// Tickets and sequences grow, and may come round.
bool is_newer(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) > 0; }

pager::Options options_of(const MemorySettings& settings, cuda::CUdevice device, client::MoverConnection& mover) {
  pager::Options options;
  options.device = device;
  options.mover = &mover;
  options.chunk_bytes = settings.chunk_bytes;
  return options;
}

}  // namespace

DeviceMemory::DeviceMemory(const cuda::Driver& driver, const MemorySettings& settings, cuda::CUdevice the_device,
                           std::uint32_t the_slot, Pools::Port& pools_port)
    : slot(the_slot),
      device(the_device),
      mover(settings.verify),
      pager(driver, options_of(settings, the_device, mover)),
      pools(driver, pools_port, the_device, the_slot),
      managed(driver, the_device),
      driver_(driver),
      settings_(settings) {
  pager.bounds().set(0, 0);
}

bool DeviceMemory::is_paged() {
  int known = is_paged_.load(std::memory_order_relaxed);
  if (known < 0) {
    int supported = 0;
    const bool can =
        settings_.paging && !settings_.managed && driver_.cuMemAddressReserve != nullptr &&
        driver_.cuMemCreate != nullptr && driver_.cuThreadExchangeStreamCaptureMode != nullptr &&
        driver_.cuDeviceGetAttribute != nullptr &&
        driver_.cuDeviceGetAttribute(&supported, cuda::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                     device) == cuda::CUDA_SUCCESS;
    known = can && supported != 0 ? 1 : 0;
    is_paged_.store(known, std::memory_order_relaxed);
  }
  return known == 1;
}

// ---- bounds

// Memory outside the pager's reach takes part of the room.
void DeviceMemory::apply_locked() {
  const std::uint64_t outside = outside_total_.load(std::memory_order_relaxed);
  const auto within = [](std::uint64_t bound, std::uint64_t part) { return bound - std::min(bound, part); };
  switch (rule_.load(std::memory_order_relaxed)) {
    case Rule::kAsking: pager.bounds().set(0, 0); break;
    case Rule::kBounded:
      pager.bounds().set(within(room_.room, outside + hidden_), within(room_.commitment, outside));
      break;
    case Rule::kUnbounded: pager.bounds().set(pager::Bounds::kNone, pager::Bounds::kNone); break;
    case Rule::kOwnQuota: pager.bounds().set(pager::Bounds::kNone, within(own_quota(), outside)); break;
  }
}

bool DeviceMemory::set_room(const wire::Room& room) {
  const base::Locked locked(mutex_);
  if (room_.sequence != 0 && !is_newer(room.sequence, room_.sequence)) return false;
  room_ = room;
  if (room.total != 0) total_.store(room.total, std::memory_order_relaxed);
  is_limited_.store(room.is_limited != 0, std::memory_order_relaxed);
  rule_.store(Rule::kBounded, std::memory_order_release);  // last: a thread that sees it sees these
  if (room.ticket != 0 && is_newer(room.ticket, answered_)) {
    answered_ = room.ticket;
    if (room.refused != 0) {
      refused_ = room.ticket;
      refused_for_ = room.refused;
    }
  }
  apply_locked();
  mutex_.wake_all();
  return true;
}

void DeviceMemory::unbind() {
  const base::Locked locked(mutex_);
  unbind_locked();
  looked_at_.reset();
}

void DeviceMemory::unbind_locked() {
  // Without a daemon's word of it the program's own quota is the one that counts.
  if (settings_.limit != 0) is_limited_.store(true, std::memory_order_relaxed);
  if (total_.load(std::memory_order_relaxed) == 0) total_.store(settings_.limit, std::memory_order_relaxed);
  const bool has_quota = is_limited_.load(std::memory_order_relaxed);
  rule_.store(has_quota ? Rule::kOwnQuota : Rule::kUnbounded, std::memory_order_release);
  apply_locked();
  mutex_.wake_all();
}

// Memory that it was given before it was told of a quota stays its own.
std::uint64_t DeviceMemory::own_quota() const {
  return room_.is_limited != 0 ? std::max(room_.commitment, room_.total) : room_.commitment;
}

void DeviceMemory::on_connected() {
  const base::Locked locked(mutex_);
  // Sequences are the connection's.
  room_.sequence = 0;
  reported_sequence_ = 0;
  looked_at_.reset();
}

void DeviceMemory::on_opened(base::TimePoint now) {
  const base::Locked locked(mutex_);
  asked_for_ = base::Duration::zero();
  looked_at_ = now;
}

std::optional<base::Duration> DeviceMemory::expire_asking(base::TimePoint now) {
  const base::Locked locked(mutex_);
  if (!looked_at_ || rule_.load(std::memory_order_relaxed) != Rule::kAsking) return std::nullopt;
  // In small steps, so that the time that its process was frozen does not count: the answer waits to be read.
  asked_for_ += std::min(now - std::exchange(*looked_at_, now), kLook);
  if (asked_for_ < kFirstRoom) return kLook;
  unbind_locked();
  return 0ns;
}

void DeviceMemory::await_bounds(base::Duration at_most) {
  const base::Locked locked(mutex_);
  // As in expire_asking. (Another thread may wake it much sooner.)
  base::Duration waited{};
  while (rule_.load(std::memory_order_relaxed) == Rule::kAsking && waited < at_most) {
    const base::TimePoint before = os::now();
    mutex_.wait_for(kLook);
    waited += std::min(os::now() - before, 2 * kLook);
  }
}

std::uint64_t DeviceMemory::await_total() {
  if (rule_.load(std::memory_order_acquire) == Rule::kAsking) await_bounds(kFirstRoom);
  return told_total();
}

std::uint64_t DeviceMemory::told_free() {
  const base::Locked locked(mutex_);
  const std::uint64_t total = told_total();
  const std::uint64_t most = room_.most == 0 ? total : std::min(room_.most, total);
  const std::uint64_t allocated = allocated_bytes();
  if (rule_.load(std::memory_order_relaxed) == Rule::kOwnQuota) return own_quota() - std::min(own_quota(), allocated);
  const bool has_freed = allocated < told_allocated_;
  told_most_ = told_most_ == 0 || has_freed ? most : std::min(told_most_, most);
  told_allocated_ = allocated;
  return told_most_ - std::min(told_most_, allocated);
}

void DeviceMemory::set_sync_memops(cuda::CUdeviceptr base, std::uint64_t id, bool value) {
  const base::Locked locked(mutex_);
  sync_memops_[base] = {id, value};
}

std::optional<bool> DeviceMemory::sync_memops(cuda::CUdeviceptr base, std::uint64_t id) const {
  const base::Locked locked(mutex_);
  const auto kept = sync_memops_.find(base);
  if (kept == sync_memops_.end() || kept->second.first != id) return std::nullopt;
  return kept->second.second;
}

bool DeviceMemory::await_is_limited() {
  if (rule_.load(std::memory_order_acquire) == Rule::kAsking) await_bounds();
  return is_limited_.load(std::memory_order_relaxed);
}

DeviceMemory::Wish DeviceMemory::wish(const Need& need) {
  using Otherwise = Wish::Otherwise;
  const base::Locked locked(mutex_);
  switch (rule_.load(std::memory_order_relaxed)) {
    case Rule::kAsking: return {.otherwise = Otherwise::kNotKnown};
    case Rule::kUnbounded: return {.otherwise = Otherwise::kUnbounded};
    case Rule::kBounded:
    case Rule::kOwnQuota: break;
  }
  // A sum with it must not come round.
  const auto sane = [](std::uint64_t bytes) { return std::min(bytes, UINT64_MAX / 4); };
  const std::uint64_t outside = outside_total_.load(std::memory_order_relaxed);
  const std::uint64_t beside = pager.bounds().committed(Part::kBeside);
  // Commitment that other threads keep back is not allocated yet, and not this thread's to have.
  const std::uint64_t kept_back = pager.bounds().committed(Part::kReserved);
  const std::uint64_t all = pager.bounds().committed() + beside + outside + kept_back;
  Wish made;
  made.message = {.slot = slot,
                  .ticket = 0,
                  .room = need.room == 0 ? 0 : pager.bounds().used() + outside + hidden_ + sane(need.room),
                  .commitment = all + sane(need.commitment),
                  .managed = beside + (need.is_managed ? sane(need.commitment) : 0),
                  .again = need.again ? 1u : 0u};
  if (rule_.load(std::memory_order_relaxed) == Rule::kOwnQuota)
    return {.otherwise = own_quota() >= made.message.commitment ? Otherwise::kUnbounded : Otherwise::kNoMore};
  const bool is_within = room_.commitment >= made.message.commitment;
  if (is_within && room_.room >= made.message.room) return {.otherwise = Otherwise::kEnough};
  do {
    made.ticket = ++last_ticket_;
  } while (made.ticket == 0);
  made.message.ticket = made.ticket;
  newest_wish_ = made.message;
  return made;
}

std::uint32_t DeviceMemory::await(std::uint32_t ticket) {
  const base::Locked locked(mutex_);
  // The daemon answers sooner or later. While there is none the thread waits for the next one, as it would at the gate.
  while (is_newer(ticket, answered_)) {
    if (rule_.load(std::memory_order_relaxed) != Rule::kBounded) return 0;  // no bounds any more: try
    mutex_.wait_for(kLook);
  }
  return refused_ == ticket ? refused_for_ : 0;
}

wire::RoomWanted DeviceMemory::open_wish() {
  const base::Locked locked(mutex_);
  return newest_wish_.ticket != 0 && is_newer(newest_wish_.ticket, answered_) ? newest_wish_ : wire::RoomWanted{};
}

// ---- what the pager does not have

// (Counted first: another thread that finds too little left in between asks, and waits for the lock with that.)
void DeviceMemory::add_outside(wire::Unpageable reason, std::uint64_t key, std::uint64_t bytes, cuda::CUcontext context,
                               std::uint64_t reserved) {
  const base::Locked locked(mutex_);
  // The allocation that had this key before is gone: the thread that has freed it has not yet said so.
  if (const auto gone = outside_.find(key); gone != outside_.end()) remove_locked(gone);
  outside_[key] = {reason, bytes, context, next_number_++};
  outside_by_reason_[static_cast<std::size_t>(reason)] += bytes;
  outside_total_.fetch_add(bytes, std::memory_order_relaxed);
  apply_locked();
  pager.bounds().uncommit(reserved, Part::kReserved);
}

void DeviceMemory::remove_locked(std::map<std::uint64_t, Outside>::iterator outside) {
  outside_by_reason_[static_cast<std::size_t>(outside->second.reason)] -= outside->second.bytes;
  outside_total_.fetch_sub(outside->second.bytes, std::memory_order_relaxed);
  outside_.erase(outside);
  apply_locked();
}

bool DeviceMemory::remove_outside(std::uint64_t key) {
  const base::Locked locked(mutex_);
  const auto found = outside_.find(key);
  if (found == outside_.end()) return false;
  remove_locked(found);
  return true;
}

std::optional<DeviceMemory::Freeing> DeviceMemory::begin_free(std::uint64_t key) {
  if (const auto going = managed.begin_free(key)) return Freeing{key, 0, going};
  const base::Locked locked(mutex_);
  const auto found = outside_.find(key);
  if (found == outside_.end()) return std::nullopt;
  return Freeing{key, found->second.number, std::nullopt};
}

void DeviceMemory::end_free(const Freeing& freeing, bool freed) {
  if (freeing.managed) {
    if (managed.end_free(*freeing.managed, freed)) pager.bounds().uncommit(freeing.managed->counted, Part::kBeside);
    return;
  }
  const base::Locked locked(mutex_);
  const auto found = outside_.find(freeing.key);
  if (freed && found != outside_.end() && found->second.number == freeing.number) remove_locked(found);
}

void DeviceMemory::context_gone(cuda::CUcontext context) {
  pager.bounds().uncommit(managed.context_gone(context), Part::kBeside);
  const base::Locked locked(mutex_);
  for (auto outside = outside_.begin(); outside != outside_.end();) {
    const auto its = outside++;
    if (its->second.context == context) remove_locked(its);
  }
}

std::uint64_t DeviceMemory::claim_hidden(std::uint64_t bytes) {
  const base::Locked locked(mutex_);
  if (rule_.load(std::memory_order_relaxed) != Rule::kBounded) return 0;
  // Taken first, so that no other thread gets it: a seat never counts for more than its room.
  const std::uint64_t claimed = std::min(bytes, pager.bounds().left());
  if (claimed == 0 || !pager.bounds().take(claimed)) return 0;
  hidden_ += claimed;
  apply_locked();
  pager.bounds().give(claimed);
  return claimed;
}

void DeviceMemory::release_hidden(std::uint64_t bytes) {
  const base::Locked locked(mutex_);
  hidden_ -= bytes;
  apply_locked();
}

void DeviceMemory::set_outside(wire::Unpageable reason, std::uint64_t bytes) {
  const base::Locked locked(mutex_);
  std::uint64_t& known = outside_by_reason_[static_cast<std::size_t>(reason)];
  if (known == bytes) return;
  outside_total_.fetch_add(bytes - known, std::memory_order_relaxed);
  known = bytes;
  apply_locked();
}

void DeviceMemory::count_pool(cuda::CUmemoryPool pool) {
  {
    const base::Locked locked(pools_mutex_);
    if (pool != nullptr && std::find(pools_.begin(), pools_.end(), pool) == pools_.end()) pools_.push_back(pool);
  }
  count_pools();
}

void DeviceMemory::forget_pool(cuda::CUmemoryPool pool) {
  {
    const base::Locked locked(pools_mutex_);
    const auto found = std::find(pools_.begin(), pools_.end(), pool);
    if (found == pools_.end()) return;
    pools_.erase(found);
  }
  count_pools();
}

void DeviceMemory::count_pools() {
  const base::Locked locked(pools_mutex_);
  std::uint64_t bytes = 0;
  for (const cuda::CUmemoryPool pool : pools_) {
    std::uint64_t reserved = 0;
    if (driver_.cuMemPoolGetAttribute != nullptr &&
        driver_.cuMemPoolGetAttribute(pool, cuda::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) ==
            cuda::CUDA_SUCCESS)
      bytes += reserved;
  }
  set_outside(wire::Unpageable::kPool, bytes);
  std::uint64_t of_graphs = 0;
  if (has_graph_memory_.load(std::memory_order_relaxed) && driver_.cuDeviceGetGraphMemAttribute != nullptr &&
      driver_.cuDeviceGetGraphMemAttribute(device, cuda::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &of_graphs) ==
          cuda::CUDA_SUCCESS)
    set_outside(wire::Unpageable::kGraph, of_graphs);
}

bool HiddenClaim::refused(DeviceMemory& memory, base::Duration waited) {
  if (waited < due_) return false;
  claimed_ += memory.claim_hidden(next_);
  next_ *= 2;
  due_ = waited + kEvery;
  return true;
}

bool HiddenClaim::release(DeviceMemory& memory) {
  next_ = kFirst;
  due_ = kEvery;
  if (claimed_ == 0) return false;
  memory.release_hidden(std::exchange(claimed_, 0));
  return true;
}

// ---- reports

bool DeviceMemory::has_unreported_room() const {
  const base::Locked locked(mutex_);
  return room_.sequence != reported_sequence_;
}

wire::Memory DeviceMemory::report(std::uint64_t epoch, std::uint32_t flags) {
  wire::Memory memory{.slot = slot, .epoch = epoch, .flags = flags};
  {
    // The sequence promises that these bounds were in force before the rest of the report is counted.
    const base::Locked locked(mutex_);
    memory.room_sequence = room_.sequence;
    reported_sequence_ = room_.sequence;
    for (std::size_t i = 0; i < wire::kUnpageableReasons; ++i) memory.unpageable[i] = outside_by_reason_[i];
    memory.unpageable[static_cast<std::size_t>(wire::Unpageable::kOther)] += hidden_;
    memory.hidden = hidden_;
  }
  memory.unpageable[static_cast<std::size_t>(wire::Unpageable::kManaged)] = pager.bounds().committed(Part::kBeside);
  memory.managed_away = managed.away_bytes();
  const pager::Counters counters = pager.counters();
  const std::uint64_t on_gpu = pager.bounds().used();
  const auto pinned = [&](pager::PinReason reason) { return counters.unpageable[static_cast<std::size_t>(reason)]; };
  const auto add = [&](wire::Unpageable reason, std::uint64_t bytes) {
    memory.unpageable[static_cast<std::size_t>(reason)] += bytes;
  };
  add(wire::Unpageable::kExported, pinned(pager::PinReason::kExported));
  add(wire::Unpageable::kRegistered, pinned(pager::PinReason::kRegistered) + pinned(pager::PinReason::kRdma));
  // Counted once: pinned memory is not pageable, and the process that exports imported memory reports it.
  std::uint64_t stays = 0;
  for (std::size_t i = 0; i < counters.unpageable.size(); ++i) {
    if (static_cast<pager::PinReason>(i) != pager::PinReason::kImported) stays += counters.unpageable[i];
  }
  memory.allocated = allocated_bytes();
  memory.resident = on_gpu - std::min(on_gpu, stays);
  memory.evicted = pager.evicted_bytes();
  memory.host_used = counters.host_used;
  memory.host_clean = counters.clean_copies;
  memory.moved_out = counters.moved.out;
  memory.moved_in = counters.moved.in;
  memory.saved_clean = counters.moved.saved_clean;
  memory.saved_constant = counters.moved.saved_constant;
  memory.handed_over = counters.moved.handed_over;
  return memory;
}

}  // namespace gpumux::shim
