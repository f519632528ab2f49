// SPDX-License-Identifier: Apache-2.0
// The interrupter: freezes work of revoked seats that does not finish by itself, and thaws it.
//
// A seat that is revoked closes its gate and drains (drainer.h). The daemon may say that work which has not finished
// after a moment is to be frozen. Then the interrupter has the driver take it off the GPU in the middle (channels.h),
// and tells the daemon that nothing runs any more.
//
// clang-format off
//   revoked, not drained in time -> frozen: GateClosed, Drained (frozen), Request
//   frozen -> thawed by the next grant; when the seat runs ungated; or, its gate still closed, to drain
// clang-format on
//
// A frozen seat waits for its lease as one whose thread waits at the gate. Threads that wait for the GPU wait on. One
// that is inside the gate, in a launch that finds no room, may stay there: what it submits stands still, too.
//
// Memory of a frozen seat leaves and comes back: a process of its own moves it (pager/mover_link.h). Nothing is thawed
// before all of it is there. Where a thread is in the way of that, the eviction asks the seat to drain.
//
// Each seat has a thread of its own, which begins when the seat is first revoked that way. The driver's call takes a
// millisecond, and may wait for other calls. And while a seat is frozen its thread sleeps on the lease word, for grants
// come there and nowhere else.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "base/limits.h"
#include "client/agent.h"
#include "gate/gate.h"
#include "os/thread.h"
#include "shim/process/channels.h"
#include "shim/process/seats.h"
#include "shim/tenant/drainer.h"

namespace gpumux::shim {

class Interrupter {
 public:
  // Called on the interrupter's threads.
  struct Port {
    // Why the seat's work drains, each time that it was to be frozen.
    virtual void cannot_interrupt(std::uint32_t slot, const std::string& why) = 0;
    // Its kernels may fault on unified memory. It is not known whether faults are served in the middle of a freeze.
    virtual bool may_fault(std::uint32_t slot) = 0;
    // The seat is frozen and has asked for its lease, a while ago or more.
    virtual void waits_frozen(std::uint32_t slot) = 0;
    // Memory that the seat's work can reach is away, or about to leave, and its work may not go on without it.
    virtual bool is_memory_away(std::uint32_t slot) = 0;

   protected:
    ~Port() = default;
  };

  Interrupter(Port& port, gate::Gate& gate, Seats& seats, client::Agent& agent, Drainer& drainer, Channels& channels);
  ~Interrupter();  // in tests; thaws, and stops the threads
  Interrupter(const Interrupter&) = delete;
  Interrupter& operator=(const Interrupter&) = delete;

  // Any thread: a closing has begun that may end in a freeze, or a frozen seat's standing has changed.
  void wake(std::uint32_t slot);

  // Any thread, without the seats' lock: the seat's work must come to its end, for its memory is to leave. Work that
  // was to be frozen is not. Frozen work goes on behind the closed gate and drains.
  void let_drain(std::uint32_t slot);

  // Any thread: memory that was away may be there.
  void memory_came(std::uint32_t slot);

  // Any thread, without the seats' lock: returns when the seat's work is not frozen, and it will not be until `let`.
  // Frozen work waits for its next lease. Counted.
  void hold_off(std::uint32_t slot);
  void let(std::uint32_t slot) { held_off_[slot].fetch_sub(1, std::memory_order_seq_cst); }

  // Any thread: its work is frozen, or is about to be, or is being thawed.
  bool is_frozen(std::uint32_t slot) const;
  // Any thread: its work is frozen, and stays so for as long as is_memory_away. To be asked after that has begun.
  bool stands_still(std::uint32_t slot) const;

 private:
  // Of a seat's work. (A thread sleeps on it.)
  enum Work : std::uint32_t {
    kRuns,
    kFreezing,  // or stuck in the middle of that
    kFrozen,
    kThawing,
  };
  // A seat's. All but the atomics are its thread's.
  struct Line {
    Interrupter* owner = nullptr;
    std::uint32_t slot = 0;
    os::Thread thread;
    std::atomic<std::uint32_t> wakes{0};
    std::atomic<std::uint32_t> work{kRuns};
    std::atomic<bool> must_drain{false};
    std::uint32_t gpu = 0;       // as Channels names it; from the first freeze on
    std::uint64_t tried = 0;     // the last closing that was to be frozen
    bool has_frozen = false;     // it has worked once: this driver does it
    base::TimePoint asked_at{};  // for its lease, while frozen

    void run() { owner->run(*this); }
  };

  void run(Line& line);
  base::Duration look_at(Line& line);
  bool must_thaw(const Line& line) const;
  void freeze(Line& line, const Closing& seen);
  void say_closed(Line& line, const Closing& seen);
  enum class Stays : std::uint8_t { kIfItMay, kAnyway };
  bool say_frozen(Line& line, Stays stays);
  bool begin_thaw(Line& line);
  static void runs_again(Line& line);
  bool is_held_off(std::uint32_t slot) const { return held_off_[slot].load(std::memory_order_seq_cst) != 0; }
  void thaw(Line& line);
  void complain(const Line& line, const std::string& why);

  Port& port_;
  gate::Gate& gate_;
  Seats& seats_;
  client::Agent& agent_;
  Drainer& drainer_;
  Channels& channels_;
  const bool has_profiler_;
  std::atomic<bool> stopping_{false};
  std::array<std::atomic<std::uint32_t>, base::kMaxSeatsPerTenant> held_off_{};
  base::Mutex mutex_;  // making lines
  std::array<std::atomic<Line*>, base::kMaxSeatsPerTenant> lines_{};
};

}  // namespace gpumux::shim
