// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/use_books.h"

#include <algorithm>
#include <utility>

namespace gpumux::daemon {
namespace {

LedgerKey ledger_key(const Session& session, base::GpuIndex gpu) {
  const ContainerLabel& container = session.label->container;
  return {
      .gpu = gpu,
      .owner = {session.peer.account.user(), container.pod_namespace, container.pod},
      .what = LedgerProgram{.name = session.label->program, .job = session.label->job, .container = container.name}};
}

}  // namespace

void UseBooks::opened(const Session& session, Slot& slot) {
  slot.entry = &ledger_.open(ledger_key(session, slot.gpu), leases_.now());
}

// The tenant's own word, as far as it can be true.
void UseBooks::reported(const Session& session, Slot& slot) {
  const wire::Memory& memory = slot.memory;
  const std::uint64_t most = leases_.gpus()[slot.gpu.value].info.memory_total;
  slot.memory_time.change(leases_.now(), std::min(memory.resident, most), std::min(memory.evicted, host_.budget()));
  const std::uint64_t allocated = std::min(memory.allocated, most + host_.budget());
  const std::uint64_t before = std::exchange(slot.counted, allocated);
  if (session.label->job != 0) job_memory_.change(session.label->job, slot.gpu, before, allocated);
}

void UseBooks::closed(const Session& session, const Slot& slot, base::TimePoint now) {
  moved_before_.at(slot.gpu.value).add(slot.memory);
  Ledger::close(*slot.entry, figures(session, slot, now), now);
  if (session.label->job != 0) job_memory_.change(session.label->job, slot.gpu, slot.counted, 0);
}

LedgerFigures UseBooks::figures(const Session& session, const Slot& slot, base::TimePoint now) const {
  const sched::SeatTotals totals = leases_.totals(seat_of(session, slot), now);
  LedgerFigures figures{.seats = 1,
                        .grants = totals.grants,
                        .switches = totals.switches,
                        .held = totals.held,
                        .gpu_time = totals.used(),
                        .waited = totals.waited,
                        .resident_byte_seconds = slot.memory_time.resident(now),
                        .evicted_byte_seconds = slot.memory_time.evicted(now)};
  figures.moved.add(slot.memory);
  return figures;
}

std::map<const Ledger::Entry*, LedgerFigures> UseBooks::live_figures() const {
  std::map<const Ledger::Entry*, LedgerFigures> live;
  const base::TimePoint now = leases_.now();
  table_.for_each_seat(
      [&](const Session& session, const Slot& slot) { live[slot.entry].add(figures(session, slot, now)); });
  return live;
}

void UseBooks::note_use() {
  RecentUse::Totals totals;
  const base::TimePoint now = leases_.now();
  table_.for_each_seat([&](const Session& session, const Slot& slot) {
    const base::SeatId seat = seat_of(session, slot);
    totals[seat] = leases_.totals(seat, now).used();
  });
  recent_use_.note(now, std::move(totals));
}

}  // namespace gpumux::daemon
