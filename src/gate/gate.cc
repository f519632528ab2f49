// SPDX-License-Identifier: Apache-2.0
#include "gate/gate.h"

#include "gate/membarrier.h"
#include "os/futex.h"
#include "os/system_clock.h"

namespace gpumux::gate {
namespace {

// A sleeping thread asks again this often. Nothing depends on it while messages arrive; it makes a lost one harmless.
constexpr base::Duration kAskAgain = std::chrono::milliseconds(100);

}  // namespace

Gate::Gate(wire::LeasePage& page, void (*request)(void*, std::uint32_t), void* context)
    : page_(page), request_(request), context_(context), fences_itself_(!register_membarrier()) {}

bool Gate::take_permit(std::uint32_t slot) {
  std::atomic<std::uint32_t>& permits = page_.slots[slot].permits;
  std::uint32_t count = permits.load(std::memory_order_acquire);
  while (count != 0) {
    if (permits.compare_exchange_weak(count, count - 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void Gate::sleep(std::uint32_t slot, std::uint32_t seen) {
  // seq_cst, before asking: pairs with waiting(), which the drainer reads after it has told the daemon of a release.
  // Either it sees this thread and asks on its behalf, or the daemon gets this thread's request after the release.
  waiting_[slot].fetch_add(1, std::memory_order_seq_cst);
  request_(context_, slot);
  const base::TimePoint start = os::SystemClock().now();
  os::futex_wait(word(slot), seen, kAskAgain, os::FutexScope::kShared);
  const auto slept = static_cast<std::uint64_t>((os::SystemClock().now() - start).count());
  page_.slots[slot].waiting_ns.fetch_add(slept, std::memory_order_relaxed);
  waiting_[slot].fetch_sub(1, std::memory_order_seq_cst);
}

Passed Gate::try_pass_or_step(ThreadRecord& thread, std::uint32_t slot) {
  const Passed passed = try_pass(thread, slot);
  if (passed != Passed::kNot || !take_permit(slot)) return passed;
  std::atomic<std::uint64_t>& passages = thread.passages[slot];
  passages.store(passages.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  return Passed::kStep;
}

Passed Gate::wait_and_pass(ThreadRecord& thread, std::uint32_t slot) {
  while (true) {
    const Passed passed = try_pass_or_step(thread, slot);
    if (passed != Passed::kNot) return passed;
    wait_until_open(slot);
  }
}

void Gate::wait_until_open(std::uint32_t slot) {
  const std::uint32_t seen = word(slot).load(std::memory_order_acquire);
  if ((seen & (wire::kGranted | wire::kUngated)) == 0 && page_.slots[slot].permits.load(std::memory_order_acquire) == 0)
    sleep(slot, seen);
}

void Gate::begin_close() { process_barrier(); }

bool Gate::is_anybody_inside(std::uint32_t slot) const {
  for (const ThreadRecord* record = first_record(); record != nullptr;
       record = record->next.load(std::memory_order_relaxed)) {
    if ((record->passages[slot].load(std::memory_order_acquire) & 1) != 0) return true;
  }
  return false;
}

bool Gate::close_if_granted(std::uint32_t slot) {
  std::uint32_t seen = word(slot).load(std::memory_order_relaxed);
  return (seen & wire::kGranted) != 0 &&
         word(slot).compare_exchange_strong(seen, (seen & ~wire::kGranted) | wire::kReleased,
                                            std::memory_order_seq_cst);
}

void Gate::reopen_own(std::uint32_t slot) {
  std::uint32_t seen = word(slot).load(std::memory_order_relaxed);
  // The daemon's stores never have kReleased: a revocation or anything else that it stored meanwhile stays.
  if ((seen & wire::kReleased) == 0) return;
  if (word(slot).compare_exchange_strong(seen, (seen | wire::kGranted) & ~wire::kReleased, std::memory_order_seq_cst)) {
    os::futex_wake(word(slot), os::FutexScope::kShared);
  }
}

void Gate::set_ungated(std::uint32_t slot) {
  word(slot).fetch_or(wire::kUngated, std::memory_order_seq_cst);
  os::futex_wake(word(slot), os::FutexScope::kShared);
}

void Gate::clear_ungated(std::uint32_t slot) { word(slot).fetch_and(~wire::kUngated, std::memory_order_seq_cst); }

std::uint64_t Gate::passages(std::uint32_t slot) const {
  std::uint64_t sum = 0;
  for (const ThreadRecord* record = first_record(); record != nullptr;
       record = record->next.load(std::memory_order_relaxed)) {
    sum += record->passages[slot].load(std::memory_order_relaxed);
  }
  return sum;
}

}  // namespace gpumux::gate
