// SPDX-License-Identifier: Apache-2.0
// Where messages and the lease core meet: only the translator knows both.
//
// A tenant's bytes become events, the core's commands become words in lease pages and messages. Everything that a
// tenant says is checked here or ignored by the core; an error returned from receive() ends that session and nothing
// else.
//
// Owned by the loop's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "daemon/gpus/leases.h"
#include "daemon/gpus/trials.h"
#include "daemon/peers/access.h"
#include "daemon/peers/closer.h"
#include "daemon/tenants/host_memory.h"
#include "daemon/tenants/mover_seats.h"
#include "daemon/tenants/ports.h"
#include "daemon/tenants/quotas.h"
#include "daemon/tenants/run_suspension.h"
#include "daemon/tenants/session.h"
#include "daemon/tenants/standings.h"
#include "daemon/tenants/tenant_mail.h"
#include "daemon/tenants/tenant_table.h"
#include "daemon/tenants/unknown_entries.h"
#include "daemon/tenants/use_books.h"
#include "os/file_descriptor.h"

namespace gpumux::daemon {

class Translator {
 public:
  Translator(Leases& leases, Trials& trials, const AccessRules& access, HostMemory& host,
             settings::OnDaemonLoss on_daemon_loss);
  Translator(const Translator&) = delete;
  Translator& operator=(const Translator&) = delete;

  // From now on seats are connected to the node's mover. Before the first tenant.
  void set_mover(NodeMover& mover) { mover_seats_.set_mover(mover); }
  // Why no mover serves; empty: one does, or none is needed yet. The memory of seats that are connected to it counts as
  // unpageable until it does. To be followed by Leases::rest.
  void set_why_no_mover(std::string why);
  const std::string& why_no_mover() const { return mover_seats_.why_none(); }

  // Called when a tenant has said Hello, has opened or closed a seat, or has been parked or resumed with its run.
  void on_tenant_changed(std::function<void(const Session&)> callback) { table_.on_changed(std::move(callback)); }

  // Why no program's work is frozen on this machine; empty: nothing speaks against it. Before the first tenant.
  void set_no_interrupts(std::string why) { no_interrupts_ = std::move(why); }

  // Called when a tenant asks for MPS; without a callback the library does not ask.
  void on_mps_asked(std::function<base::Status(Session&, const wire::MpsAsked&)> callback) {
    mps_.asked = std::move(callback);
  }

  // Called when a lease is about to change hands (true: a message that must not wait is on its way), and when one has.
  void on_hand_over(std::function<void(bool near)> callback) { hand_over_ = std::move(callback); }

  // All seats of a user's run are held off the GPUs, also those that come later, until it is resumed
  // (run_suspension.h). To be followed by Leases::rest, as everything else.
  void suspend_run(uid_t uid, const std::string& run) { suspension_.set_suspended({uid, run}, true); }
  void resume_run(uid_t uid, const std::string& run) { suspension_.set_suspended({uid, run}, false); }
  RunState run_state(uid_t uid, const std::string& run) const { return suspension_.state({uid, run}); }
  // Called when that of a suspended run has changed, while everything comes to rest: must not call back. Each run that
  // is suspended is named at least once.
  void on_run_changed(std::function<void(uid_t, const std::string&)> callback) {
    suspension_.on_changed(std::move(callback));
  }
  // Nothing of its run is on its way any more, and its processes may be frozen.
  bool is_parked(const Session& session) const { return suspension_.is_parked(session); }
  // By GPU index: the memory of tenants that belong to none of these runs.
  std::vector<RunMemory> memory_outside(const std::set<RunKey>& runs) const { return suspension_.memory_outside(runs); }

  // The priority that a user's run may have beyond the one that any run may ask for, which is 0.
  void set_granted_priority(std::function<std::int32_t(uid_t, const std::string&)> granted) {
    jobs_.granted_priority = std::move(granted);
  }

  void set_run_priority(uid_t uid, const std::string& run, std::int32_t priority) {
    standings_.set_run_priority(uid, run, priority);
  }

  using Caps = Standings::Caps;
  Caps caps_of(const Peer& peer, const std::string& run) const { return standings_.caps_of(peer, run); }
  void set_container_of(Standings::ContainerOf container_of) { standings_.set_container_of(std::move(container_of)); }

  // Whether seats that are opened now may be those of tenants that come back after a restart of the daemon.
  void set_tenants_return(bool may_return) { tenants_return_ = may_return; }

  // A new connection. The session must live until ended().
  void started(Session& session) { table_.add(session); }
  // Whether a descriptor may come along with this message.
  static bool takes_descriptor(const Session& session, std::span<const std::byte> message);
  // One message. An error ends the session: its text is the reason.
  base::Status receive(Session& session, std::span<const std::byte> message, ForeignDescriptor fd);
  // The session is over. `why`: a literal.
  void ended(Session& session, std::string_view why);

  // Sessions that could not be written to since the last call: to be ended by the caller.
  std::vector<base::TenantId> take_unwritable() { return mail_.take_unwritable(); }

  base::Status change_standing(Session& session, const base::Standing& wanted, const Peer& by) {
    return standings_.change(session, wanted, by);
  }

  // Tells a peer why it is not wanted, before or instead of its Hello.
  static void refuse(Session& session, wire::Reason reason, std::string_view text);

