// SPDX-License-Identifier: Apache-2.0
// Where messages and the node machine meet: only the translator knows both.
//
// A tenant's bytes become events, the machine's commands become words in lease pages and messages. Everything that a
// tenant says is checked here or ignored by the core; an error returned from receive() ends that session and nothing
// else. All else that the daemon knows about tenants lies in the parts (tenant_parts.h).
//
// Owned by the loop's thread.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/ids.h"
#include "base/result.h"
#include "daemon/gpus/leases.h"
#include "daemon/gpus/trials.h"
#include "daemon/peers/closer.h"
#include "daemon/tenants/session.h"
#include "daemon/tenants/tenant_parts.h"
#include "sched/events.h"
#include "server/peers/access.h"
#include "wire/messages.h"

namespace gpumux::daemon {

template <class Type, class... Types>
concept OneOf = (std::same_as<Type, Types> || ...);

class Translator {
 public:
  Translator(Leases& leases, Trials& trials, const server::AccessRules& access, TenantParts& parts,
             settings::OnDaemonLoss on_daemon_loss);
  Translator(const Translator&) = delete;
  Translator& operator=(const Translator&) = delete;

  void set_on_daemon_loss(settings::OnDaemonLoss on_loss) { on_daemon_loss_ = on_loss; }
  // Why no program's work is frozen on this machine; empty: nothing speaks against it. Before the first tenant.
  void set_no_interrupts(std::string why) { no_interrupts_ = std::move(why); }
  // Whether seats that are opened now may be those of tenants that come back after a restart of the daemon.
  void set_tenants_return(bool may_return) { tenants_return_ = may_return; }
  // Called when a lease is about to change hands (true: a message that must not wait is on its way), and when one has.
  void on_hand_over(std::function<void(bool near)> callback) { hand_over_ = std::move(callback); }

  // Whether a descriptor may come along with this message.
  static bool takes_descriptor(const Session& session, std::span<const std::byte> message);
  // One message. An error ends the session: its text is the reason. REQUIRES: the session is in the table.
  base::Status receive(Session& session, std::span<const std::byte> message, ForeignDescriptor fd);
  // The session is over: all parts forget it. `why`: a literal.
  void ended(Session& session, std::string_view why);
  // MoverSeats::set_why_none was called: memory that no mover can move counts as unpageable. To be followed by
  // Leases::rest.
  void report_memory_again();

  // Tells a peer why it is not wanted, before or instead of its Hello.
  static void refuse(Session& session, wire::Reason reason, std::string_view text);

 private:
  base::Status on(Session& session, const wire::Hello& hello, ForeignDescriptor fd);
  base::Status on(Session& session, const wire::SeatOpen& open);
  base::Status on(Session& session, const wire::GangJoin& join);
  base::Status on(Session& session, const wire::Note& note);
  base::Status on(Session& session, const wire::RoomWanted& wanted);
  base::Status on(Session& session, const wire::MpsAsked& asked);
  // Libraries before this one borrow host memory for themselves: there is none for them, and what they have stays on
  // the GPU. They also answer what this daemon never sends (Stepped).
  static base::Status on(Session&,
                         const OneOf<wire::HostWanted, wire::HostReturned, wire::HostForgotten, wire::FrameGiven,
                                     wire::FrameWanted, wire::FrameFreed, wire::Stepped> auto&) {
    return {};
  }
  // These are of a seat that is open. receive() ignores them of others.
  void on(Session& session, Slot& slot, const wire::SeatClose& close);
  void on(Session& session, Slot& slot, const wire::Request& request);
  void on(Session& session, Slot& slot, const wire::RevokeSeen& seen);
  void on(Session& session, Slot& slot, const wire::GateClosed& closed);
  void on(Session& session, Slot& slot, const wire::Drained& drained);
  void on(Session& session, Slot& slot, const wire::Idling& idling);
  void on(Session& session, Slot& slot, const wire::Memory& memory);
  void on(Session& session, Slot& slot, const wire::Measured& measured);
  void on(Session& session, Slot& slot, const wire::MoverWanted& wanted);

  void ask_measure(base::SeatId seat, std::uint32_t question);
  void refuse_seat(Session& session, std::uint32_t slot, wire::Reason reason, std::string_view text);
  void closed_by_tenant(Session& session, Slot& slot, base::LeaseEpoch epoch);
  void claim(Session& session, Slot& slot, const wire::SeatOpen& open);
  void send_contention(Session& session, const Slot& slot, bool contended, settings::Limit<base::Duration> idle_hold);
  void execute(const node::Command& command);
  void carry_out(const sched::Command& command);
  template <class Command>
  void carry_out(const Command& command);
  void carry_out(const sched::KillTenant& command);
  // These are only shown.
  void carry_out(const OneOf<node::ModeChanged, node::TurnsForMemory, sched::ReportStall, sched::ReportSilent,
                             sched::ReportAnswering> auto&) {}
  void carry_out(Session& session, Slot& slot, const sched::Grant& grant);
  void carry_out(Session& session, Slot& slot, const sched::Revoke& revoke);
  void carry_out(Session& session, Slot& slot, const sched::HeadsUp& heads_up);
  void carry_out(Session& session, Slot& slot, const sched::Contention& contention);
  void carry_out(Session& session, Slot& slot, const sched::RoomBound& bound);
  void carry_out(Session& session, Slot& slot, const sched::ExpectEviction& eviction);

  Leases& leases_;
  Trials& trials_;
  const server::AccessRules& access_;
  TenantParts& parts_;
  settings::OnDaemonLoss on_daemon_loss_;
  std::string no_interrupts_;
  bool tenants_return_ = false;
  std::function<void(bool)> hand_over_ = [](bool) {};
};

}  // namespace gpumux::daemon
