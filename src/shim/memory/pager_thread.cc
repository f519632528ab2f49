// SPDX-License-Identifier: Apache-2.0
#include "shim/memory/pager_thread.h"

#include <algorithm>
#include <string>

#include "os/futex.h"
#include "os/system_clock.h"
#include "shim/memory/memories.h"

namespace gpumux::shim {
namespace {

using namespace std::chrono_literals;
using pager::JobState;

// A thread that passes the gate wakes the pager thread; this is for a program that is granted a lease and only
// synchronises. A guess: such a program has its memory back a tenth of a second late at most.
constexpr base::Duration kManagedLook = 100ms;
// After frozen work was let go on, to drain. A guess.
constexpr base::Duration kFrozenLook = 100ms;

std::optional<base::Duration> sooner(std::optional<base::Duration> a, std::optional<base::Duration> b) {
  if (!a) return b;
  return b && *b < *a ? b : a;
}

template <class Job>
Move::Step step_job(Job& job, std::uint64_t (Job::*moved)() const) {
  const std::uint64_t before = (job.*moved)();
  const JobState state = job.step();
  const std::uint64_t in_all = (job.*moved)();
  return {.state = state, .moved = in_all - before, .moved_in_all = in_all, .error = job.error()};
}

constexpr bool has(std::uint64_t group, std::uint32_t slot) { return (group >> slot & 1) != 0; }

}  // namespace

PagerThread::PagerThread(const cuda::Driver& driver, gate::Gate& gate, Seats& seats, Memories& memories)
    : driver_(driver), gate_(gate), seats_(seats), memories_(memories) {}

PagerThread::~PagerThread() { stop(); }

base::Status PagerThread::start() {
  const base::Locked locked(pause_mutex_);
  return thread_.start<&PagerThread::run>(this, "cannot create the pager's thread");
}

void PagerThread::stop() {
  if (!thread_.is_started()) return;
  stopping_.store(true, std::memory_order_release);
  wake();
  thread_.join();
  for (Moving& moving : moving_) {
    moving.eviction.reset();
    moving.restoration.reset();
  }
}

void PagerThread::wake() {
  wakes_.fetch_add(1, std::memory_order_release);  // pairs with the acquire in run
  os::futex_wake(wakes_, os::FutexScope::kProcess);
}

void PagerThread::note_change(DeviceMemory& memory) {
  // Once for each report: the pager thread sends it when its time has come.
  if (!memory.changed.exchange(true, std::memory_order_acq_rel)) wake();
}

void PagerThread::run() {
  pthread_setname_np(pthread_self(), "gpumux-pager");
  while (!stopping_.load(std::memory_order_acquire)) {
    const std::uint32_t seen = wakes_.load(std::memory_order_acquire);
    std::optional<base::Duration> sleep;
    for (std::uint32_t slot = 0; slot < seats_.count(); ++slot) {
      DeviceMemory* const memory = memories_.if_any(slot);
      if (memory != nullptr) sleep = sooner(sleep, look_at(*memory, moving_[slot], os::now()));
    }
    if (!sleep || *sleep > 0ns) os::futex_wait(wakes_, seen, sleep.value_or(-1ns), os::FutexScope::kProcess);
  }
}

// ---- what others ask for

void PagerThread::pause(std::uint32_t slot) {
  const base::Locked locked(pause_mutex_);
  ++moving_[slot].paused;
  if (!thread_.is_started()) return;
  wake();
  while (!moving_[slot].idle) pause_mutex_.wait();
}

void PagerThread::resume(std::uint32_t slot) {
  {
    const base::Locked locked(pause_mutex_);
    --moving_[slot].paused;
  }
  wake();
}

void PagerThread::prepare(std::uint32_t slot, std::uint64_t managed) {
  moving_[slot].to_leave.store(managed, std::memory_order_relaxed);
  wake();
}

// ---- one seat

// If not, a thread that pauses it from now on waits for set_idle.
bool PagerThread::is_paused(Moving& moving) {
  const base::Locked locked(pause_mutex_);
  moving.idle = false;
  return moving.paused != 0;
}

void PagerThread::set_idle(Moving& moving) {
  const base::Locked locked(pause_mutex_);
  moving.idle = true;
  pause_mutex_.wake_all();
}

std::optional<base::Duration> PagerThread::look_at(DeviceMemory& memory, Moving& moving, base::TimePoint time) {
  if (is_paused(moving)) {
    // Destroying a job waits for the copies that are under way, and leaves every chunk on one side or the other.
    moving.restoration.reset();
    if (moving.door) end_eviction(memory, moving);
    set_idle(moving);
    return std::nullopt;
  }
  std::optional<base::Duration> next = memory.expire_asking(time);
  memories_.tend_connection(memory);
  const std::optional<base::Duration> job = move(memory, moving, std::nullopt, time);
  next = sooner(next, job);
  next = sooner(next, move_managed(memory, moving, time));
  next = sooner(next, report(memory, moving, time));
  if (!moving.has_job()) set_idle(moving);
  return next;
}

// By the words alone: quick, and asked at each step.
bool PagerThread::may_evict(std::uint64_t group) const {
  for (std::uint32_t slot = 0; slot < seats_.count(); ++slot) {
    if (has(group, slot) && (gate_.is_granted(slot) || gate_.is_ungated(slot))) return false;
  }
  return true;
}

// No thread inside, and all work done. Or the work stands still, and no thread inside needs more than that.
bool PagerThread::is_quiet(std::uint64_t group, LookUps look_ups) {
  gate_.begin_close();
  for (std::uint32_t slot = 0; slot < seats_.count(); ++slot) {
    if (!has(group, slot)) continue;
    if (memories_.owner().stands_still(slot)) {
      if (gate_.is_anybody_holding(slot)) return false;
      if (look_ups == LookUps::kMayBeUnderWay && gate_.is_anybody_looking_up(slot)) return false;
      continue;
    }
    if (gate_.is_anybody_inside(slot)) return false;
    if (seats_.streams(slot).poll(false) == gate::WorkState::kRunning) return false;
  }
  return true;
}

// Steps the seat's job, unless `step` is that of a job that could not begin, and looks at what else its next move
// depends on.
Move::View PagerThread::view_of(DeviceMemory& memory, Moving& moving, std::optional<Move::Step> step) {
  const std::uint32_t slot = memory.slot;
  if (!step && moving.eviction != nullptr) step = step_eviction(moving);
  if (!step && moving.restoration != nullptr) step = step_restoration(memory, moving);
  Move::View view{.excess = memory.is_bounded() ? memory.pager.bounds().excess() : 0,
                  .evicted = memory.pager.evicted_bytes(),
                  .is_broken = memories_.is_broken(slot),
                  .is_shut = moving.door.has_value(),
                  .is_waited_for = gate_.is_granted(slot) || gate_.is_ungated(slot),
                  .patience = give_up_after_.load(std::memory_order_relaxed),
                  .step = step};
  if (step) return view;
  if (view.excess == 0 || view.is_broken) return view;
  // Freed memory goes, even of a holder: nothing uses it. That asks the driver about the program's streams, which may
  // answer only when frozen work goes on.
  if (!memories_.owner().is_frozen(slot) && memory.trim(view.excess) != 0) moving.reports.hurry();
  view.excess = memory.pager.bounds().excess();
  // Before the look: it sees a drain that is over by then, or that drain wakes us.
  waits_for_drain_.store(true, std::memory_order_seq_cst);
  view.may_evict = may_evict(memories_.group(slot));
  return view;
}

Move::Step PagerThread::step_eviction(Moving& moving) {
  Move::Step step = step_job(*moving.eviction, &pager::Eviction::freed_bytes);
  if (step.moved != 0 || is_over(step.state)) moving.reports.hurry();
  if (!is_over(step.state)) return step;
  if (const std::uint64_t blocks = moving.eviction->wrong_hashes(); blocks != 0) {
    memories_.owner().note(wire::Severity::kError,
                           "GPUMUX_VERIFY found " + std::to_string(blocks) +
                               " blocks of memory that had changed although their hash said that they had not. They "
                               "were copied, so nothing is lost. Without GPUMUX_VERIFY the change is lost: report "
                               "this");
  }
  moving.eviction.reset();
  return step;
}

Move::Step PagerThread::step_restoration(DeviceMemory& memory, Moving& moving) {
  Move::Step step = step_job(*moving.restoration, &pager::Restoration::restored_bytes);
  // It may end here for want of room. The daemon takes memory that it is not told of for other programs'.
  if (step.moved != 0) memory.changed.store(true, std::memory_order_release);
  if (step.state == JobState::kRunning || step.state == JobState::kWaiting) return step;
  step.lacks_room = step.state == JobState::kStarved && moving.restoration->lacks_room();
  moving.restoration.reset();
  memories_.update_bars(memory.slot);
  if (step.state == JobState::kDone || step.state == JobState::kCancelled) moving.reports.hurry();
  return step;
}

std::optional<base::Duration> PagerThread::move(DeviceMemory& memory, Moving& moving, std::optional<Move::Step> failed,
                                                base::TimePoint time) {
  const Move::View view = view_of(memory, moving, failed);
  end_hopeless_wait(memory);
  const bool was_stranded = moving.move.is_stranded();
  const Move::Decision next = moving.move.next(view, time);
  strand(memory, was_stranded, moving.move.is_stranded(), view);
  cuda::CUresult error = cuda::CUDA_SUCCESS;
  switch (next.act) {
    case Move::Act::kWait: break;
    case Move::Act::kRest:
      // A free may have taken the last of it.
      if (gate_.is_barred(memory.slot)) memories_.update_bars(memory.slot);
      break;
    case Move::Act::kOpen: end_eviction(memory, moving); break;
    case Move::Act::kEvict: return begin_eviction(memory, moving, view.excess, time);
    case Move::Act::kRestore:
      moving.restoration = memory.pager.begin_restoration(&error);
      // The first step follows at once: a report in between would speak of a job that perhaps has no room.
      if (moving.restoration != nullptr) return move(memory, moving, std::nullopt, time);
      return move(memory, moving, Move::Step{.error = error}, time);
    case Move::Act::kCancel:
      if (moving.eviction != nullptr) moving.eviction->cancel();
      if (moving.restoration != nullptr) moving.restoration->cancel();
      break;
    case Move::Act::kClaim:
      if (!moving.hidden.refused(memory, time - *moving.move.starved_since())) break;
      moving.move.claimed(time);
      moving.reports.hurry();
      break;
    case Move::Act::kRelease:
      moving.hidden.release(memory);
      moving.reports.hurry();
      break;
    case Move::Act::kGiveUp:
      memories_.owner().note(wire::Severity::kError, "the driver cannot bring memory back to the GPU (error " +
                                                         std::to_string(view.step->error) +
                                                         "): the program's next work on it fails");
      memories_.set_broken(memory.slot);
      moving.reports.hurry();
      if (moving.door) end_eviction(memory, moving);
      break;
  }
  return next.again;
}

// A thread that comes to the gate of a stranded seat gets an error. Work that is frozen has no thread there: without
// its memory it faults, and so its program gets one, too.
void PagerThread::end_hopeless_wait(const DeviceMemory& memory) {
  const std::uint32_t slot = memory.slot;
  const bool waits = gate_.is_stranded(slot) && (gate_.is_granted(slot) || gate_.is_ungated(slot)) &&
                     memories_.owner().stands_still(slot) && !memories_.is_broken(slot);
  if (!waits) return;
  memories_.owner().note(wire::Severity::kError,
                         "there is no memory on the GPU for work that was interrupted: the work goes on without it, "
                         "and fails");
  memories_.set_broken(slot);
}

// Work of connected seats may reach this seat's memory, and waits for it. Each try strands them again, for another seat
// of the group may have taken it back since.
void PagerThread::strand(const DeviceMemory& memory, bool was_stranded, bool is_stranded, const Move::View& view) {
  if (!was_stranded && !is_stranded) return;
  const std::uint64_t group = memories_.group(memory.slot);
  for (std::uint32_t slot = 0; slot < seats_.count(); ++slot) {
    if (has(group, slot)) gate_.set_stranded(slot, gate::Gate::StrandedBy::kDriver, is_stranded);
  }
  if (was_stranded) return;
  const bool has_no_mover = view.step && view.step->error == cuda::CUDA_ERROR_NOT_READY;
  memories_.owner().note(
      wire::Severity::kWarning,
      std::string(has_no_mover ? "the node's mover does not run for the " : "the driver has no memory for the ") +
          std::to_string(memory.pager.evicted_bytes()) +
          " bytes that wait to come back to the GPU, although they have room there: the program's "
          "next work on them fails with CUDA_ERROR_OUT_OF_MEMORY");
}

std::optional<base::Duration> PagerThread::begin_eviction(DeviceMemory& memory, Moving& moving, std::uint64_t bytes,
                                                          base::TimePoint time) {
  if (!moving.door) {
    // Shut before the look for threads inside. The lease is not held, so this stops no thread.
    moving.door.emplace(*this);
    memories_.set_evicting(memory.slot, true);
  }
  // A seat that is connected after this finds itself barred.
  const std::uint64_t group = memories_.group(memory.slot);
  const bool has_waited = moving.unquiet_since && time - *moving.unquiet_since >= kLookUpPatience;
  if (!is_quiet(group, has_waited ? LookUps::kAreOver : LookUps::kMayBeUnderWay))
    return make_quiet(memory, moving, time);
  moving.unquiet_since.reset();
  moving.door->group = group;
  cuda::CUresult error = cuda::CUDA_SUCCESS;
  moving.eviction = memory.pager.begin_eviction(*moving.door, bytes, &error);
  if (moving.eviction != nullptr) return 0ns;
  return move(memory, moving, Move::Step{.error = error}, time);
}

// While the gate is barred nothing is thawed. So frozen work that has to go on first finds it open.
std::optional<base::Duration> PagerThread::make_quiet(DeviceMemory& memory, Moving& moving, base::TimePoint time) {
  const std::uint64_t group = memories_.group(memory.slot);
  if (!is_any_frozen(group)) {
    moving.unquiet_since.reset();
    return Move::kDrainLook;
  }
  end_eviction(memory, moving);
  if (!moving.unquiet_since) moving.unquiet_since = time;
  if (time - *moving.unquiet_since < kQuietPatience) return Move::kDrainLook;
  moving.unquiet_since.reset();
  memories_.let_drain(group);
  return kFrozenLook;
}

bool PagerThread::is_any_frozen(std::uint64_t group) const {
  for (std::uint32_t slot = 0; slot < seats_.count(); ++slot) {
    if (has(group, slot) && memories_.owner().is_frozen(slot)) return true;
  }
  return false;
}

void PagerThread::end_eviction(DeviceMemory& memory, Moving& moving) {
  moving.eviction.reset();
  moving.door.reset();
  memories_.set_evicting(memory.slot, false);
}

// ---- managed memory

// Independent of all other moves, and behind no door. Memory that leaves costs its program only speed. So it may go
// while the seat still works, or when it is drained. Only what comes back is asked for with a lease in hand.
std::optional<base::Duration> PagerThread::move_managed(DeviceMemory& memory, Moving& moving, base::TimePoint time) {
  ManagedMemory& managed = memory.managed;
  const std::uint32_t slot = memory.slot;
  const std::uint64_t told = moving.to_leave.exchange(0, std::memory_order_relaxed);
  if (told == 0 && managed.is_at_home()) return std::nullopt;
  // Before the lease is looked at: a thread that passes from here on wakes us.
  out_.fetch_or(slot_bit(slot), std::memory_order_seq_cst);
  const bool has_lease = gate_.is_granted(slot) || gate_.is_ungated(slot);
  switch (moving.managed.next({.told = told, .has_lease = has_lease, .epoch = gate_.epoch(slot)}, time)) {
    case ManagedMove::Decision::kStay: break;
    case ManagedMove::Decision::kLeave: managed.evict(told); break;
    case ManagedMove::Decision::kComeBack: {
      const std::uint64_t others = memory.pager.bounds().used() + memory.outside_bytes();
      const std::uint64_t total = memory.told_total();
      managed.come_back(total - std::min(total, others));
      break;
    }
    case ManagedMove::Decision::kStopComingBack: managed.stop_coming_back(); break;
  }
  const bool was_away = managed.away_bytes() != 0;
  const bool is_moving = managed.step();
  if (was_away != (managed.away_bytes() != 0)) moving.reports.hurry();
  if (is_moving) return Move::kPoll;
  if (!managed.is_at_home()) return kManagedLook;
  out_.fetch_and(~slot_bit(slot), std::memory_order_relaxed);
  return std::nullopt;
}

// ---- reports

std::optional<base::Duration> PagerThread::report(DeviceMemory& memory, Moving& moving, base::TimePoint time) {
  const std::uint64_t used = memory.pager.bounds().used() + memory.outside_bytes();
  const std::uint64_t away = memory.pager.evicted_bytes();
  const bool is_moving = moving.has_job();
  const std::optional<base::Duration> due =
      moving.reports.next({.used = used,
                           .away = away,
                           .is_moving = is_moving,
                           .has_unreported_room = memory.has_unreported_room(),
                           .has_changed = memory.changed.load(std::memory_order_acquire)},
                          time);
  if (!due || *due > 0ns) return due;
  if (!memories_.owner().is_frozen(memory.slot)) memory.count_pools();  // as above
  // Before it is counted: what changes from here on is reported the next time.
  memory.changed.store(false, std::memory_order_seq_cst);
  const std::uint32_t flags =
      (is_moving ? wire::kMemoryBusy : 0) | (moving.move.is_stuck(time) ? wire::kMemoryStuck : 0);
  memories_.send_report(memory, flags);
  moving.reports = Reports(time, used, away);
  return std::nullopt;
}

}  // namespace gpumux::shim