  void set_on_daemon_loss(settings::OnDaemonLoss on_loss) { on_daemon_loss_ = on_loss; }
  Session* find(base::TenantId tenant) const { return table_.find(tenant); }
  const std::map<std::string, UnknownEntry>& unknown_entries() const { return unknown_entries_.by_name(); }
  const std::unordered_map<base::TenantId, Session*>& sessions() const { return table_.sessions(); }
  const Trials& trials() const { return trials_; }
  // After each Leases::rest().
  void settled() { suspension_.look(); }
  const HostMemory& host_memory() const { return host_; }
  // Whether that process was a tenant a moment before `asked_at`: a list of a GPU's processes that was made then may
  // still have it.
  bool was_tenant(pid_t pid, base::TimePoint asked_at) const { return table_.was_tenant(pid, asked_at); }
  // A mover of this daemon's.
  bool is_mover(pid_t pid) const { return mover_seats_.is_mover(pid); }
  // The MPS servers that this daemon has started.
  std::vector<MpsServerView> mps_servers() const { return mps_.servers(); }
  void set_mps_servers(std::function<std::vector<MpsServerView>()> servers) { mps_.servers = std::move(servers); }
  // The memory that was moved by seats that are gone.
  const MovedMemory& moved_before(base::GpuIndex gpu) const { return books_.moved_before(gpu); }
  // The figures of all programs so far, those of the last minutes included (ledger.h).
  std::vector<LedgerLine> ledger() { return books_.ledger(); }
  // The figures that have come since the last call.
  std::vector<LedgerLine> take_from_ledger() { return books_.take_from_ledger(); }
  // About once a second: notes how long each seat has used its GPU.
  void note_use() { books_.note_use(); }
  const RecentUse& recent_use() const { return books_.recent_use(); }
  // By job (job_memory.h).
  std::map<std::uint64_t, std::uint64_t> take_peaks() { return books_.take_peaks(); }
  // The job that a user's run is of; 0: none. Asked when a seat is opened.
  void set_job_of(std::function<std::uint64_t(uid_t, const std::string&)> job_of) { jobs_.job_of = std::move(job_of); }

 private:
  base::Status on(Session& session, const wire::Hello& hello, ForeignDescriptor fd);
  base::Status on(Session& session, const wire::SeatOpen& open);
  base::Status on(Session& session, const wire::GangJoin& join);
  base::Status on(Session& session, const wire::Note& note);
  base::Status on(Session& session, const wire::RoomWanted& wanted);
  // Of libraries that borrow host memory for themselves: there is none for them, and what they have stays on the GPU.
  static base::Status on(Session&, const wire::HostWanted&) { return {}; }
  static base::Status on(Session&, const wire::HostReturned&) { return {}; }
  static base::Status on(Session&, const wire::HostForgotten&) { return {}; }
  static base::Status on(Session&, const wire::FrameGiven&, ForeignDescriptor) { return {}; }
  static base::Status on(Session&, const wire::FrameWanted&) { return {}; }
  static base::Status on(Session&, const wire::FrameFreed&) { return {}; }
  base::Status on(Session& session, const wire::MpsAsked& asked);
  // These are of a seat that is open. receive() ignores them of others.
  void on(Session& session, Slot& slot, const wire::SeatClose& close);
  void on(Session& session, Slot& slot, const wire::Request& request);
  void on(Session& session, Slot& slot, const wire::RevokeSeen& seen);
  void on(Session& session, Slot& slot, const wire::GateClosed& closed);
  void on(Session& session, Slot& slot, const wire::Drained& drained);
  void on(Session& session, Slot& slot, const wire::Stepped& stepped);
  void on(Session& session, Slot& slot, const wire::Idling& idling);
  void on(Session& session, Slot& slot, const wire::Memory& memory);
  void on(Session& session, Slot& slot, const wire::Measured& measured);
  void on(Session& session, Slot& slot, const wire::MoverWanted& wanted);

  void ask_measure(base::SeatId seat, std::uint32_t question);
  void refuse_seat(Session& session, std::uint32_t slot, wire::Reason reason, std::string_view text);
  void closed_by_tenant(Session& session, Slot& slot, base::LeaseEpoch epoch);
  void claim(Session& session, Slot& slot, const wire::SeatOpen& open);
  void send_contention(Session& session, const Slot& slot, bool contended, settings::Limit<base::Duration> idle_hold);
  void carry_out(const sched::Command& command);
  template <class Command>
  void carry_out(const Command& command);
  void carry_out(const sched::KillTenant& command);
  void carry_out(const node::ModeChanged&) {}     // only shown
  void carry_out(const node::TurnsForMemory&) {}  // only shown
  void carry_out(Session& session, Slot& slot, const sched::Grant& grant);
  void carry_out(Session& session, Slot& slot, const sched::Revoke& revoke);
  void carry_out(Session& session, Slot& slot, const sched::HeadsUp& heads_up);
  void carry_out(Session& session, Slot& slot, const sched::Contention& contention);
  void carry_out(Session& session, Slot& slot, const sched::RoomBound& bound);
  void carry_out(Session& session, Slot& slot, const sched::ExpectEviction& eviction);
  void carry_out(Session&, Slot&, const sched::ReportStall&) {}      // only shown
  void carry_out(Session&, Slot&, const sched::ReportSilent&) {}     // only shown
  void carry_out(Session&, Slot&, const sched::ReportAnswering&) {}  // only shown

  Leases& leases_;
  Trials& trials_;
  HostMemory& host_;
  bool tenants_return_ = false;
  const AccessRules& access_;
  settings::OnDaemonLoss on_daemon_loss_;
  JobPort jobs_;
  MpsPort mps_;
  std::function<void(bool)> hand_over_;
  TenantTable table_;
  TenantMail mail_;
  Quotas quotas_;
  UseBooks books_;
  Standings standings_;
  MoverSeats mover_seats_;
  RunSuspension suspension_;
  UnknownEntries unknown_entries_;
  std::string no_interrupts_;
};

}  // namespace gpumux::daemon
