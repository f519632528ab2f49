// SPDX-License-Identifier: Apache-2.0
#include "shim/tenant/drainer.h"

#include <algorithm>
#include <utility>

#include "os/futex.h"
#include "os/system_clock.h"

namespace gpumux::shim {
namespace {

using namespace std::chrono_literals;
using gate::WorkState;

// While another seat waits for a busy GPU, how often its idleness is looked for. Synchronising calls wake the drainer,
// too. This is for work that ends unobserved, and for programs that wait often and go on at once. A look costs about a
// microsecond if something has been submitted since the last one.
constexpr base::Duration kIdleLook = 250us;
// Idle time counts from the last look that found the seat busy. So a long idle hold ends at most an eighth of it early.
constexpr std::int64_t kLooksPerIdleHold = 8;

// A wait as short as this is spent awake: asleep it would last longer, for waking up alone takes 20 to 70 us.
constexpr base::Duration kShortestSleep = 60us;
// The drainer may spend one part in kSpinningShare of its time awake like that, and kSpinningReserve at once. A drain
// is looked at without sleeping for its first millisecond (next_look), an idle hold for its last 60 us. Both are a
// guess: the reserve is enough for five drains at once.
constexpr int kSpinningShare = 4;
constexpr base::Duration kSpinningReserve = 5ms;
// Between two looks at the clock: about a microsecond.
constexpr int kPausesPerLook = 16;

// A program that is often idle for moments only tells the daemon of ever fewer idle holds, and wakes the drainer at
// ever fewer waits. The doubling ends after this many false alarms, which is a guess.
constexpr std::uint32_t kMaxFalseAlarms = 6;  // 2^6 - 1 are skipped

// Looks come quickly at first, when most gates close and most drains end, and stay a small share of the time already
// waited. The part and the least are a guess.
base::Duration next_look(base::Duration waited) { return std::clamp<base::Duration>(waited / 16, 5us, kIdleLook); }

wire::Drained drained_message(std::uint32_t slot, std::uint64_t epoch, WorkState state) {
  return {.slot = slot, .poisoned = state == WorkState::kPoisoned ? 1u : 0u, .epoch = epoch};
}

}  // namespace

Drainer::Drainer(gate::Gate& gate, Seats& seats, LockModes& lock_modes, client::Agent& agent)
    : gate_(gate), seats_(seats), lock_modes_(lock_modes), agent_(agent), spinning_(kSpinningShare, kSpinningReserve) {}

Drainer::~Drainer() {
  if (!thread_.is_started()) return;
  stopping_.store(true, std::memory_order_release);
  wake();
  thread_.join();
}

base::Status Drainer::start() { return thread_.start<&Drainer::run>(this, "cannot create the drainer's thread"); }

void Drainer::wake() {
  wakes_.fetch_add(1, std::memory_order_release);  // pairs with the acquire in run
  os::futex_wake(wakes_, os::FutexScope::kProcess);
}

void Drainer::synchronised(std::uint32_t slot) {
  std::atomic<std::uint32_t>& skip = seats_.waits_to_skip(slot);
  // Several threads may skip one too many or too few.
  const std::uint32_t left = skip.load(std::memory_order_relaxed);
  if (left == 0) return wake();
  skip.store(left - 1, std::memory_order_relaxed);
}

void Drainer::run() {
  pthread_setname_np(pthread_self(), "gpumux-drainer");
  while (!stopping_.load(std::memory_order_acquire)) {
    const std::uint32_t seen = wakes_.load(std::memory_order_acquire);
    std::optional<base::Duration> sleep;
    for (std::uint32_t slot = 0; slot < seats_.count(); ++slot) {
      const auto wanted = look_at(slot, os::now());
      if (wanted && (!sleep || *wanted < *sleep)) sleep = wanted;
    }
    wait(seen, sleep);
  }
}

void Drainer::wait(std::uint32_t seen, std::optional<base::Duration> duration) {
  if (duration && *duration <= kShortestSleep && os::has_spare_cores()) {
    const base::TimePoint start = os::now();
    if (spinning_.left(start) >= *duration) {
      base::TimePoint time = start;
      // acquire: pairs with wake.
      while (time - start < *duration && wakes_.load(std::memory_order_acquire) == seen) {
        for (int i = 0; i < kPausesPerLook; ++i) os::spin_pause();
        time = os::now();
      }
      return spinning_.spend(time - start);
    }
  }
  os::futex_wait(wakes_, seen, duration.value_or(base::Duration(-1)), os::FutexScope::kProcess);
}

std::optional<base::Duration> Drainer::look_at(std::uint32_t slot, base::TimePoint time) {
  std::optional<Closing> seen;
  {
    Seats::Locked seats(seats_);
    std::optional<Closing>& closing = seats[slot].closing;
    // A later epoch in the page: the revocation was taken back, or answered and followed by another grant.
    if (closing && closing->epoch != gate_.epoch(slot)) closing.reset();
    seen = closing;
  }
  if (!seen) return watch_idleness(slot, time);
  switch (seen->phase) {
    case Closing::Phase::kClosing: return close(slot, *seen, time);
    case Closing::Phase::kDraining: return drain(slot, *seen, time);
    case Closing::Phase::kDrained: return watch_idleness(slot, time);
    case Closing::Phase::kFrozen: return std::nullopt;  // a query may wait until it is thawed
  }
  return std::nullopt;
}

std::optional<base::Duration> Drainer::close(std::uint32_t slot, const Closing& seen, base::TimePoint time) {
  if (!close_gate(slot, seen.epoch)) return next_look(time - seen.since);
  return drain(slot, seen, time);
}

// False: a thread is inside. True: none is, and that has been said, unless it is no longer what is asked for.
bool Drainer::close_gate(std::uint32_t slot, std::uint64_t epoch) {
  // Once more at each look: it is cheap compared with the waiting, and assumes nothing of earlier ones.
  gate_.begin_close();
  if (gate_.is_anybody_inside(slot)) return false;
  // Said before another thread can say Drained.
  client::Agent::Announcement ordered(agent_);
  Seats::Locked seats(seats_);
  Seat& seat = seats[slot];
  using enum Closing::Phase;
  if (!seat.closing || seat.closing->phase != kClosing || seat.closing->epoch != epoch) return true;
  seat.closing->phase = kDraining;
  ordered.send(wire::GateClosed{.slot = slot, .epoch = epoch});
  seat.in_flight.turn_ended();
  return true;
}

void Drainer::close_at_once(std::uint32_t slot, std::uint64_t epoch) {
  close_gate(slot, epoch);
  wake();
}

// The scheduler ignores GateClosed, for nothing is revoked; Drained then releases the lease. If the daemon revokes now,
// these messages are the answer.
void Drainer::give_up(std::uint32_t slot) {
  std::uint64_t epoch;
  {
    Seats::Locked seats(seats_);
    const auto given_up = gate_.close_if_granted(slot);
    if (!given_up) return;
    epoch = *given_up;
    seats[slot].begin_closing(epoch, os::now());
  }
  close_at_once(slot, epoch);
}

// Whether all that was submitted is done; then it is forgotten. The gate is closed, but the daemon may open it at any
// moment. So a thread that enters is made to note its stream again (which keeps it) before the look for threads inside.
// A thread that has not seen that is visible after the barrier.
WorkState Drainer::look_at_work(std::uint32_t slot) {
  gate::StreamSet& streams = seats_.streams(slot);
  streams.begin_drain();
  gate_.begin_close();
  return gate_.is_anybody_inside(slot) ? WorkState::kRunning : streams.poll(true);
}

std::optional<base::Duration> Drainer::drain(std::uint32_t slot, const Closing& seen, base::TimePoint time) {
  const base::Duration next = next_look(time - seen.since);
  // In a launch that finds no room (Interrupter::say_closed). Then asking its stream may wait for room, too.
  if (gate_.is_anybody_inside(slot)) return next;
  // Looks that follow each other closely only ask; the barrier comes when the answer may be the last one.
  if (next <= kShortestSleep && seats_.streams(slot).poll(false) == WorkState::kRunning) return next;
  const WorkState state = look_at_work(slot);
  if (state == WorkState::kRunning) return next;
  {
    // It is said before the agent can answer a later Revoke: what comes after that answer was seen after it. A look
    // that began before it does not count any more.
    client::Agent::Announcement ordered(agent_);
    Seats::Locked seats(seats_);
    using enum Closing::Phase;
    Closing* const closing = seats[slot].still(seen, kDraining);
    if (closing == nullptr) return 0ns;
    closing->phase = kDrained;
    ordered.send(drained_message(slot, seen.epoch, state));
  }
  ask_for_waiting(slot);
  return std::nullopt;
}

// A thread that came to the closed gate before Drained was sent has asked while the daemon still took the lease for
// held. So the drainer asks again for it.
void Drainer::ask_for_waiting(std::uint32_t slot) {
  if (drained_call_ != nullptr) drained_call_(drained_argument_);
  if (gate_.waiting(slot) != 0) agent_.send(wire::Request{.slot = slot});
}

std::optional<base::Duration> Drainer::watch_idleness(std::uint32_t slot, base::TimePoint time) {
  if (!gate_.is_granted(slot) || !gate_.is_contended(slot)) return std::nullopt;
  if (lock_modes_.are_set()) {
    if (!lock_modes_.is_locked(slot)) give_up(slot);
    return std::nullopt;  // the thread that unlocks gives up by itself
  }
  const std::uint64_t epoch = gate_.epoch(slot);
  const std::uint64_t passages = gate_.passages(slot);
  // Threads that wait while the lease is held wait for the seat's memory, or are just waking up: about to submit.
  bool is_busy = gate_.waiting(slot) != 0 || gate_.is_anybody_inside(slot) ||
                 seats_.streams(slot).poll(false) == WorkState::kRunning;
  base::Duration idle_hold;
  base::Duration idle;
  bool tell = false;
  {
    Seats::Locked seats(seats_);
    Seat& seat = seats[slot];
    idle_hold = seat.idle_hold;
    if (idle_hold == kHoldsWhileIdle) return std::nullopt;  // the next Contention wakes this thread
    // Giving the lease back would send the memory back that others are giving up for it.
    is_busy = is_busy || seat.awaiting_room != 0;
    if (is_busy || seat.last_passages != passages) {
      seat.last_passages = passages;
      seat.idle_since = time;
      if (seat.idling_told) {
        seat.false_alarms = std::min(seat.false_alarms + 1, kMaxFalseAlarms);
        seat.idlings_to_skip = (1u << seat.false_alarms) - 1;
      }
      seat.idling_told = false;
      if (seat.waits_to_skip.load(std::memory_order_relaxed) == 0)
        seat.waits_to_skip.store((1u << seat.false_alarms) - 1, std::memory_order_relaxed);
    }
    idle = time - seat.idle_since;
    // A long hold is looked at in parts: what was busy until just now must not count as idle since the last look.
    if (is_busy) return std::max<base::Duration>(idle_hold / kLooksPerIdleHold, kIdleLook);
    if (idle < idle_hold && !seat.idling_told) {
      // Once for each time that it is idle, whether it is told or skipped.
      tell = seat.idlings_to_skip == 0;
      if (!tell && idle == 0ns) --seat.idlings_to_skip;
      seat.idling_told = tell;
    }
  }
  if (idle >= idle_hold) {
    release(slot);
    return std::nullopt;
  }
  if (tell) agent_.send(wire::Idling{.slot = slot, .epoch = epoch});
  const base::Duration left = idle_hold - idle;
  // Awake for the end of it, which is then not late.
  return left > kShortestSleep ? left - kShortestSleep : left;
}

void Drainer::release(std::uint32_t slot) {
  const auto epoch = gate_.close_if_granted(slot);
  if (!epoch) return;
  const WorkState state = look_at_work(slot);
  if (state == WorkState::kRunning) return gate_.reopen_own(slot);
  {
    Seats::Locked seats(seats_);
    seats[slot].idling_told = false;
    seats[slot].false_alarms = 0;
    seats[slot].idlings_to_skip = 0;
    seats[slot].waits_to_skip.store(0, std::memory_order_relaxed);
  }
  agent_.send(drained_message(slot, *epoch, state));
  ask_for_waiting(slot);
}

}  // namespace gpumux::shim
