// SPDX-License-Identifier: Apache-2.0
// Messages from the daemon to the memories of all seats, on the agent's thread, and theirs to the daemon, on any
// thread.
#include <utility>

#include "os/system_clock.h"
#include "shim/memory/memories.h"

namespace gpumux::shim {

// ---- the agent's thread

void Memories::on_connected() {
  unbound_.store(false, std::memory_order_seq_cst);
  mover_.spare_host(UINT64_MAX, 0);  // an earlier daemon's shortages say nothing of this one
  each([](DeviceMemory& memory) { memory.on_connected(); });
}

void Memories::announce(client::Agent::Announcement& announcement, std::uint32_t slot) {
  if (unbound_.load(std::memory_order_relaxed)) return;
  DeviceMemory* const memory = if_any(slot);
  if (memory == nullptr) {
    announcement.send(wire::Memory{.slot = slot});
    return;
  }
  announcement.send(memory->report(gate_.is_granted(slot) ? gate_.epoch(slot) : 0, 0));
  if (const wire::RoomWanted wish = memory->open_wish(); wish.ticket != 0) announcement.send(wish);
}

void Memories::on_opened(std::uint32_t slot) {
  if (slot >= seats_.count()) return;
  of(slot).on_opened(os::now());
  mover_.wake();
}

void Memories::on_room(const wire::Room& room) {
  if (room.slot >= seats_.count()) return;
  DeviceMemory& memory = of(room.slot);
  if (!memory.set_room(room)) return;
  gate_.set_stranded(room.slot, gate::Gate::StrandedBy::kDaemon, room.is_stranded != 0);
  memory.frames.on_room(room);
  if (must_drain(room.slot)) let_drain(group(room.slot));
  mover_.wake();
}

// A seat that is frozen may have the mover wait in a call of the driver's. So the agent does this.
void Memories::let_drain(std::uint64_t group) {
  for (std::uint32_t slot = 0; slot < seats_.count(); ++slot) {
    if ((group & slot_bit(slot)) != 0) owner_.let_drain(slot);
  }
}

bool Memories::is_memory_away(std::uint32_t slot) {
  if (!gate_.is_barred(slot)) return false;
  const std::uint64_t its = group(slot);
  return first([&](const DeviceMemory& memory) {
           return (its & slot_bit(memory.slot)) != 0 && memory.pager.has_mover();
         }) != nullptr;
}

bool Memories::can_leave_frozen(std::uint64_t group) {
  return first([&](const DeviceMemory& memory) {
           return (group & slot_bit(memory.slot)) != 0 && !memory.pager.has_mover();
         }) == nullptr;
}

bool Memories::must_drain(std::uint32_t slot) {
  const std::uint64_t its = group(slot);
  if (can_leave_frozen(its)) return false;
  for (std::uint32_t other = 0; other < seats_.count(); ++other) {
    const DeviceMemory* const memory = if_any(other);
    if ((its & slot_bit(other)) != 0 && memory != nullptr && memory->is_bounded() &&
        memory->pager.bounds().excess() != 0)
      return true;
  }
  return false;
}

void Memories::on_host_lent(const wire::HostLent& lent, os::FileDescriptor memory) {
  if (lent.slot >= seats_.count()) return;
  of(lent.slot).lender.on_lent(lent, std::move(memory));
  mover_.wake();
}

void Memories::on_frame_lent(const wire::FrameLent& lent, os::FileDescriptor frame) {
  if (lent.slot >= seats_.count()) return;
  of(lent.slot).frames.on_lent(lent, std::move(frame));
  if (lent.bytes != 0) mover_.wake();
}

void Memories::on_mover_opened(const wire::MoverOpened& opened, os::FileDescriptor connection) {
  if (opened.slot >= seats_.count() || !connection) return;
  of(opened.slot).mover.offer(std::move(connection), opened.number);
  mover_.wake();
}

void Memories::on_host_forget(const wire::HostForget& forget) {
  if (forget.slot >= seats_.count()) return;
  of(forget.slot).lender.on_forget(forget);
  let_drain(slot_bit(forget.slot));  // unregistering host memory waits for all work
  mover_.wake();
}

void Memories::on_lost() {
  each([this](DeviceMemory& memory) {
    memory.lender.on_lost();
    memory.frames.on_lost();
    gate_.set_stranded(memory.slot, gate::Gate::StrandedBy::kDaemon, false);
  });
  mover_.wake();
}

void Memories::unbind(std::uint32_t slot) {
  if (slot >= seats_.count()) return;
  of(slot).unbind();
  mover_.wake();
}

void Memories::unbind_all() {
  unbound_.store(true, std::memory_order_seq_cst);
  each([](DeviceMemory& memory) { memory.unbind(); });
  mover_.wake();
}

// ---- messages

template <class Message>
bool Memories::send(std::uint32_t slot, const Message& message, int fd) {
  client::Agent::Announcement announcement(agent_);
  Seats::Locked seats(seats_);
  // A daemon that does not know the seat yet hears of its memory with the announcement.
  return seats[slot].announced && announcement.send(message, fd);
}

bool Memories::send_report(DeviceMemory& memory, std::uint32_t flags) {
  if (unbound_.load(std::memory_order_relaxed)) return false;
  // Made with the agent's lock held, so that nothing is said on a new connection that was counted on the old one.
  client::Agent::Announcement announcement(agent_);
  Seats::Locked seats(seats_);
  const std::uint32_t slot = memory.slot;
  return seats[slot].announced &&
         announcement.send(memory.report(gate_.is_granted(slot) ? gate_.epoch(slot) : 0, flags));
}

void Memories::tend_connection(DeviceMemory& memory) {
  if (const std::uint64_t lost = memory.mover.lost(); lost != memory.asked_for_mover) {
    if (send(memory.slot, wire::MoverWanted{.slot = memory.slot, .number = memory.mover.number()}))
      memory.asked_for_mover = lost;
  }
}

bool Memories::ask_for_host(std::uint32_t slot, std::uint64_t bytes) {
  return send(slot, wire::HostWanted{.slot = slot, .bytes = bytes});
}

void Memories::return_host(std::uint64_t id, bool kept) {
  agent_.send(wire::HostReturned{.id = id, .kept = kept ? 1u : 0u});
}

bool Memories::give_frame(const wire::FrameGiven& frame, int fd) { return send(frame.slot, frame, fd); }

bool Memories::freed_frame(const wire::FrameFreed& frame) { return send(frame.slot, frame); }

bool Memories::ask_for_frame(const wire::FrameWanted& frame) { return send(frame.slot, frame); }

void Memories::forgot_host(std::uint32_t slot) { agent_.send(wire::HostForgotten{.slot = slot}); }

void Memories::unregister_host(std::uint32_t slot, const std::byte* address, std::uint64_t bytes) {
  of(slot).pager.unregister_host(address, bytes);
}

}  // namespace gpumux::shim
