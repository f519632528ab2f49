// SPDX-License-Identifier: Apache-2.0
#include "gate/gate.h"

#include <algorithm>
#include <ctime>

#include "gate/membarrier.h"
#include "os/futex.h"
#include "os/spin.h"
#include "os/system_clock.h"

namespace gpumux::gate {
namespace {

// A sleeping thread asks again this often. Nothing depends on it while messages arrive; it makes a lost one harmless.
constexpr base::Duration kAskAgain = std::chrono::milliseconds(100);

// A thread that was told of a grant to come stays awake for it this long. The other side's gate closes, or its idle
// hold ends, within 100 to 300 us where its threads have to be woken first.
constexpr base::Duration kAwakeForGrant = std::chrono::microseconds(400);
// Staying awake for hints that come to nothing costs a thread this part of its waiting time at most, and this reserve
// at once. A guess: the reserve lasts for five waits of kAwakeForGrant.
constexpr int kAwakeShare = 4;
constexpr base::Duration kAwakeReserve = std::chrono::milliseconds(2);
[[gnu::tls_model("initial-exec")]] constinit thread_local os::SpinBudget t_awake(kAwakeShare, kAwakeReserve);

// Longer than a processor keeps a store to itself, which is less than a microsecond. A thread that does not run has
// passed a barrier.
constexpr base::Duration kStoresArrive = std::chrono::milliseconds(10);

// Between two looks at the clock: about a microsecond.
constexpr int kPausesPerLook = 16;

}  // namespace

Gate::Gate(wire::LeasePage& page, void (*request)(void*, std::uint32_t), void* context)
    : page_(page), request_(request), context_(context), fences_itself_(!register_membarrier()) {}

bool Gate::is_open(std::uint32_t slot) const { return has_lease(slot) && !is_barred(slot); }

bool Gate::has_lease(std::uint32_t slot) const {
  return (word(slot).load(std::memory_order_acquire) & (wire::kGranted | wire::kUngated)) != 0;
}

void Gate::sleep(std::uint32_t slot) {
  request_(context_, slot);
  const os::SystemClock clock;
  const base::TimePoint start = clock.now();
  base::TimePoint time = start;
  while (!is_open(slot) && !is_stranded(slot) && time - start < kAskAgain) {
    // The thread that takes the hint clears it, so that one thread stays awake for one hint. The word is otherwise the
    // daemon's: clearing one bit undoes nothing that the daemon stores in between.
    const std::uint32_t seen = word(slot).load(std::memory_order_acquire);
    if ((seen & wire::kImminent) != 0) {
      if ((word(slot).fetch_and(~wire::kImminent, std::memory_order_relaxed) & wire::kImminent) != 0) stay_awake(slot);
    } else if (has_lease(slot)) {
      // While the seat is barred, this thread ignores what happens to the lease. It asks for a lost lease at the next
      // turn.
      os::futex_wait(bars_[slot], kBarred, kAskAgain - (time - start), os::FutexScope::kProcess);
    } else {
      os::futex_wait(word(slot), seen, kAskAgain - (time - start), os::FutexScope::kShared);
    }
    time = clock.now();
  }
  page_.slots[slot].waiting_ns.fetch_add(static_cast<std::uint64_t>((time - start).count()), std::memory_order_relaxed);
}

// For the grant that has been announced: what is waited for is another process's last moments.
void Gate::stay_awake(std::uint32_t slot) {
  if (!os::has_spare_cores()) return;
  const os::SystemClock clock;
  const base::TimePoint start = clock.now();
  const base::TimePoint end = start + awake_for_test_.value_or(std::min(kAwakeForGrant, t_awake.left(start)));
  base::TimePoint time = start;
  while (time < end && !is_open(slot)) {
    for (int i = 0; i < kPausesPerLook && !is_open(slot); ++i) os::spin_pause();
    time = clock.now();
  }
  t_awake.spend(time - start);
}

Passed Gate::try_hold(ThreadRecord& thread, std::uint32_t slot) {
  std::atomic<std::uint64_t>& passages = thread.passages[slot];
  const std::uint64_t count = passages.load(std::memory_order_relaxed);
  if ((count & 1) != 0) return Passed::kNested;
  passages.store(count + 1, std::memory_order_relaxed);
  full_fence();
  if (!is_barred(slot)) return Passed::kHolding;
  passages.store(count, std::memory_order_release);
  return Passed::kNot;
}

// A thread that is inside already has its own mark, whatever that is.
Passed Gate::hold(ThreadRecord& thread, std::uint32_t slot) {
  if (is_inside(thread, slot)) return Passed::kNested;
  set_holding(thread, slot, true);  // before it is inside
  Passed passed = try_hold(thread, slot);
  if (passed == Passed::kNot) passed = pass(thread, slot);
  if (passed == Passed::kStranded) set_holding(thread, slot, false);
  return passed;
}

void Gate::unbar(std::uint32_t slot) {
  // release: a thread that sees it sees the memory mapped.
  if ((bars_[slot].fetch_and(~kBarred, std::memory_order_acq_rel) & kBarred) != 0)
    os::futex_wake(bars_[slot], os::FutexScope::kProcess);
}

void Gate::set_stranded(std::uint32_t slot, StrandedBy by, bool is_stranded) {
  const auto bit = static_cast<std::uint32_t>(by);
  if (!is_stranded) {
    bars_[slot].fetch_and(~bit, std::memory_order_acq_rel);
    return;
  }
  bars_[slot].fetch_or(bit, std::memory_order_acq_rel);
  // Threads wait for the lease or for the bar, whichever they lack.
  os::futex_wake(bars_[slot], os::FutexScope::kProcess);
  os::futex_wake(word(slot), os::FutexScope::kShared);
}

Passed Gate::wait_and_pass(ThreadRecord& thread, std::uint32_t slot) {
  const Waiting waiting(*this, slot);
  while (true) {
    const Passed passed = try_pass(thread, slot);
    if (passed != Passed::kNot) return passed;
    if (is_stranded(slot)) return Passed::kStranded;
    if (!is_open(slot)) sleep(slot);
  }
}

void Gate::wait_until_open(const Waiting& waiting) {
  if (!is_open(waiting.slot())) sleep(waiting.slot());
}

void Gate::begin_close() {
  if (!fences_itself_.load(std::memory_order_relaxed)) {
    if (process_barrier()) return;
    // From now on threads fence themselves. Those that did not know it have stored before this wait is over.
    fences_itself_.store(true, std::memory_order_seq_cst);
    forget_memos();
    const timespec pause{0, kStoresArrive.count()};
    ::nanosleep(&pause, nullptr);
  }
  full_fence();  // the other half of theirs
}

namespace {

template <class Is>
bool is_any_inside(std::uint32_t slot, Is is) {
  for (const ThreadRecord* record = first_record(); record != nullptr;
       record = record->next.load(std::memory_order_relaxed)) {
    // The thread has said what it does before it was inside. acquire: pairs with its leaving.
    if ((record->passages[slot].load(std::memory_order_acquire) & 1) != 0 && is(*record)) return true;
  }
  return false;
}

}  // namespace

bool Gate::is_anybody_inside(std::uint32_t slot) const {
  return is_any_inside(slot, [](const ThreadRecord&) { return true; });
}

bool Gate::is_anybody_holding(std::uint32_t slot) const {
  return is_any_inside(
      slot, [&](const ThreadRecord& one) { return (one.holds.load(std::memory_order_relaxed) >> slot & 1) != 0; });
}

bool Gate::is_anybody_looking_up(std::uint32_t slot) const {
  return is_any_inside(slot, [](const ThreadRecord& one) { return one.is_looking_up.load(std::memory_order_relaxed); });
}

std::optional<std::uint64_t> Gate::close_if_granted(std::uint32_t slot) {
  const std::atomic<std::uint64_t>& epoch = page_.slots[slot].epoch;
  while (true) {
    // acquire: pairs with the daemon's release store of an epoch, before which it has taken the word back.
    const std::uint64_t before = epoch.load(std::memory_order_acquire);
    std::uint32_t seen = word(slot).load(std::memory_order_acquire);
    if ((seen & wire::kGranted) == 0) return std::nullopt;
    if (epoch.load(std::memory_order_relaxed) != before) continue;
    if (word(slot).compare_exchange_strong(seen, (seen & ~wire::kGranted) | wire::kReleased, std::memory_order_seq_cst))
      return before;
  }
}

void Gate::reopen_own(std::uint32_t slot) {
  std::uint32_t seen = word(slot).load(std::memory_order_relaxed);
  // The daemon's stores never have kReleased: a revocation or anything else that it has stored stays.
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
