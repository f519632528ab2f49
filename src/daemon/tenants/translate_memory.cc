// SPDX-License-Identifier: Apache-2.0
// The translator's part about memory: the tenants' reports and requests, and the messages to them about rooms, host
// memory and frames.
#include <algorithm>
#include <utility>

#include "daemon/tenants/translate.h"

namespace gpumux::daemon {
namespace {

// A tenant that was asked for host memory, and has given none by then, is not asked again with this lease. The first
// look may come right after the question. The second one comes a second later, and shows that the tenant had that long.
constexpr std::uint32_t kMostInVain = 2;

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

// In claims the claims' quotas count, whatever the process says. Otherwise the first process of a run names its limit.
// Later processes belong to the run: they cannot raise the limit, nor escape it by saying nothing.
void Translator::join_quota(Session& session, const wire::Hello& hello) {
  const auto join = [&](QuotaKey key, std::uint64_t memory_limit) {
    QuotaGroup& group = quota_groups_[std::move(key)];
    if (group.tenants++ == 0) {
      group.number = next_group_++;
      group.memory_limit = memory_limit;
    }
    session.quota_groups.push_back(group.number);
    session.memory_limit = group.memory_limit;
  };
  const auto has_quotas = [](const containers::Claim& claim) { return !claim.quotas.empty() || claim.on_each; };
  if (session.container != nullptr &&
      std::any_of(session.container->claims.begin(), session.container->claims.end(), has_quotas)) {
    for (const containers::Claim& claim : session.container->claims) join({std::nullopt, claim.uid}, 0);
    return;
  }
  std::string run(wire::text_of(hello.run));
  if (run.empty()) run = "tenant:" + std::to_string(session.id.value);
  QuotaKey key{session.peer.uid, std::move(run)};
  if (hello.memory_limit != 0 || quota_groups_.contains(key)) join(std::move(key), hello.memory_limit);
}

void Translator::leave_quota(const Session& session) {
  for (const std::uint64_t number : session.quota_groups) {
    const auto group = std::find_if(quota_groups_.begin(), quota_groups_.end(),
                                    [&](const auto& one) { return one.second.number == number; });
    if (--group->second.tenants == 0) quota_groups_.erase(group);
  }
}

sched::Quota Translator::quota_on(const Session& session, base::GpuIndex gpu) const {
  if (session.quota_groups.empty()) return {};
  if (session.memory_limit != 0) return {.group = session.quota_groups.front(), .bytes = session.memory_limit};
  const auto& info = leases_.gpus()[gpu.value].info;
  for (std::size_t i = 0; i < session.quota_groups.size(); ++i) {
    if (const auto bytes = containers::bytes_on(session.container->claims[i], info.uuid_text, info.memory_total))
      return {.group = session.quota_groups[i], .bytes = *bytes};
  }
  return {};
}

void Translator::on(Session& session, Slot& slot, const wire::Memory& memory) {
  slot.memory = memory;
  const std::uint64_t most = leases_.gpus()[slot.gpu.value].info.memory_total;
  // For the ledger: its own word, as far as it can be true.
  slot.memory_time.change(leases_.now(), std::min(memory.resident, most), std::min(memory.evicted, host_.budget()));
  count_for_job(session, slot, std::min(memory.allocated, most + host_.budget()));
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
  if (slot.mover == Slot::Mover::kOurs && !why_no_mover_.empty())
    report.unpageable += std::min(std::exchange(report.resident, 0), ~std::uint64_t{0} - report.unpageable);
  const base::SeatId seat = seat_of(session, slot);
  host_.uses({session.id, memory.slot}, memory.host_used, leases_.memory().may_be_back(seat));
  leases_.apply(node::MemoryReported{seat, report});
  host_.has({session.id, memory.slot}, evictable(seat));
  frames_.reported(seat);
}

// The bytes of the seat that can be evicted, or are. Bounds for any report: the bytes that the planner has promised to
// the seat, and all that its GPU holds. So loans never take what other seats are promised. Managed memory does not
// count.
std::uint64_t Translator::evictable(base::SeatId seat) const {
  const auto view = leases_.memory().view(seat);
  if (!view) return 0;
  const sched::MemoryReport& report = view->report;
  const std::uint64_t allocated = report.allocated - std::min(report.allocated, report.managed);
  return std::min(
      {std::max(allocated, report.resident + report.evicted), view->promised, leases_.memory().capacity(seat.gpu)});
}

// The bytes that the GPU's seats are promised and the GPU cannot hold, and a chunk for each: its last one is hardly
// ever full.
std::uint64_t Translator::host_needs(base::GpuIndex gpu) const {
  const sched::GpuMemory memory = leases_.memory().view(gpu);
  std::uint64_t promised = 0;
  std::uint64_t needs = 0;
  for (const sched::SeatMemoryView& seat : memory.seats) {
    if (!seat.speaks || seat.promised == 0) continue;
    needs += host_.chunk_bytes();
    (seat.is_suspended ? needs : promised) += seat.promised;
  }
  const std::uint64_t gone = memory.reserve + memory.foreign + memory.returning;
  const std::uint64_t held = memory.capacity - std::min(memory.capacity, gone);
  return needs + promised - std::min(promised, held);
}

// Copies, and what is borrowed ahead, are only of what the promises on other GPUs leave. (Where there is one GPU, what
// its seats are promised fits on it and in host memory.)
bool Translator::may_borrow_more(base::GpuIndex gpu) const {
  const std::size_t gpus = leases_.gpus().size();
  if (gpus < 2) return true;
  std::uint64_t elsewhere = host_.leaving();
  for (std::uint32_t other = 0; other < gpus; ++other) {
    if (other != gpu.value) elsewhere += host_needs({other});
  }
  const auto is_its = [&](const HostSeat& seat) {
    Session* const session = find(seat.tenant);
    const Slot* const slot = session == nullptr ? nullptr : session->slot(seat.slot);
    return slot != nullptr && slot->gpu == gpu;
  };
  const std::uint64_t after = host_.lent_or_awaited(is_its) + host_.chunk_bytes();
  const std::uint64_t needed = host_needs(gpu);
  return after <= needed || after + elsewhere <= host_.lendable();
}

// Of the GPU's holders: no other GPU's seats are to give anything up for its sake.
void Translator::ask_for_copies_of(base::GpuIndex gpu) {
  for (const auto& [id, session] : sessions_) {
    const Slot* const slot = session->slot_on(gpu);
    if (slot == nullptr || !slot->granted || session->host_asked != 0 || host_.awaits(id)) continue;
    if (session->host_looks >= kMostInVain || host_.lent_to(id) == 0) continue;
    tell_spare(*session, host_.chunk_bytes());
  }
}

LedgerKey Translator::ledger_key(const Session& session, base::GpuIndex gpu) const {
  const ContainerLabel& container = session.label->container;
  return {
      .gpu = gpu,
      .owner = {session.peer.account.user(), container.pod_namespace, container.pod},
      .what = LedgerProgram{.name = session.label->program, .job = session.label->job, .container = container.name}};
}

LedgerFigures Translator::figures(const Session& session, const Slot& slot, base::TimePoint now) const {
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

std::map<const Ledger::Entry*, LedgerFigures> Translator::live_figures() const {
  std::map<const Ledger::Entry*, LedgerFigures> live;
  const base::TimePoint now = leases_.now();
  for (const auto& [id, session] : sessions_) {
    for (const auto& [number, slot] : session->slots()) live[slot.entry].add(figures(*session, slot, now));
  }
  return live;
}

std::vector<LedgerLine> Translator::ledger() { return ledger_.lines(live_figures(), leases_.now()); }

void Translator::note_use() {
  RecentUse::Totals totals;
  const base::TimePoint now = leases_.now();
  for (const auto& [id, session] : sessions_) {
    for (const auto& [number, slot] : session->slots()) {
      const base::SeatId seat = seat_of(*session, slot);
      totals[seat] = leases_.totals(seat, now).used();
    }
  }
  recent_use_.note(now, std::move(totals));
}

void Translator::count_for_job(const Session& session, Slot& slot, std::uint64_t bytes) {
  const std::uint64_t before = std::exchange(slot.counted, bytes);
  if (session.label->job != 0) job_memory_.change(session.label->job, slot.gpu, before, bytes);
}

void Translator::forget_slot(const Session& session, const Slot& slot, base::TimePoint now) {
  moved_before_.at(slot.gpu.value).add(slot.memory);
  Ledger::close(*slot.entry, figures(session, slot, now), now);
  if (session.label->job != 0) job_memory_.change(session.label->job, slot.gpu, slot.counted, 0);
  frames_.gone(seat_of(session, slot));
}

// A connection may end without its process. The memory of that process is then not on its way back, and is not to count
// twice.
std::uint64_t Translator::take_left(const Session& session, base::GpuIndex gpu) {
  std::uint64_t left = 0;
  for (Gone& gone : gone_) {
    if (session.process_start == 0 || gone.pid != session.peer.pid || gone.process_start != session.process_start)
      continue;
    const auto its = gone.left.find(gpu);
    if (its != gone.left.end()) left += std::exchange(its->second, 0);
  }
  return left;
}

base::Status Translator::on(Session& session, const wire::RoomWanted& wanted) {
  if (wanted.ticket == 0) return base::fail(base::Code::kProtocol, "a ticket of zero");
  const Slot* const slot = session.slot(wanted.slot);
  if (slot != nullptr)
    leases_.apply(node::RoomWanted{seat_of(session, *slot), wanted.ticket, wanted.room, wanted.commitment,
                                   wanted.managed, wanted.again != 0});
  return {};
}

base::Status Translator::on(Session& session, const wire::HostWanted& wanted) {
  const Slot* const slot = session.slot(wanted.slot);
  if (slot != nullptr && !may_borrow_more(slot->gpu)) {
    send(session, wire::HostLent{.slot = wanted.slot});
    ask_for_copies_of(slot->gpu);
  } else {
    host_.wanted({session.id, wanted.slot}, std::min(wanted.bytes, wire::kMaxHostChunkBytes), session.trust_domain,
                 session.peer.account);
  }
  return {};
}

base::Status Translator::on(Session& session, const wire::HostReturned& returned) {
  session.host_asked -= std::min(session.host_asked, host_.chunk_bytes());
  session.host_looks = 0;
  host_.returned(session.id, returned.id, returned.kept != 0);
  return {};
}

base::Status Translator::on(Session& session, const wire::HostForgotten& forgotten) {
  host_.forgotten({session.id, forgotten.slot});
  return {};
}

void Translator::carry_out(Session& session, Slot& slot, const sched::RoomBound& bound) {
  const std::uint64_t before = std::exchange(slot.room, bound.room);
  slot.to_fill = bound.room < before ? 0 : slot.to_fill + bound.room - before;
  lend_frames(session, slot);
  send(session, wire::Room{.slot = slot.number,
                           .sequence = bound.sequence,
                           .room = bound.room,
                           .commitment = bound.commitment,
                           .total = bound.total,
                           .ticket = bound.ticket,
                           .refused = refused_on_wire(bound.refusal),
                           .frames = bound.room < slot.memory.resident ? frames_for_others(session, slot) : 0,
                           .is_limited = bound.is_limited ? 1u : 0u,
                           .is_stranded = bound.is_stranded ? 1u : 0u,
                           .most = bound.most});
}

// ---- physical memory that is handed over --------------------------------------------------------

// Frames go ahead of the room that they fill.
void Translator::lend_frames(Session& session, Slot& slot) {
  // A seat that has come back has most of its room filled.
  slot.to_fill = std::min(slot.to_fill, slot.room - std::min(slot.room, slot.memory.resident));
  if (slot.memory.evicted == 0 || slot.mover != Slot::Mover::kNone) return;
  slot.to_fill -=
      frames_.lend(seat_of(session, slot), session.trust_domain, slot.memory.frames, slot.to_fill,
                   [&](std::uint64_t frame, std::uint64_t bytes, int fd) {
                     send(session, wire::FrameLent{.slot = slot.number, .number = frame, .bytes = bytes}, fd);
                   });
}

// Frame sizes that seats of the same trust domain are waiting to restore into.
base::FrameSizes Translator::frames_for_others(const Session& session, const Slot& slot) const {
  if (!leases_.gpus()[slot.gpu.value].settings.hand_over || slot.mover != Slot::Mover::kNone) return 0;
  base::FrameSizes sizes = 0;
  for (const auto& [tenant, other] : sessions_) {
    if (other == &session || other->trust_domain.empty() || other->trust_domain != session.trust_domain) continue;
    const Slot* const its = other->slot_on(slot.gpu);
    if (its != nullptr && its->memory.evicted != 0) sizes |= its->memory.frames;
  }
  return sizes;
}

base::Status Translator::on(Session& session, const wire::FrameGiven& given, ForeignDescriptor fd) {
  // Without one: this process has too many. It is closed then, and the memory free.
  const Slot* const slot = session.slot(given.slot);
  if (slot == nullptr) return {};
  const base::SeatId seat = seat_of(session, *slot);
  if (leases_.gpus()[slot->gpu.value].settings.hand_over) {
    frames_.given(seat, session.trust_domain, given.number, given.bytes, std::move(fd));
  } else {
    frames_.freed(seat, given.number);
  }
  return {};
}

void Translator::on(Session& session, Slot& slot, const wire::FrameFreed& freed) {
  frames_.freed(seat_of(session, slot), freed.number);
}

base::Status Translator::on(Session& session, const wire::FrameWanted& wanted) {
  const Slot* const slot = session.slot(wanted.slot);
  const int fd = slot == nullptr ? -1 : frames_.share(seat_of(session, *slot), wanted.number);
  send(session, wire::FrameLent{.slot = wanted.slot, .number = wanted.number}, fd);
  return {};
}

void Translator::carry_out(Session& session, Slot& slot, const sched::ExpectEviction& eviction) {
  if (!slot.granted) return;
  send(session,
       wire::PrepareSwapOut{
           .slot = slot.number, .epoch = slot.epoch.value, .bytes = eviction.bytes, .managed = eviction.managed});
}

void Translator::open_mover(Session& session, Slot& slot) {
  const NodeMover::Seat seat = mover_seat(session, slot);
  const auto& gpu = leases_.gpus()[slot.gpu.value];
  const os::FileDescriptor connection =
      mover_->connect(seat, gpu.info.uuid, gpu.settings.hand_over ? session.trust_domain : std::string());
  // One that has content, or waits, gets a connection when a mover serves.
  if (mover_->knows(seat)) slot.mover = Slot::Mover::kOurs;
  if (!connection) return;
  slot.mover_connection = ++mover_connections_;
  send(session, wire::MoverOpened{.slot = slot.number, .number = slot.mover_connection}, connection.get());
}

void Translator::on(Session& session, Slot& slot, const wire::MoverWanted& wanted) {
  if (slot.mover_connection != 0 && wanted.number != slot.mover_connection) return;  // the next one is on its way
  if (slot.mover != Slot::Mover::kNone && mover_ != nullptr) open_mover(session, slot);
}

void Translator::send_loan(const HostLoan& loan, int fd) {
  if (loan.seat.tenant == NodeMover::kBorrower) return mover_->lent(loan, fd);
  if (Session* const session = find(loan.seat.tenant))
    send(*session, wire::HostLent{.slot = loan.seat.slot, .id = loan.id, .bytes = loan.bytes}, fd);
}

void Translator::send_forget(const HostSeat& seat, std::span<const std::uint64_t> ids) {
  Session* const session = find(seat.tenant);
  if (session == nullptr) return;
  wire::HostForget forget{.slot = seat.slot, .count = static_cast<std::uint32_t>(ids.size())};
  std::copy(ids.begin(), ids.end(), forget.ids);
  send(*session, forget);
}

// Where host memory is short no tenant keeps copies that it could do without. (A suspended tenant keeps none in any
// case, and may not be able to read.)
void Translator::spare_host() {
  for (const auto& [id, session] : sessions_) {
    if (!session->is_suspended) tell_spare(*session);
  }
}

void Translator::tell_spare(Session& session, std::uint64_t awaited) {
  const bool keeps_none = session.is_suspended || host_.is_short();
  session.host_asked = awaited == 0 ? 0 : session.host_asked + awaited;
  send(session, wire::HostSpare{.bytes = keeps_none ? 0 : ~std::uint64_t{0}, .awaited = awaited});
}

// First of tenants that have more than they may. Then of holders of a lease, which have copies, or have them in a
// moment. Exception: a tenant that waits for host memory itself is about to leave. No tenant is asked twice for the
// same, or again if it has given nothing: it may be stopped.
void Translator::ask_for_copies() {
  std::uint64_t missing = host_.awaited();
  for (const auto& [id, session] : sessions_) missing -= std::min(missing, session->host_asked);
  const auto ask = [&](Session& session, std::uint64_t most) {
    if (session.is_suspended || session.host_looks >= kMostInVain) return;
    const std::uint64_t bytes = std::min(missing, most - std::min(most, session.host_asked));
    if (bytes == 0) return;
    tell_spare(session, bytes);
    missing -= bytes;
  };
  if (missing == 0) return;
  for (const auto& [id, session] : sessions_) ask(*session, host_.beyond(id));
  for (const auto& [id, session] : sessions_) {
    if (missing != 0 && session->holds() && !host_.awaits(id)) ask(*session, host_.lent_to(id));
  }
}

// A promise waits for what seats have on loan and have no use for.
void Translator::ask_for_useless() {
  if (host_.useless() == 0 || !leases_.memory().awaits_commitment()) return;
  for (const auto& [id, session] : sessions_) {
    if (session->is_suspended || session->host_asked != 0) continue;
    if (const std::uint64_t bytes = host_.beyond(id); bytes != 0) tell_spare(*session, bytes);
  }
}

void Translator::look_at_copies() {
  for (const auto& [id, session] : sessions_) {
    if (session->host_asked == 0) continue;
    if (host_.awaited() != 0 && ++session->host_looks < kMostInVain) continue;
    tell_spare(*session);
  }
  if (host_.awaited() != 0) ask_for_copies();
}

// A tenant that was granted a lease may have copies to give. A tenant whose lease was revoked is to keep the host
// memory that it needs for leaving.
void Translator::lease_changed(Session& session) {
  session.host_looks = 0;
  if (!session.holds() && session.host_asked != 0) tell_spare(session);
  if (session.holds() && host_.awaited() != 0) ask_for_copies();
}

}  // namespace gpumux::daemon
