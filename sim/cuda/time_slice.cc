// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/time_slice.h"

#include "os/futex.h"

namespace gpumux::sim {
namespace {

// An owner word: slot + 1 in 16 bits, the slot's generation in 16 bits, the number of the grant in 32.
std::uint64_t owner_word(std::uint32_t slot, std::uint64_t generation, std::uint64_t grant) {
  return std::uint64_t{slot + 1} | (generation & 0xffff) << 16 | (grant & 0xffffffff) << 32;
}
std::uint32_t slot_of(std::uint64_t word) { return static_cast<std::uint32_t>(word & 0xffff) - 1; }

// A stopped process keeps the GPU this much longer than its slice before it is passed over: longer than a busy machine
// delays a thread.
constexpr base::Duration kGrace{50'000'000};

// Deaths wake nobody, so a waiter looks again this often.
constexpr base::Duration kLookAgain{5'000'000};

}  // namespace

bool ComputeTurn::first_in_line(std::uint64_t ticket) {
  for (std::uint32_t slot = 0; slot < machine_.slots_used(); ++slot) {
    const std::uint64_t other = machine_.state().slots[slot].gpu[gpu_].wait_ticket.load();
    if (other != 0 && other < ticket && slot != machine_.own_slot() && machine_.alive(slot)) return false;
  }
  return true;
}

bool ComputeTurn::others_wait() {
  for (std::uint32_t slot = 0; slot < machine_.slots_used(); ++slot) {
    if (slot == machine_.own_slot() || machine_.state().slots[slot].gpu[gpu_].wait_ticket.load() == 0) continue;
    if (machine_.alive(slot)) return true;
  }
  return false;
}

// A process that is before us in the line and let the GPU lie is stopped. Without its ticket it is not offered the GPU
// again and again.
void ComputeTurn::drop_from_line(std::uint64_t ticket) {
  for (std::uint32_t slot = 0; slot < machine_.slots_used(); ++slot) {
    auto& place = machine_.state().slots[slot].gpu[gpu_].wait_ticket;
    std::uint64_t other = place.load();
    if (other != 0 && other < ticket && slot != machine_.own_slot()) place.compare_exchange_strong(other, 0);
  }
}

void ComputeTurn::obtain() {
  Arbiter& arbiter = machine_.state().arbiters[gpu_];
  Slot& mine = machine_.own();
  const auto longest =
      base::Duration(machine_.settings().slice_nanoseconds + machine_.settings().switch_nanoseconds) + kGrace;
  std::uint64_t ticket = arbiter.next_ticket.fetch_add(1) + 1;
  mine.gpu[gpu_].wait_ticket.store(ticket);
  std::uint64_t seen = 0;
  base::TimePoint seen_since = now();
  for (;;) {
    const std::uint32_t turn = arbiter.turn.load();
    std::uint64_t owner = arbiter.owner.load();
    if (owner != 0 && slot_of(owner) == machine_.own_slot() &&
        (owner >> 16 & 0xffff) == (mine.generation.load() & 0xffff)) {
      word_ = owner;
      break;
    }
    if (owner != seen) {
      seen = owner;
      seen_since = now();
    }
    if (mine.gpu[gpu_].wait_ticket.load() == 0) {
      // This process was stopped for so long that it lost its place: to the end of the line.
      ticket = arbiter.next_ticket.fetch_add(1) + 1;
      mine.gpu[gpu_].wait_ticket.store(ticket);
      continue;
    }
    const bool stuck = now() - seen_since > longest;
    const bool ownerless = owner == 0 || !machine_.alive(slot_of(owner));
    if (stuck || (ownerless && first_in_line(ticket))) {
      const std::uint64_t word = owner_word(machine_.own_slot(), mine.generation.load(), (owner >> 32) + 1);
      if (arbiter.owner.compare_exchange_strong(owner, word)) {
        word_ = word;
        if (stuck) drop_from_line(ticket);
        break;
      }
      continue;
    }
    os::futex_wait(arbiter.turn, turn, kLookAgain, os::FutexScope::kShared);
  }
  mine.gpu[gpu_].wait_ticket.store(0);
  if (arbiter.last_owner.exchange(identity()) != identity()) {
    sleep_until(now() + base::Duration(machine_.settings().switch_nanoseconds));
  }
}

void ComputeTurn::hand_over() {
  Arbiter& arbiter = machine_.state().arbiters[gpu_];
  std::uint64_t next = 0;
  std::uint64_t lowest = UINT64_MAX;
  for (std::uint32_t slot = 0; slot < machine_.slots_used(); ++slot) {
    const Slot& other = machine_.state().slots[slot];
    const std::uint64_t ticket = other.gpu[gpu_].wait_ticket.load();
    if (ticket == 0 || ticket >= lowest || slot == machine_.own_slot() || !machine_.alive(slot)) continue;
    lowest = ticket;
    next = owner_word(slot, other.generation.load(), (word_ >> 32) + 1);
  }
  std::uint64_t expected = word_;
  // Fails when we were passed over meanwhile: then the GPU is not ours to give.
  if (arbiter.owner.compare_exchange_strong(expected, next)) {
    arbiter.turn.fetch_add(1);
    os::futex_wake(arbiter.turn, os::FutexScope::kShared);
  }
}

void ComputeTurn::acquire() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (held_ && !yielding_) break;
    if (held_ || obtaining_) {
      changed_.wait(lock);
      continue;
    }
    obtaining_ = true;
    lock.unlock();
    obtain();
    lock.lock();
    obtaining_ = false;
    held_ = true;
    yielding_ = false;
    busy_since_ = now();
    slice_end_ = busy_since_ + base::Duration(machine_.settings().slice_nanoseconds);
    changed_.notify_all();
    break;
  }
  ++running_;
}

void ComputeTurn::release() {
  const std::lock_guard lock(mutex_);
  if (--running_ != 0) return;
  machine_.add_busy(gpu_, busy_since_, now());
  hand_over();
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
  const bool passed_over = machine_.state().arbiters[gpu_].owner.load() != word_;
  if (!passed_over) {
    if (time < slice_end_) return false;
    if (!others_wait()) {
      // Alone: whoever comes is noticed within a fraction of a slice.
      slice_end_ = time + base::Duration(machine_.settings().slice_nanoseconds) / 8;
      return false;
    }
  }
  yielding_ = true;
  return true;
}

}  // namespace gpumux::sim
