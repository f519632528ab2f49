// SPDX-License-Identifier: Apache-2.0
// The translator's other direction: the node's commands become words in lease pages, and messages.
#include <algorithm>

#include "daemon/tenants/translate.h"

namespace gpumux::daemon {
namespace {

// The library only has to know whether it may get less. The reason itself goes to log and trace
// (Leases::record_command).
std::uint32_t refused_on_wire(sched::Refusal refusal) {
  switch (refusal) {
    case sched::Refusal::kNone: return 0;
    case sched::Refusal::kQuota:
    case sched::Refusal::kGpuMemory:
    case sched::Refusal::kHostMemory: return wire::kTooMuch;
    case sched::Refusal::kNothingMoves: break;
  }
  return wire::kNothingComes;
}

}  // namespace

// Commands that are about one seat.
template <class Command>
void Translator::carry_out(const Command& command) {
  const auto [session, slot] = parts_.table.find_seat(command.seat);
  if (slot != nullptr) carry_out(*session, *slot, command);
}

void Translator::carry_out(const sched::Command& command) {
  std::visit([this](const auto& one) { carry_out(one); }, command);
}

void Translator::execute(const node::Command& command) {
  std::visit([this](const auto& one) { carry_out(one); }, command);
}

void Translator::carry_out(const sched::KillTenant& command) {
  if (Session* session = parts_.table.find(command.tenant)) session->kill();
}

void Translator::carry_out(Session& session, Slot& slot, const sched::Grant& grant) {
  slot.granted = true;
  slot.epoch = grant.epoch;
  slot.exclusive = grant.kind == sched::LeaseKind::kExclusive;
  session.page.grant(slot.number, grant.epoch, slot.exclusive, grant.contended);
  hand_over_(false);
  // The grant itself wakes only threads that want to submit; the thread that watches for idleness learns of it here.
  if (grant.contended) send_contention(session, slot, true, grant.idle_hold);
}

void Translator::carry_out(Session& session, Slot& slot, const sched::Revoke& revoke) {
  slot.granted = false;
  slot.epoch = revoke.epoch;
  session.page.revoke(slot.number);
  wire::Revoke message{.slot = slot.number, .epoch = revoke.epoch.value};
  if (!revoke.drains_for.is_unlimited())
    message.freeze_after_ns = static_cast<std::uint64_t>(revoke.drains_for.value().count());
  parts_.mail.send(session, message);
}

void Translator::carry_out(Session& session, Slot& slot, const sched::HeadsUp& /*heads_up*/) {
  if (!slot.granted) session.page.heads_up(slot.number);
  hand_over_(true);
}

void Translator::carry_out(Session& session, Slot& slot, const sched::Contention& contention) {
  if (slot.granted) session.page.set_contended(slot.number, contention.contended);
  slot.in_flight = contention.in_flight;
  send_contention(session, slot, contention.contended, contention.idle_hold);
}

void Translator::carry_out(Session& session, Slot& slot, const sched::RoomBound& bound) {
  parts_.mail.send(session, wire::Room{.slot = slot.number,
                                       .sequence = bound.sequence,
                                       .room = bound.room,
                                       .commitment = bound.commitment,
                                       .total = bound.total,
                                       .ticket = bound.ticket,
                                       .refused = refused_on_wire(bound.refusal),
                                       .is_limited = bound.is_limited ? 1u : 0u,
                                       .is_stranded = bound.is_stranded ? 1u : 0u,
                                       .most = bound.most});
}

void Translator::carry_out(Session& session, Slot& slot, const sched::ExpectEviction& eviction) {
  if (!slot.granted) return;
  parts_.mail.send(session,
                   wire::PrepareSwapOut{.slot = slot.number, .epoch = slot.epoch.value, .managed = eviction.managed});
}

void Translator::send_contention(Session& session, const Slot& slot, bool contended,
                                 settings::Limit<base::Duration> idle_hold) {
  const auto ns = [](base::Duration time) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(time.count(), 0));
  };
  parts_.mail.send(session,
                   wire::Contention{.slot = slot.number,
                                    .contended = contended ? 1u : 0u,
                                    .idle_hold_ns = ns(idle_hold.at_most(base::Duration::max())),
                                    .in_flight_ns = slot.in_flight.is_unlimited() ? 0 : ns(slot.in_flight.value())});
}

void Translator::ask_measure(base::SeatId seat, std::uint32_t question) {
  const auto [session, slot] = parts_.table.find_seat(seat);
  if (slot != nullptr) parts_.mail.send(*session, wire::Measure{.slot = slot->number, .question = question});
}

}  // namespace gpumux::daemon
