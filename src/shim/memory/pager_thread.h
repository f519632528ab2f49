// SPDX-License-Identifier: Apache-2.0
// The pager thread: the thread that takes each seat's memory to where its bounds want it, and reports how far it has
// come.
//
//   above its room, and drained            -> evict
//   below its room, and something evicted  -> restore, lease or not
//
// It is apart from the drainer because moving takes long. A call that maps or pins a chunk lasts a millisecond, and
// longer if the driver is busy. A revocation of another seat must not wait for it. One thread serves all seats: jobs
// are stepped in turn, about a millisecond at a time, and the copying is the GPU's.
//
// Evicting begins only behind three doors. The lease is not held (the daemon's word). The gate is barred (the library's
// own word, so a lease given in between lets no thread in). After a barrier no thread is inside and all noted work is
// done. While it goes on, a lease that is given ends it: a holder wants its memory back.
//
// Three objects decide for each seat what comes next: Move, ManagedMove and Reports. They call no driver and
// no gate, and read no clock. The pager thread looks at the seat, asks them, and carries out what they say.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>

#include "base/limits.h"
#include "base/lock.h"
#include "base/result.h"
#include "os/thread.h"
#include "pager/pager.h"
#include "shim/memory/device_memory.h"
#include "shim/memory/managed_move.h"
#include "shim/memory/move.h"
#include "shim/memory/reports.h"
#include "shim/process/seats.h"

namespace gpumux::gate {
class Gate;
}

namespace gpumux::shim {

class Memories;
class DeviceMemory;

class PagerThread {
 public:
  PagerThread(const cuda::Driver& driver, gate::Gate& gate, Seats& seats, Memories& memories);
  ~PagerThread();
  PagerThread(const PagerThread&) = delete;
  PagerThread& operator=(const PagerThread&) = delete;

  base::Status start();
  // In tests.
  void stop();
  void give_up_after(base::Duration duration) { give_up_after_ = duration; }

  // Any thread: a bound, a lease or what is allocated has changed.
  void wake();

  // Something of a seat's has changed that people want to see.
  void note_change(DeviceMemory& memory);
  // The drainer: a seat is drained.
  void on_drained() {
    if (waits_for_drain_.exchange(false, std::memory_order_acq_rel)) wake();
  }

  // Returns when no job of this seat's runs, and none will until resume. Counted. Not from the pager thread.
  void pause(std::uint32_t slot);
  void resume(std::uint32_t slot);

  // The seat is likely to have to evict soon, and `managed` bytes of its managed memory are in the way. 0: no longer.
  void prepare(std::uint32_t slot, std::uint64_t managed);
  // A thread has passed the gate the long way, as the first one after a grant does. Managed memory that is wanted back
  // then comes back.
  void on_passed(std::uint32_t slot) {
    if ((out_.load(std::memory_order_relaxed) >> slot & 1) != 0) wake();
  }

 private:
  // A program with the lease waits no longer than this for memory that the driver does not bring back, after any number
  // of tries. A guess: much longer than the driver takes to return a dead process's memory, and as long as the planner
  // waits for anything to move (sched: kRoomPatience), so that other seats can make way before.
  static constexpr base::Duration kGiveUpAfter = std::chrono::seconds(10);

  // Threads inside may be in the way of an eviction beside frozen work. One that is to look addresses up in the driver
  // does so at once, or waits there for that very work, with the lookup behind it. A guess: longer than a turn of the
  // kernel's scheduler. A later lookup fails, and the call is made again.
  static constexpr base::Duration kLookUpPatience = std::chrono::milliseconds(3);
  // One that needs addresses for longer may wait for that work, too. Then it goes on and drains. A guess.
  static constexpr base::Duration kQuietPatience = std::chrono::milliseconds(100);

  // The gate is shut for an eviction.
  class Door final : public pager::DrainedSeat {
   public:
    explicit Door(const PagerThread& thread) : thread_(thread) {}
    bool still_drained() const override { return thread_.may_evict(group); }
    std::uint64_t group = 0;

   private:
    const PagerThread& thread_;
  };
  // The pager thread's state of a seat. Its own thread owns it, except where a comment says otherwise.
  struct Moving {
    bool has_job() const { return eviction != nullptr || restoration != nullptr; }

    Move move;
    ManagedMove managed;
    Reports reports;
    std::optional<Door> door;
    std::unique_ptr<pager::Eviction> eviction;
    std::unique_ptr<pager::Restoration> restoration;
    HiddenClaim hidden;                            // for memory that waits to be restored
    std::optional<base::TimePoint> unquiet_since;  // a thread is in the way of an eviction beside frozen work
    std::uint32_t paused = 0;                      // under PagerThread::pause_mutex_, as the next
    bool idle = true;
    std::atomic<std::uint64_t> to_leave{0};  // managed memory, as told; the pager thread takes it
  };
  void run();
  bool is_paused(Moving& moving);
  void set_idle(Moving& moving);
  std::optional<base::Duration> look_at(DeviceMemory& memory, Moving& moving, base::TimePoint now);
  Move::View view_of(DeviceMemory& memory, Moving& moving, std::optional<Move::Step> step);
  Move::Step step_eviction(Moving& moving);
  Move::Step step_restoration(DeviceMemory& memory, Moving& moving);
  std::optional<base::Duration> move(DeviceMemory& memory, Moving& moving, std::optional<Move::Step> failed,
                                     base::TimePoint now);
  std::optional<base::Duration> begin_eviction(DeviceMemory& memory, Moving& moving, std::uint64_t bytes,
                                               base::TimePoint now);
  void end_hopeless_wait(const DeviceMemory& memory);
  void strand(const DeviceMemory& memory, bool was_stranded, bool is_stranded, const Move::View& view);
  void end_eviction(DeviceMemory& memory, Moving& moving);
  std::optional<base::Duration> move_managed(DeviceMemory& memory, Moving& moving, base::TimePoint now);
  std::optional<base::Duration> report(DeviceMemory& memory, Moving& moving, base::TimePoint now);
  bool may_evict(std::uint64_t group) const;
  enum class LookUps : std::uint8_t { kMayBeUnderWay, kAreOver };
  bool is_quiet(std::uint64_t group, LookUps look_ups);
  bool is_any_frozen(std::uint64_t group) const;
  std::optional<base::Duration> make_quiet(DeviceMemory& memory, Moving& moving, base::TimePoint now);

  const cuda::Driver& driver_;
  gate::Gate& gate_;
  Seats& seats_;
  Memories& memories_;
  std::array<Moving, base::kMaxSeatsPerTenant> moving_;
  std::atomic<base::Duration> give_up_after_{kGiveUpAfter};
  std::atomic<bool> waits_for_drain_{false};
  std::atomic<std::uint64_t> out_{0};  // seats with managed memory that must come back, as bits
  os::Thread thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint32_t> wakes_{0};
  base::Mutex pause_mutex_;  // threads that wait for a seat to be idle wait at it
};

}  // namespace gpumux::shim
