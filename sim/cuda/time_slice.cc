// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/time_slice.h"

#include "os/futex.h"
#include "sim/cuda/mps.h"

namespace gpumux::sim {
namespace {

// An owner word: the party in 32 bits, the number of the grant in 16, of the joins in 16. Without the joins it is a
// tenure. Party 0 is none.
constexpr std::uint64_t kPartyMask = 0xffff'ffff;
constexpr std::uint64_t kTenureMask = 0xffff'ffff'ffff;
constexpr std::uint64_t kOneJoin = kTenureMask + 1;
std::uint64_t party(std::uint64_t word) { return word & kPartyMask; }
std::uint64_t tenure(std::uint64_t word) { return word & kTenureMask; }
std::uint64_t grant(std::uint64_t word) { return word >> 32 & 0xffff; }
std::uint64_t next_tenure(std::uint64_t of_party, std::uint64_t before) {
  return of_party | ((grant(before) + 1) & 0xffff) << 32;
}
// Grants are counted on, so that a tenure is not taken for one before.
std::uint64_t nobody_after(std::uint64_t before) { return tenure(before) & ~kPartyMask; }

// Arbiter::slice: the grant in the top 16 bits, microseconds in the rest.
constexpr std::uint64_t kSliceTimeMask = (std::uint64_t{1} << 48) - 1;
std::uint64_t slice_word(std::uint64_t of_grant, base::TimePoint time) {
  return of_grant << 48 | (static_cast<std::uint64_t>(time.time_since_epoch().count()) / 1000 & kSliceTimeMask);
}
base::TimePoint slice_time(std::uint64_t word) {
  return base::TimePoint(base::Duration(static_cast<std::int64_t>((word & kSliceTimeMask) * 1000)));
}

// A stopped process keeps the GPU this much longer than its slice before it is passed over: longer than a busy machine
// delays a thread.
constexpr base::Duration kGrace{50'000'000};

// Deaths wake no process, so a waiter looks again this often.
constexpr base::Duration kLookAgain{5'000'000};

}  // namespace

ComputeTurn::ComputeTurn(Machine& machine, std::uint32_t gpu)
    : machine_(machine), gpu_(gpu), limit_(machine.own().server.load() != 0 ? mps_speed_limit() : 1) {}

// Slot and generation, 16 bits each: of the MPS server, or of the process itself.
std::uint64_t ComputeTurn::party_of(std::uint32_t slot) {
  const std::uint64_t server = machine_.state().slots[slot].server.load();
  return (server != 0 ? server : machine_.identity(slot)) & kPartyMask;
}

bool ComputeTurn::first_in_line(std::uint64_t ticket) {
  for (std::uint32_t i = 0; i < machine_.slots_used(); ++i) {
    const std::uint64_t other = slot(i).wait_ticket.load();
    if (other != 0 && other < ticket && i != machine_.own_slot() && machine_.alive(i)) return false;
  }
  return true;
}

bool ComputeTurn::others_wait() {
  for (std::uint32_t i = 0; i < machine_.slots_used(); ++i) {
    if (slot(i).wait_ticket.load() != 0 && party_of(i) != own_party() && machine_.alive(i)) return true;
  }
  return false;
}

// Does a living process run in the tenure, or has none entered it yet and one may?
bool ComputeTurn::has_lives(std::uint64_t owner) {
  const bool has_begun = arbiter().slice.load() >> 48 == grant(owner);
  for (std::uint32_t i = 0; i < machine_.slots_used(); ++i) {
    const bool runs = slot(i).running.load() == tenure(owner);
    const bool may_enter = !has_begun && slot(i).wait_ticket.load() != 0 && party_of(i) == party(owner);
    if ((runs || may_enter) && machine_.alive(i)) return true;
  }
  return false;
}

// A process that is before us in the line and let the GPU lie is stopped. Without its ticket it is not offered the GPU
// again and again.
void ComputeTurn::drop_from_line(std::uint64_t ticket) {
  for (std::uint32_t i = 0; i < machine_.slots_used(); ++i) {
    std::uint64_t other = slot(i).wait_ticket.load();
    if (other != 0 && other < ticket && i != machine_.own_slot()) {
      slot(i).wait_ticket.compare_exchange_strong(other, 0);
    }
  }
}

std::uint64_t ComputeTurn::enter_line() {
  const std::uint64_t ticket = arbiter().next_ticket.fetch_add(1) + 1;
  own().wait_ticket.store(ticket);
  return ticket;
}

// Enters a tenure of this process's party. Not when the slice is over and others wait: then the running ones let go.
bool ComputeTurn::join(std::uint64_t owner) {
  const std::uint64_t begun = arbiter().slice.load();
  const bool is_over =
      begun >> 48 == grant(owner) && now() >= slice_time(begun) + base::Duration(machine_.settings().slice_nanoseconds);
  if (is_over && others_wait()) return false;
  own().running.store(tenure(owner));
  return arbiter().owner.compare_exchange_strong(owner, owner + kOneJoin);
}

std::optional<base::TimePoint> ComputeTurn::obtain(const Freezer& kernels) {
  const auto longest =
      base::Duration(machine_.settings().slice_nanoseconds + machine_.settings().switch_nanoseconds) + kGrace;
  std::uint64_t ticket = enter_line();
  std::uint64_t seen = 0;
  base::TimePoint seen_since = now();
  for (;;) {
    const std::uint32_t turn = arbiter().turn.load();
    std::uint64_t owner = arbiter().owner.load();
    if (party(owner) == own_party() && join(owner)) break;
    if (tenure(owner) != seen) {
      seen = tenure(owner);
      seen_since = now();
    }
    if (own().wait_ticket.load() == 0) {
      // This process was stopped for so long that it lost its place: to the end of the line.
      ticket = enter_line();
      continue;
    }
    const bool stuck = now() - seen_since > longest;
    const bool ownerless = party(owner) == 0 || !has_lives(owner);
    if (stuck || (ownerless && first_in_line(ticket))) {
      const std::uint64_t word = next_tenure(own_party(), owner);
      own().running.store(word);
      if (!arbiter().owner.compare_exchange_strong(owner, word)) continue;
      if (stuck) drop_from_line(ticket);
      break;
    }
    if (own().running.load() != 0) {
      leave();  // another process may have let go since, and left the GPU to us
      continue;
    }
    os::futex_wait(arbiter().turn, turn, kLookAgain, os::FutexScope::kShared);
  }
  own().wait_ticket.store(0);
  if (kernels.is_frozen()) {
    leave();
    return std::nullopt;
  }
  return begin_slice();
}

// Pays for the change if there was one. The first process of a tenure says when its slice began.
base::TimePoint ComputeTurn::begin_slice() {
  if (arbiter().last_owner.exchange(own_party()) != own_party()) {
    sleep_until(now() + base::Duration(machine_.settings().switch_nanoseconds));
  }
  const std::uint64_t of_grant = grant(own().running.load());
  std::uint64_t begun = arbiter().slice.load();
  if (begun >> 48 != of_grant) {
    begun = slice_word(of_grant, now());
    arbiter().slice.store(begun);
    if (machine_.own().server.load() != 0) {
      // Other clients of the server may join.
      arbiter().turn.fetch_add(1);
      os::futex_wake(arbiter().turn, os::FutexScope::kShared);
    }
  }
  return slice_time(begun);
}

// Hands over if no other process runs in this process's tenure. A process that has joined since, and perhaps has let go
// again, has changed the owner word: then it looks again.
void ComputeTurn::leave() {
  const std::uint64_t mine = own().running.exchange(0);
  for (;;) {
    std::uint64_t owner = arbiter().owner.load();
    if (tenure(owner) != mine) return;  // passed over since: the GPU is not ours to give
    std::uint64_t next = nobody_after(owner);
    std::uint64_t lowest = UINT64_MAX;
    for (std::uint32_t i = 0; i < machine_.slots_used(); ++i) {
      const std::uint64_t ticket = slot(i).wait_ticket.load();
      const bool runs = slot(i).running.load() == mine;
      const bool is_first = ticket != 0 && ticket < lowest;
      if (i == machine_.own_slot() || !(runs || is_first) || !machine_.alive(i)) continue;
      if (runs) return;
      lowest = ticket;
      next = next_tenure(party_of(i), owner);
    }
    if (arbiter().owner.compare_exchange_strong(owner, next)) break;
  }
  arbiter().turn.fetch_add(1);
  os::futex_wake(arbiter().turn, os::FutexScope::kShared);
}

std::uint32_t ComputeTurn::sharing() {
  std::uint32_t sum = own().sharing.load();
  if (machine_.own().server.load() != 0) {
    for (std::uint32_t i = 0; i < machine_.slots_used(); ++i) {
      const std::uint32_t there = i == machine_.own_slot() ? 0 : slot(i).sharing.load();
      if (there != 0 && party_of(i) == own_party() && machine_.alive(i)) sum += there;
    }
  }
  return std::max(sum, 1u);
}

double ComputeTurn::slowdown() { return std::max<double>(sharing(), std::max(own().sharing.load(), 1u) / limit_); }

bool ComputeTurn::acquire(const Freezer& kernels) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (held_ && !yielding_) break;
    if (held_ || obtaining_) {
      changed_.wait(lock);
      continue;
    }
    obtaining_ = true;
    lock.unlock();
    const std::optional<base::TimePoint> slice_begin = obtain(kernels);
    lock.lock();
    obtaining_ = false;
    if (!slice_begin) {
      changed_.notify_all();  // other threads may want the GPU for kernels that are not frozen
      return false;
    }
    held_ = true;
    yielding_ = false;
    busy_since_ = now();
    slice_end_ = *slice_begin + base::Duration(machine_.settings().slice_nanoseconds);
    changed_.notify_all();
    break;
  }
  ++running_;
  return true;
}

void ComputeTurn::release() {
  const std::lock_guard lock(mutex_);
  if (--running_ != 0) return;
  machine_.add_busy(gpu_, busy_since_, now());
  leave();
  held_ = false;
  yielding_ = false;
  changed_.notify_all();
}

bool ComputeTurn::must_yield() {
  const std::lock_guard lock(mutex_);
  if (yielding_) return true;
  const base::TimePoint time = now();
  machine_.add_busy(gpu_, busy_since_, time);
  busy_since_ = time;
  const bool passed_over = tenure(arbiter().owner.load()) != own().running.load();
  if (!passed_over) {
    if (time < slice_end_) return false;
    if (!others_wait()) {
      // Alone: a process that comes is noticed within a fraction of a slice.
      slice_end_ = time + base::Duration(machine_.settings().slice_nanoseconds) / 8;
      return false;
    }
  }
  yielding_ = true;
  return true;
}

}  // namespace gpumux::sim
