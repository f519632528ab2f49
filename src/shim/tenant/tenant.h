// SPDX-License-Identifier: Apache-2.0
// This process as a tenant: its lease page, gate, seats, agent and drainer, tied together. Made when the process first
// creates a context or submits work, and begun afresh in a forked child. Never destroyed, because programs call CUDA
// until their last instruction.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "client/agent.h"
#include "client/lease_page_memory.h"
#include "gate/gate.h"
#include "shim/memory/memories.h"
#include "shim/process/seats.h"
#include "shim/process/settings.h"
#include "shim/tenant/captures.h"
#include "shim/tenant/drainer.h"
#include "shim/tenant/interrupter.h"
#include "shim/tenant/lock_modes.h"
#include "shim/tenant/mps.h"

namespace gpumux::shim {

class Tenant final : public client::SeatPort, public Memories::Owner, public Interrupter::Port {
 public:
  // Ready to use; threads and connection begin with the first seat. `page` null: no lease page could be made,
  // everything is ungated.
  Tenant(const cuda::Driver& driver, Settings settings, client::LeasePageMemory page, std::string socket_path = {});
  ~Tenant();

  gate::Gate& gate() { return gate_; }
  Seats& seats() { return seats_; }
  Drainer& drainer() { return drainer_; }
  Memories& memories() { return memories_; }
  LockModes& lock_modes() { return lock_modes_; }
  const cuda::Driver& driver() const { return driver_; }

  // Before the driver is initialised, on a thread of the program's: returns when it is settled whether this process is
  // a client of MPS.
  void settle_mps();

  // The seat on the GPU of `context`, opened if need be. Nothing: no such device, or no room: the call goes ungated to
  // the driver.
  std::optional<std::uint32_t> seat_of(cuda::CUcontext context);
  std::optional<std::uint32_t> seat_of_device(cuda::CUdevice device);

  // A context was made. While there has been only one, every default stream is its: submissions need not ask the
  // driver.
  void note_context(cuda::CUcontext context);
  bool is_only_context(cuda::CUcontext context) const {
    return only_context_.load(std::memory_order_acquire) == context;
  }

  // This process's GPUs belong together from now on (peers). Sharing memory: those of its launch, too.
  void join_own_gang();
  void join_sharing_gang();

  // Work of one seat may reach the memory of the other, or is launched as the other's, from now on.
  void belong_together(std::uint32_t a, std::uint32_t b);

  // An entry that the table does not know was handed to the program.
  void report_unknown_entry(const char* name);

  // To the daemon's log and GPUMUX_LOG.
  void note(wire::Severity severity, const std::string& text) override;
  std::uint64_t submissions(std::uint32_t slot) const;

  void close_after_fork();

  // Around a call that waits for the seat's work while no memory of it moves: frozen work may need its memory back.
  void hold_off_freezing(std::uint32_t slot) { interrupter_.hold_off(slot); }
  void let_freeze(std::uint32_t slot) { interrupter_.let(slot); }

  // While there is any, no thread passes by the short way.
  Captures& captures() { return captures_; }

  // Memories::Owner.
  void let_drain(std::uint32_t slot) override { interrupter_.let_drain(slot); }
  bool stands_still(std::uint32_t slot) override { return interrupter_.stands_still(slot); }
  void memory_came(std::uint32_t slot) override { interrupter_.memory_came(slot); }
  bool is_frozen(std::uint32_t slot) override { return interrupter_.is_frozen(slot); }

  // Interrupter::Port.
  void cannot_interrupt(std::uint32_t slot, const std::string& why) override;
  bool may_fault(std::uint32_t slot) override { return memories_.has_unified(slot); }
  void waits_frozen(std::uint32_t) override { tell_of_waiting(); }
  bool is_memory_away(std::uint32_t slot) override { return memories_.is_memory_away(slot); }

  // client::SeatPort, on the agent's thread.
  void on_connected(const wire::Welcome& welcome, bool again) override;
  void announce_seats() override;
  void on_message(const wire::DaemonMessage& message, os::FileDescriptor fd) override;
  void on_second() override;
  void on_closed_by_program(const std::string& what) override;
  void on_lost() override;
  void on_ungated(const std::string& why) override;

 private:
  // kJoined: the daemon has not been told on this connection.
  enum class Membership : std::uint8_t { kNone, kJoined, kTold };

  static void request(void* self, std::uint32_t slot);
  void announce(client::Agent::Announcement& announcement, std::uint32_t slot, Seat& seat);
  void handle(const wire::Revoke& message);
  void handle(const wire::Reopen& message);
  void handle(const wire::Step& message);
  void handle(const wire::Contention& message);
  void handle(const wire::SeatOpened& message) { memories_.on_opened(message.slot); }
  void handle(const wire::Room& message) { memories_.on_room(message); }
  void handle(const wire::MoverOpened& message, os::FileDescriptor& connection) {
    memories_.on_mover_opened(message, std::move(connection));
  }
  template <class Message>
  void handle(const Message& message, os::FileDescriptor&) {  // all other messages come without a descriptor
    handle(message);
  }
  // Of daemons that lend host memory to programs: this one needs none.
  void handle(const wire::HostLent&) {}
  void handle(const wire::HostForget&) {}
  void handle(const wire::HostSpare&) {}
  void handle(const wire::FrameLent&) {}
  void handle(const wire::PrepareSwapOut& message);
  void handle(const wire::Measure& message);
  void handle(const wire::SeatRefused& message);
  void handle(const wire::MpsAnswered& message) { mps_.on_answer(message); }
  void handle(const wire::Welcome&) {}
  void handle(const wire::Refused& message);
  void start_once();
  void bound_in_flight();
  void tell_of_waiting();
  void run_ungated();
  void set_ungated(std::uint32_t slot);
  void join(std::atomic<Membership>& gang);
  void announce_gangs(client::Agent::Announcement& announcement);

  const cuda::Driver& driver_;
  const Settings settings_;
  client::LeasePageMemory page_;
  gate::Gate gate_;
  Seats seats_;
  LockModes lock_modes_;
  Captures captures_;
  Mps mps_;
  Memories memories_;  // outlives the agent, whose thread calls it
  client::Agent agent_;
  Drainer drainer_;
  Interrupter interrupter_;
  std::atomic<wire::OnDaemonLoss> on_daemon_loss_{wire::OnDaemonLoss::kWait};
  std::atomic<bool> ungated_{false};
  std::atomic<base::TimePoint> lost_at_{base::TimePoint()};  // the daemon; the beginning of time: it is there
  std::atomic<bool> told_of_waiting_{false};
  std::atomic<bool> told_of_no_interrupts_{false};
  std::atomic<cuda::CUcontext> only_context_{nullptr};  // no context's handle after several; set under start_mutex_
  // Any thread joins; only the agent's tells.
  std::atomic<Membership> own_gang_{Membership::kNone};
  std::atomic<Membership> sharing_gang_{Membership::kNone};
  base::Mutex start_mutex_;
  bool started_ GPUMUX_GUARDED_BY(start_mutex_) = false;
};

// The process's tenant; null before it is needed, and in a process that gpumux is disabled in.
Tenant* tenant_if_any();
Tenant* tenant();

// As Tenant::settle_mps(), at the process's first call. Makes no tenant where MPS is out of the question.
void settle_mps();

}  // namespace gpumux::shim
