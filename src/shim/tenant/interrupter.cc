// SPDX-License-Identifier: Apache-2.0
#include "shim/tenant/interrupter.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "gate/membarrier.h"
#include "os/futex.h"
#include "os/system_clock.h"

namespace gpumux::shim {
namespace {

using namespace std::chrono_literals;

constexpr base::Duration kForever = -1ns;
// A frozen seat's thread sleeps on the lease word, and looks at everything else this often. Then it also asks for the
// lease again, for a request may be lost. A wish of others' wakes it; only one that comes between its look and its
// sleep waits for this.
constexpr base::Duration kLookAgain = 100ms;
// The kernel ends a sleep up to 50 us late unless it is told how late it may be.
constexpr unsigned long kTimerSlackNs = 1000;

// Debuggers and profilers stop and replay kernels by means of their own. This variable is how libcuda loads profilers.
bool has_profiler() { return ::getenv("CUDA_INJECTION64_PATH") != nullptr; }

bool has_debugger() {
  const int file = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char text[1024];  // the line is among the first ten
  const ssize_t length = ::read(file, text, sizeof text - 1);
  ::close(file);
  if (length <= 0) return false;
  text[length] = 0;
  constexpr char kTracer[] = "TracerPid:";
  const char* const tracer = std::strstr(text, kTracer);
  return tracer != nullptr && std::strtol(tracer + sizeof kTracer - 1, nullptr, 10) != 0;
}

}  // namespace

Interrupter::Interrupter(Port& port, gate::Gate& gate, Seats& seats, client::Agent& agent, Drainer& drainer,
                         Channels& channels)
    : port_(port),
      gate_(gate),
      seats_(seats),
      agent_(agent),
      drainer_(drainer),
      channels_(channels),
      has_profiler_(has_profiler()) {}

Interrupter::~Interrupter() {
  stopping_.store(true, std::memory_order_release);
  for (std::uint32_t slot = 0; slot < lines_.size(); ++slot) {
    Line* const line = lines_[slot].load(std::memory_order_acquire);
    if (line == nullptr) continue;
    wake(slot);
    line->thread.join();
    delete line;
  }
}

void Interrupter::wake(std::uint32_t slot) {
  Line* line = lines_[slot].load(std::memory_order_acquire);
  if (line == nullptr) {
    const base::Locked locked(mutex_);
    line = lines_[slot].load(std::memory_order_relaxed);
    if (line == nullptr) {
      line = new (std::nothrow) Line;
      if (line == nullptr) return;
      line->owner = this;
      line->slot = slot;
      line->wakes.store(1, std::memory_order_relaxed);
      if (!line->thread.start<&Line::run>(line, "cannot create the interrupter's thread")) {
        delete line;
        return port_.cannot_interrupt(slot, "the process lacks a thread for that");
      }
      lines_[slot].store(line, std::memory_order_release);
      return;
    }
  }
  line->wakes.fetch_add(1, std::memory_order_release);  // pairs with the acquire in run
  os::futex_wake(line->wakes, os::FutexScope::kProcess);
  if (is_frozen(slot)) os::futex_wake(gate_.lease_word(slot), os::FutexScope::kShared);
}

void Interrupter::memory_came(std::uint32_t slot) {
  if (is_frozen(slot)) wake(slot);
}

void Interrupter::hold_off(std::uint32_t slot) {
  held_off_[slot].fetch_add(1, std::memory_order_seq_cst);
  while (is_frozen(slot)) {
    const Line& line = *lines_[slot].load(std::memory_order_acquire);
    const std::uint32_t seen = line.work.load(std::memory_order_acquire);
    if (seen != kRuns) os::futex_wait(line.work, seen, kLookAgain, os::FutexScope::kProcess);
  }
}

void Interrupter::let_drain(std::uint32_t slot) {
  {
    Seats::Locked seats(seats_);
    std::optional<Closing>& closing = seats[slot].closing;
    if (closing && closing->phase != Closing::Phase::kFrozen) closing->freeze_after.reset();
  }
  // A freeze that is under way finds that (say_frozen), or is seen here.
  Line* const line = lines_[slot].load(std::memory_order_acquire);
  if (line == nullptr || line->work.load(std::memory_order_seq_cst) == kRuns) return;
  line->must_drain.store(true, std::memory_order_release);
  wake(slot);
}

bool Interrupter::is_frozen(std::uint32_t slot) const {
  const Line* const line = lines_[slot].load(std::memory_order_acquire);
  return line != nullptr && line->work.load(std::memory_order_seq_cst) != kRuns;
}

bool Interrupter::stands_still(std::uint32_t slot) const {
  const Line* const line = lines_[slot].load(std::memory_order_acquire);
  return line != nullptr && line->work.load(std::memory_order_seq_cst) == kFrozen;
}

void Interrupter::run(Line& line) {
  pthread_setname_np(pthread_self(), "gpumux-freezer");
  ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  while (!stopping_.load(std::memory_order_acquire)) {
    const std::uint32_t seen = line.wakes.load(std::memory_order_acquire);
    const std::atomic<std::uint32_t>& word = gate_.lease_word(line.slot);
    const std::uint32_t seen_word = word.load(std::memory_order_acquire);
    const base::Duration sleep = look_at(line);
    if (sleep == base::Duration::zero()) continue;
    // With a lease, it waits for memory (memory_came).
    if (line.work.load(std::memory_order_relaxed) != kRuns && (seen_word & (wire::kGranted | wire::kUngated)) == 0) {
      os::futex_wait(word, seen_word, sleep, os::FutexScope::kShared);
    } else {
      os::futex_wait(line.wakes, seen, sleep, os::FutexScope::kProcess);
    }
  }
  if (line.work.load(std::memory_order_relaxed) != kRuns) thaw(line);
}

// How long nothing is to be done, unless something changes.
base::Duration Interrupter::look_at(Line& line) {
  if (line.work.load(std::memory_order_relaxed) != kRuns) {
    const bool goes_on = must_thaw(line) || !say_frozen(line, Stays::kIfItMay);
    if (goes_on && begin_thaw(line)) {
      thaw(line);
      return base::Duration::zero();
    }
    // Its memory is away. The daemon gets an answer, and a request, all the same.
    if (goes_on) say_frozen(line, Stays::kAnyway);
    port_.waits_frozen(line.slot);
    return kLookAgain;
  }
  std::optional<Closing> seen;
  {
    Seats::Locked seats(seats_);
    seen = seats[line.slot].closing;
  }
  using enum Closing::Phase;
  if (!seen || !seen->freeze_after || seen->number == line.tried || seen->epoch != gate_.epoch(line.slot) ||
      (seen->phase != kClosing && seen->phase != kDraining))
    return kForever;
  const base::Duration left = seen->since + *seen->freeze_after - os::now();
  if (left > base::Duration::zero()) return left;
  freeze(line, *seen);
  return base::Duration::zero();
}

bool Interrupter::must_thaw(const Line& line) const {
  return gate_.is_granted(line.slot) || gate_.is_ungated(line.slot) || line.must_drain.load(std::memory_order_acquire);
}

// False: memory is away, and the work stays frozen. Either this sees that memory is about to leave, or who is about to
// move it sees that the work does not stand still.
bool Interrupter::begin_thaw(Line& line) {
  if (line.work.load(std::memory_order_relaxed) != kFrozen) return true;  // it never was as a whole
  if (port_.is_memory_away(line.slot)) return false;
  line.work.store(kThawing, std::memory_order_seq_cst);
  gate::full_fence();  // pairs with the barrier between the bar and stands_still
  if (!port_.is_memory_away(line.slot)) return true;
  line.work.store(kFrozen, std::memory_order_seq_cst);
  return false;
}

void Interrupter::freeze(Line& line, const Closing& seen) {
  {
    Seats::Locked seats(seats_);
    line.gpu = seats[line.slot].gpu_id;
  }
  line.tried = seen.number;
  if (has_profiler_) return complain(line, "a profiler is loaded (CUDA_INJECTION64_PATH)");
  if (has_debugger()) return complain(line, "a debugger is attached");
  if (port_.may_fault(line.slot)) return complain(line, "it uses unified memory");
  line.must_drain.store(false, std::memory_order_relaxed);
  // Before the call: a wish to drain that comes during it is not overlooked.
  line.work.store(kFreezing, std::memory_order_seq_cst);
  if (is_held_off(line.slot)) return runs_again(line);
  if (line.has_frozen) say_closed(line, seen);
  const Channels::Outcome outcome = channels_.freeze(line.gpu);
  if (outcome == Channels::Outcome::kDone) {
    line.has_frozen = true;
    return line.work.store(kFrozen, std::memory_order_seq_cst);
  }
  if (outcome == Channels::Outcome::kStuck) {
    line.must_drain.store(true, std::memory_order_release);  // and so it is thawed, until that works
  } else {
    runs_again(line);
  }
  switch (outcome) {
    case Channels::Outcome::kDone:
    case Channels::Outcome::kNoneNow: break;
    case Channels::Outcome::kStuck:
    case Channels::Outcome::kNoChannels: return complain(line, "none of its channels were seen");
    case Channels::Outcome::kRefused: return complain(line, "the driver refuses to disable its channels");
  }
}

// The gate may be open still: a thread is inside, in a launch that waits for room behind the very work that is to be
// frozen. Others need not wait for that. It has passed before the revocation, and what it submits will stand still.
void Interrupter::say_closed(Line& line, const Closing& seen) {
  client::Agent::Announcement ordered(agent_);
  Seats::Locked seats(seats_);
  Seat& seat = seats[line.slot];
  Closing* const closing = seat.still(seen, Closing::Phase::kClosing);
  if (closing == nullptr) return;
  closing->phase = Closing::Phase::kDraining;
  ordered.send(wire::GateClosed{.slot = line.slot, .epoch = closing->epoch});
  seat.in_flight.turn_ended();
}

// Answers the revocation that there is, if it has not been answered. False: the seat is to drain, or goes on.
bool Interrupter::say_frozen(Line& line, Stays stays) {
  const std::uint32_t slot = line.slot;
  // As in the drainer: said before the agent can answer a later Revoke.
  client::Agent::Announcement ordered(agent_);
  Seats::Locked seats(seats_);
  Seat& seat = seats[slot];
  using enum Closing::Phase;
  if (!seat.closing || seat.closing->epoch != gate_.epoch(slot)) return false;  // its lease goes on, or has come back
  Closing& closing = *seat.closing;
  if (closing.phase == kFrozen) {
    if (os::now() - line.asked_at < kLookAgain) return true;
    line.asked_at = os::now();
    return ordered.send(wire::Request{.slot = slot}), true;
  }
  const bool may_stay = closing.freeze_after && (closing.phase == kClosing || closing.phase == kDraining);
  if (!may_stay && stays == Stays::kIfItMay) return false;
  // A thread may be inside still. Whatever it submits stands still.
  if (closing.phase == kClosing) {
    ordered.send(wire::GateClosed{.slot = slot, .epoch = closing.epoch});
    seat.in_flight.turn_ended();
  }
  closing.phase = kFrozen;
  ordered.send(wire::Drained{.slot = slot, .epoch = closing.epoch, .frozen = 1});
  ordered.send(wire::Request{.slot = slot});
  line.asked_at = os::now();
  return true;
}

// The channels come first: a thread that holds one of our locks may wait for this very work.
void Interrupter::thaw(Line& line) {
  bool has_complained = false;
  while (channels_.thaw(line.gpu) == Channels::Outcome::kRefused) {
    if (!std::exchange(has_complained, true)) complain(line, "the driver refuses to enable its channels again");
    os::futex_wait(line.wakes, line.wakes.load(std::memory_order_acquire), kLookAgain, os::FutexScope::kProcess);
  }
  runs_again(line);
  {
    Seats::Locked seats(seats_);
    std::optional<Closing>& closing = seats[line.slot].closing;
    if (closing && closing->phase == Closing::Phase::kFrozen) {
      closing->phase = Closing::Phase::kDraining;
      closing->freeze_after.reset();
      closing->since = os::now();
    }
  }
  drainer_.wake();
}

void Interrupter::runs_again(Line& line) {
  line.work.store(kRuns, std::memory_order_seq_cst);
  os::futex_wake(line.work, os::FutexScope::kProcess);
}

void Interrupter::complain(const Line& line, const std::string& why) { port_.cannot_interrupt(line.slot, why); }

}  // namespace gpumux::shim
