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
  pager_thread_.wake();
}

void Memories::on_room(const wire::Room& room) {
  if (room.slot >= seats_.count()) return;
  DeviceMemory& memory = of(room.slot);
  if (!memory.set_room(room)) return;
  gate_.set_stranded(room.slot, gate::Gate::StrandedBy::kDaemon, room.is_stranded != 0);
  pager_thread_.wake();
}

void Memories::let_drain(std::uint64_t group) {
  for (std::uint32_t slot = 0; slot < seats_.count(); ++slot) {
    if ((group & slot_bit(slot)) != 0) owner_.let_drain(slot);
  }
}

void Memories::on_mover_opened(const wire::MoverOpened& opened, os::FileDescriptor connection) {
  if (opened.slot >= seats_.count() || !connection) return;
  of(opened.slot).mover.offer(std::move(connection), opened.number);
  pager_thread_.wake();
}

void Memories::on_lost() {
  each([this](DeviceMemory& memory) {
    memory.asked_for_mover.store(0);
    gate_.set_stranded(memory.slot, gate::Gate::StrandedBy::kDaemon, false);
  });
  pager_thread_.wake();
}

void Memories::unbind(std::uint32_t slot) {
  if (slot >= seats_.count()) return;
  of(slot).unbind();
  pager_thread_.wake();
}

void Memories::unbind_all() {
  unbound_.store(true, std::memory_order_seq_cst);
  each([](DeviceMemory& memory) { memory.unbind(); });
  pager_thread_.wake();
}

// ---- messages

template <class Message>
bool Memories::send(std::uint32_t slot, const Message& message) {
  client::Agent::Announcement announcement(agent_);
  Seats::Locked seats(seats_);
  // A daemon that does not know the seat yet hears of its memory with the announcement.
  return seats[slot].announced && announcement.send(message);
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
  const std::uint64_t lost = memory.mover.lost();
  if (lost == 0 || lost == memory.asked_for_mover.load()) return;
  // Before it is sent: if this daemon is lost after that, `on_lost` has the next one asked.
  memory.asked_for_mover.store(lost);
  if (!send(memory.slot, wire::MoverWanted{.slot = memory.slot, .number = memory.mover.number()}))
    memory.asked_for_mover.store(0);
}

}  // namespace gpumux::shim
