// SPDX-License-Identifier: Apache-2.0
// The drainer: the thread that closes gates, watches the GPU finish, and gives up leases that are not used.
//
// It is apart from the agent because it calls the driver, which may make it wait (for a lock that a blocked launch
// holds, say). The agent must answer the daemon all the same. Nothing that opens a gate needs either of them.
//
// For each seat:
// clang-format off
//   revoked    -> process barrier; wait until no thread is in; GateClosed -> ask the streams until done; Drained
//   contended  -> no thread in, no new passage and the streams done for the whole idle hold: clear the word, then look
//                 again and send Drained
//   given up   -> as revoked: the program does so itself (lock_modes.h)
// clang-format on
#pragma once

#include <atomic>
#include <optional>

#include "base/result.h"
#include "client/agent.h"
#include "gate/gate.h"
#include "os/spin.h"
#include "os/thread.h"
#include "shim/process/seats.h"
#include "shim/tenant/lock_modes.h"

namespace gpumux::shim {

class Drainer {
 public:
  Drainer(gate::Gate& gate, Seats& seats, LockModes& lock_modes, client::Agent& agent);
  Drainer(const Drainer&) = delete;
  Drainer& operator=(const Drainer&) = delete;
  ~Drainer();  // in tests; stops the thread

  base::Status start();

  // Any thread: something has changed (a revocation, contention).
  void wake();

  // Any thread: the program has waited for its GPU, which others wait for, and may be idle now. After several false
  // alarms in a row, the drainer's own looks nearly always find it. Waking the drainer costs a short step as much as
  // several launches.
  void synchronised(std::uint32_t slot);

  // The agent: a revocation has been noted. Closes the gate if no thread is inside, and says so, without the time that
  // it takes to wake the drainer. Never calls the driver.
  void close_at_once(std::uint32_t slot, std::uint64_t epoch);

  // Any thread, not inside the gate: the program gives its lease up, if it has one. Its gate is closed, and what it has
  // submitted runs out; then the daemon is told that it is drained.
  void give_up(std::uint32_t slot);

  // The function to call, on the drainer's thread, when a seat is drained. Before start.
  void on_drained(void (*call)(void* argument), void* argument) {
    drained_call_ = call;
    drained_argument_ = argument;
  }

 private:
  void run();
  // Each returns when the seat wants to be looked at again; nothing: only after a wake. `seen`: the seat's closing, as
  // it stood when the look at the seat began.
  void wait(std::uint32_t seen, std::optional<base::Duration> duration);
  std::optional<base::Duration> look_at(std::uint32_t slot, base::TimePoint now);
  std::optional<base::Duration> close(std::uint32_t slot, const Closing& seen, base::TimePoint now);
  std::optional<base::Duration> drain(std::uint32_t slot, const Closing& seen, base::TimePoint now);
  std::optional<base::Duration> watch_idleness(std::uint32_t slot, base::TimePoint now);
  bool close_gate(std::uint32_t slot, std::uint64_t epoch);
  gate::WorkState look_at_work(std::uint32_t slot);
  void release(std::uint32_t slot);
  void ask_for_waiting(std::uint32_t slot);

  gate::Gate& gate_;
  Seats& seats_;
  LockModes& lock_modes_;
  client::Agent& agent_;
  os::Thread thread_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint32_t> wakes_{0};
  void (*drained_call_)(void*) = nullptr;
  void* drained_argument_ = nullptr;
  os::SpinBudget spinning_;  // the drainer's thread
};

}  // namespace gpumux::shim
