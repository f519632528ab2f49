// SPDX-License-Identifier: Apache-2.0
// The translator's part about memory: the tenants' reports and requests, and the messages to them about rooms and the
// mover.
#include <algorithm>
#include <utility>

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

void Translator::on(Session& session, Slot& slot, const wire::Memory& memory) {
  slot.memory = memory;
  books_.reported(session, slot);
  sched::MemoryReport report{.sequence = memory.room_sequence,
                             .allocated = memory.allocated,
                             .resident = memory.resident,
                             .evicted = memory.evicted,
                             .unpageable = 0,
                             .hidden = memory.hidden,
                             .managed = memory.unpageable[static_cast<std::size_t>(wire::Unpageable::kManaged)],
                             .managed_away = memory.managed_away,
                             .stuck = (memory.flags & wire::kMemoryStuck) != 0,
                             .moving = (memory.flags & wire::kMemoryBusy) != 0};
  for (std::size_t i = 0; i < wire::kUnpageableReasons; ++i) {
    if (i == static_cast<std::size_t>(wire::Unpageable::kManaged)) continue;
    report.unpageable += std::min(memory.unpageable[i], ~std::uint64_t{0} - report.unpageable);
  }
  // No other seat can be promised what nothing can take off the GPU.
  if (!mover_seats_.can_move(session, slot))
    report.unpageable += std::min(std::exchange(report.resident, 0), ~std::uint64_t{0} - report.unpageable);
  leases_.apply(node::MemoryReported{seat_of(session, slot), report});
  mover_seats_.reported(session, slot);
}

base::Status Translator::on(Session& session, const wire::RoomWanted& wanted) {
  if (wanted.ticket == 0) return base::fail(base::Code::kProtocol, "a ticket of zero");
  const Slot* const slot = session.slot(wanted.slot);
  if (slot != nullptr)
    leases_.apply(node::RoomWanted{seat_of(session, *slot), wanted.ticket, wanted.room, wanted.commitment,
                                   wanted.managed, wanted.again != 0});
  return {};
}

void Translator::carry_out(Session& session, Slot& slot, const sched::RoomBound& bound) {
  mail_.send(session, wire::Room{.slot = slot.number,
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
  mail_.send(session,
             wire::PrepareSwapOut{
                 .slot = slot.number, .epoch = slot.epoch.value, .bytes = eviction.bytes, .managed = eviction.managed});
}

void Translator::on(Session& session, Slot& slot, const wire::MoverWanted& wanted) {
  mover_seats_.wanted(session, slot, wanted.number);
}

}  // namespace gpumux::daemon
