// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/mover_seats.h"

#include <algorithm>

#include "os/file_descriptor.h"

namespace gpumux::daemon {
namespace {

NodeMover::Seat mover_seat(const Session& session, const Slot& slot) {
  return {session.peer.pid, session.process_start, slot.number};
}

}  // namespace

void MoverSeats::set_mover(NodeMover& mover) {
  mover_ = &mover;
  mover.on_connected([this](const NodeMover::Seat& seat, base::TenantId asker, const os::FileDescriptor& connection) {
    Session* const session = table_.find(asker);
    if (session != nullptr && session->slot(seat.slot) != nullptr)
      connected(*session, *session->slot(seat.slot), connection);
  });
  mover.on_may_connect([this] {
    table_.for_each_seat([this](Session& session, const Slot& slot) {
      const NodeMover::Seat seat = mover_seat(session, slot);
      if (slot.mover != Slot::Mover::kOurs || mover_->has_connection(seat)) return;
      if (mover_->knows(seat)) {
        connect(session, *session.slot(slot.number));
      } else {
        session.slot(slot.number)->mover = Slot::Mover::kEarlierDaemons;
      }
    });
    count_elsewhere();
  });
}

void MoverSeats::opened(Session& session, Slot& slot, bool has_mover) {
  if (mover_ == nullptr || !session.knows_mover) return;
  if (has_mover) {
    slot.mover =
        mover_->is_back(mover_seat(session, slot), session.id) ? Slot::Mover::kOurs : Slot::Mover::kEarlierDaemons;
  } else {
    connect(session, slot);
  }
}

void MoverSeats::connect(Session& session, Slot& slot) {
  const NodeMover::Seat seat = mover_seat(session, slot);
  const auto& gpu = leases_.gpus()[slot.gpu.value];
  mover_->connect(seat, session.id, gpu.info.uuid, session.peer.account.key(),
                  gpu.settings.hand_over ? session.trust_domain : std::string());
  // One that has content, or waits, gets a connection when a mover serves.
  if (mover_->knows(seat) && std::exchange(slot.mover, Slot::Mover::kOurs) == Slot::Mover::kEarlierDaemons)
    count_elsewhere();
}

void MoverSeats::connected(Session& session, Slot& slot, const os::FileDescriptor& connection) {
  slot.mover_connection = ++connections_;
  mail_.send(session, wire::MoverOpened{.slot = slot.number, .number = slot.mover_connection}, connection.get());
}

void MoverSeats::wanted(Session& session, Slot& slot, std::uint32_t number) {
  if (slot.mover_connection != 0 && number != slot.mover_connection) return;  // the next one is on its way
  if (slot.mover != Slot::Mover::kNone && mover_ != nullptr) connect(session, slot);
}

void MoverSeats::reported(const Session& session, const Slot& slot) {
  if (slot.mover == Slot::Mover::kOurs) mover_->bound(mover_seat(session, slot), evictable(seat_of(session, slot)));
  if (slot.mover == Slot::Mover::kEarlierDaemons) count_elsewhere();
}

void MoverSeats::closed(const Session& session, Slot& slot) {
  if (std::exchange(slot.mover, Slot::Mover::kNone) == Slot::Mover::kOurs) mover_->closed(mover_seat(session, slot));
  count_elsewhere();
}

void MoverSeats::left(const Session& session) {
  for (const auto& [number, slot] : session.slots()) {
    if (slot.mover == Slot::Mover::kOurs) mover_->left(mover_seat(session, slot), session.id);
  }
  count_elsewhere();
}

// The bytes of the seat that can be evicted, or are, and a chunk. Bounds for any report: the bytes that the planner has
// promised to the seat, and all that its GPU holds. So no seat takes what other seats are promised. Managed memory does
// not count.
std::uint64_t MoverSeats::evictable(base::SeatId seat) const {
  const auto view = leases_.memory().view(seat);
  if (!view) return 0;
  const sched::MemoryReport& report = view->report;
  const std::uint64_t allocated = report.allocated - std::min(report.allocated, report.managed);
  const std::uint64_t most = std::max(allocated, report.resident + report.evicted);
  return std::min({most, view->promised, leases_.memory().capacity(seat.gpu)}) + host_.chunk_bytes();
}

// Host memory of the movers of earlier daemons: they have it until their seats end.
void MoverSeats::count_elsewhere() {
  std::uint64_t bytes = 0;
  table_.for_each_seat([&](const Session&, const Slot& slot) {
    if (slot.mover == Slot::Mover::kEarlierDaemons) bytes += std::min(slot.memory.host_used, host_.budget());
  });
  host_.set_elsewhere(bytes);
}

}  // namespace gpumux::daemon
