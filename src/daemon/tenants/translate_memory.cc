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
  if (!session.knows_mover || (slot.mover != Slot::Mover::kEarlierDaemons && !why_no_mover_.empty()))
    report.unpageable += std::min(std::exchange(report.resident, 0), ~std::uint64_t{0} - report.unpageable);
  const base::SeatId seat = seat_of(session, slot);
  leases_.apply(node::MemoryReported{seat, report});
  if (slot.mover == Slot::Mover::kOurs) mover_->bound(mover_seat(session, slot), evictable(seat));
  if (slot.mover == Slot::Mover::kEarlierDaemons) count_elsewhere();
}

// The bytes of the seat that can be evicted, or are, and a chunk. Bounds for any report: the bytes that the planner has
// promised to the seat, and all that its GPU holds. So no seat takes what other seats are promised. Managed memory does
// not count.
std::uint64_t Translator::evictable(base::SeatId seat) const {
  const auto view = leases_.memory().view(seat);
  if (!view) return 0;
  const sched::MemoryReport& report = view->report;
  const std::uint64_t allocated = report.allocated - std::min(report.allocated, report.managed);
  const std::uint64_t most = std::max(allocated, report.resident + report.evicted);
  return std::min({most, view->promised, leases_.memory().capacity(seat.gpu)}) + host_.chunk_bytes();
}

// Their movers have it until their seats end.
void Translator::count_elsewhere() {
  std::uint64_t bytes = 0;
  table_.for_each_seat([&](const Session&, const Slot& slot) {
    if (slot.mover == Slot::Mover::kEarlierDaemons) bytes += std::min(slot.memory.host_used, host_.budget());
  });
  host_.set_elsewhere(bytes);
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

void Translator::open_mover(Session& session, Slot& slot) {
  const NodeMover::Seat seat = mover_seat(session, slot);
  const auto& gpu = leases_.gpus()[slot.gpu.value];
  const os::FileDescriptor connection =
      mover_->connect(seat, gpu.info.uuid, gpu.settings.hand_over ? session.trust_domain : std::string());
  // One that has content, or waits, gets a connection when a mover serves.
  if (mover_->knows(seat) && std::exchange(slot.mover, Slot::Mover::kOurs) == Slot::Mover::kEarlierDaemons)
    count_elsewhere();
  if (!connection) return;
  slot.mover_connection = ++mover_connections_;
  mail_.send(session, wire::MoverOpened{.slot = slot.number, .number = slot.mover_connection}, connection.get());
}

void Translator::on(Session& session, Slot& slot, const wire::MoverWanted& wanted) {
  if (slot.mover_connection != 0 && wanted.number != slot.mover_connection) return;  // the next one is on its way
  if (slot.mover != Slot::Mover::kNone && mover_ != nullptr) open_mover(session, slot);
}

}  // namespace gpumux::daemon
