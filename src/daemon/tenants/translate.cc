// SPDX-License-Identifier: Apache-2.0
#include "daemon/tenants/translate.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/version.h"
#include "server/loop/log.h"
#include "server/peers/process_info.h"

namespace gpumux::daemon {
namespace {

ContainerLabel container_label(const Session& session) {
  if (session.container == nullptr) return {};
  const containers::Record& its = *session.container;
  return {its.id, printable(its.pod_namespace), printable(its.pod), printable(its.name),
          its.claims.empty() ? "" : printable(its.claims.front().uid)};
}

base::Standing asked_standing(const wire::Hello& hello) {
  base::Standing asked;
  asked.priority = std::clamp(hello.priority, -base::kMostPriority, base::kMostPriority);
  if (hello.share != 0) asked.share = std::min(hello.share, base::kMostShare);
  if (hello.max_share != 0) asked.max_share = std::min(hello.max_share, base::kWholeGpu);
  return asked;
}

bool may_have_descriptor(const wire::TenantMessage& message) {
  const auto* given = std::get_if<wire::FrameGiven>(&message);
  return std::holds_alternative<wire::Hello>(message) || (given != nullptr && given->number == 0);
}

server::LogLevel level_of(wire::Severity severity) {
  switch (severity) {
    case wire::Severity::kDebug: return server::LogLevel::kDebug;
    case wire::Severity::kInfo: return server::LogLevel::kInfo;
    case wire::Severity::kWarning: return server::LogLevel::kWarning;
    case wire::Severity::kError: return server::LogLevel::kError;
  }
  return server::LogLevel::kInfo;
}

}  // namespace

Translator::Translator(Leases& leases, Trials& trials, const server::AccessRules& access, TenantParts& parts,
                       settings::OnDaemonLoss on_daemon_loss)
    : leases_(leases), trials_(trials), access_(access), parts_(parts), on_daemon_loss_(on_daemon_loss) {
  leases_.set_executor([this](const node::Command& command) { execute(command); });
  trials_.on_ask([this](base::SeatId seat, std::uint32_t question) { ask_measure(seat, question); });
}

void Translator::report_memory_again() {
  parts_.table.for_each_seat([this](Session& session, const Slot& slot) {
    const auto view = leases_.memory().view(seat_of(session, slot));
    if (view && view->speaks) on(session, *session.slot(slot.number), wire::Memory(slot.memory));
  });
}

void Translator::refuse(Session& session, wire::Reason reason, std::string_view text) {
  wire::Refused refused{.reason = reason};
  wire::set_text(refused.text, text);
  static_cast<void>(session.send(refused));
}

bool Translator::takes_descriptor(const Session& session, std::span<const std::byte> message) {
  const auto decoded = wire::decode_from_tenant(message);
  return decoded && session.welcomed != std::holds_alternative<wire::Hello>(*decoded) && may_have_descriptor(*decoded);
}

base::Status Translator::receive(Session& session, std::span<const std::byte> bytes, ForeignDescriptor fd) {
  const auto message = wire::decode_from_tenant(bytes);
  if (!message) return tl::unexpected(message.error());
  std::visit([&](const auto& m) { debug_message("message from a tenant", session.id, session.peer.pid, m); }, *message);
  const bool is_hello = std::holds_alternative<wire::Hello>(*message);
  if (session.welcomed == is_hello)
    return base::fail(base::Code::kProtocol, is_hello ? "a second Hello" : "something before Hello");
  parts_.suspension.heard(session);
  if (fd && !may_have_descriptor(*message)) return base::fail(base::Code::kProtocol, "a descriptor where none belongs");
  return std::visit(
      [&](const auto& m) -> base::Status {
        if constexpr (requires { m.slot; }) {
          if (m.slot >= base::kMaxSeatsPerTenant)
            return base::fail(base::Code::kProtocol, "slot " + std::to_string(m.slot) + " does not exist");
        }
        if constexpr (requires(Slot & slot) { on(session, slot, m); }) {
          if (Slot* const slot = session.slot(m.slot)) on(session, *slot, m);
          return {};
        } else if constexpr (requires { on(session, m); }) {
          return on(session, m);
        } else {
          return on(session, m, std::move(fd));
        }
      },
      *message);
}

void Translator::ended(Session& session, std::string_view why) {
  session.end();
  const base::TimePoint now = leases_.now();
  parts_.table.remove(session, now);
  parts_.suspension.left(session);
  for (const auto& [number, slot] : session.slots()) parts_.books.closed(session, slot, now);
  parts_.mover_seats.left(session);
  leases_.gone(session.id, why, now);
  parts_.quotas.leave(session);
}

base::Status Translator::on(Session& session, const wire::Hello& hello, ForeignDescriptor fd) {
  const auto refuse_with = [&](wire::Reason reason, const std::string& text) {
    refuse(session, reason, text);
    return base::fail(base::Code::kDenied, "refused: " + text);
  };
  // The rules may have changed since it connected.
  if (!access_.may_connect(session.peer)) {
    return refuse_with(wire::Reason::kDenied, "user " + std::to_string(session.peer.uid) +
                                                  " may not use this daemon (allow_users, allow_groups)");
  }
  if (hello.protocol < wire::kOldestProtocolVersion || hello.oldest_protocol > wire::kProtocolVersion) {
    return refuse_with(wire::Reason::kVersion, "the library speaks protocols " + std::to_string(hello.oldest_protocol) +
                                                   " to " + std::to_string(hello.protocol) + ", the daemon " +
                                                   std::to_string(wire::kOldestProtocolVersion) + " to " +
                                                   std::to_string(wire::kProtocolVersion) +
                                                   ": install one version of both");
  }
  auto page = LeasePageView::map(fd.get());
  if (!page) return refuse_with(wire::Reason::kBadPage, page.error().message());
  session.page = std::move(*page);
  session.welcomed = true;
  if (const auto process = server::process_info(session.peer.pid)) session.process_start = process->start_time;
  session.run = wire::text_of(hello.run);
  session.label = TenantLabel::make(session.peer.pid, session.peer.uid, printable(wire::text_of(hello.program)),
                                    container_label(session), parts_.jobs.job_of(session.peer.uid, session.run));
  parts_.suspension.joined(session);
  parts_.quotas.join(session, hello.memory_limit);
  session.standing = session.first_standing = parts_.standings.allowed(session, asked_standing(hello));
  session.ends_own_turns = (hello.flags & wire::kEndsOwnTurns) != 0;
  session.knows_mover = (hello.flags & wire::kKnowsMover) != 0;
  const bool can_freeze = (hello.flags & wire::kCanFreeze) != 0 && session.knows_mover;
  session.not_interrupted = can_freeze ? no_interrupts_ : "its library is of an older release of gpumux";
  leases_.connected(session.id, session.label);
  if (const auto gang = wire::text_of(hello.gang); !gang.empty()) {
    leases_.apply(sched::GangJoined{session.id, std::string(gang), hello.gang_world});
  }
  wire::Welcome welcome{.protocol = std::min(hello.protocol, wire::kProtocolVersion),
                        .on_daemon_loss = on_daemon_loss_ == settings::OnDaemonLoss::kWait
                                              ? wire::OnDaemonLoss::kWait
                                              : wire::OnDaemonLoss::kUngated,
                        .tenant = session.id.value,
                        .answers_mps = parts_.mps.asked ? 1u : 0u};
  wire::set_text(welcome.version, base::version());
  parts_.mail.send(session, welcome);
  server::log_info("tenant connected", {{"tenant", session.id.value},
                                        {"pid", session.peer.pid},
                                        {"uid", session.peer.uid},
                                        {"program", session.label->program},
                                        {"library", printable(wire::text_of(hello.version))}});
  parts_.table.changed(session);
  return {};
}

base::Status Translator::on(Session& session, const wire::MpsAsked& asked) {
  if (!parts_.mps.asked) return base::fail(base::Code::kProtocol, "it asks for MPS, which is not answered here");
  return parts_.mps.asked(session, asked);
}

void Translator::refuse_seat(Session& session, std::uint32_t slot, wire::Reason reason, std::string_view text) {
  wire::SeatRefused refused{.slot = slot, .reason = reason};
  wire::set_text(refused.text, text);
  parts_.mail.send(session, refused);
}

base::Status Translator::on(Session& session, const wire::SeatOpen& open) {
  base::GpuUuid uuid;
  std::copy(std::begin(open.gpu_uuid), std::end(open.gpu_uuid), uuid.bytes.begin());
  const auto gpu = leases_.find(uuid);
  if (session.slot(open.slot) != nullptr) {
    refuse_seat(session, open.slot, wire::Reason::kSlotInUse, "the slot is in use");
    return {};
  }
  if (!gpu) {
    refuse_seat(session, open.slot, wire::Reason::kUnknownGpu, "the daemon does not know " + uuid.to_string());
    return {};
  }
  if (session.slot_on(*gpu) != nullptr) {
    refuse_seat(session, open.slot, wire::Reason::kSlotInUse, "another slot has this GPU");
    return {};
  }
  if (const std::string& why = leases_.gpus()[gpu->value].refused; !why.empty()) {
    refuse_seat(session, open.slot, wire::Reason::kOwnedElsewhere, why);
    return {};
  }
  Slot& slot = session.open_slot(open.slot, *gpu);
  parts_.books.opened(session, slot);
  const base::Standing& standing = session.standing;
  Standings::Share share = parts_.standings.share_on(session, *gpu);
  const bool may_be_back = open.state != wire::SeatState::kNone || tenants_return_;
  parts_.mover_seats.opened(session, slot, open.has_mover != 0);
  const bool can_freeze = session.not_interrupted.empty();
  leases_.apply(node::SeatOpened{
      .lease = {seat_of(session, slot), share.weight, session.ends_own_turns, standing.priority, standing.max_share,
                session.is_suspended, std::move(share.group), session.peer.account.key(), can_freeze},
      .owner = {parts_.quotas.on(session, *gpu), session.peer.account.key()},
      .is_new = !may_be_back,
      .left = parts_.table.take_left(session, *gpu),
  });
  parts_.mail.send(session, wire::SeatOpened{.slot = open.slot, .gpu_index = gpu->value});
  if (open.state != wire::SeatState::kNone) claim(session, slot, open);
  parts_.table.changed(session);
  return {};
}

void Translator::claim(Session& session, Slot& slot, const wire::SeatOpen& open) {
  const bool leased = open.state != wire::SeatState::kWaiting;
  const bool possible = open.epoch <= leases_.newest_possible_epoch().value;
  if (leased && (open.epoch == 0 || !possible)) {
    // No daemon can have given this lease. The core must not hear of the number, for its own would have to exceed it.
    server::log_warning("a tenant claims a lease that no daemon has given",
                        {{"pid", session.peer.pid}, {"epoch", open.epoch}});
    session.page.revoke(slot.number);
    parts_.mail.send(session, wire::Revoke{.slot = slot.number, .epoch = open.epoch});
    return;
  }
  const auto kind = open.exclusive != 0 ? sched::LeaseKind::kExclusive : sched::LeaseKind::kShared;
  auto claimed = sched::Claim::kWaiting;
  if (leased) {
    slot.exclusive = open.exclusive != 0;
    slot.epoch = {open.epoch};
    // The page stays as it is, unless the core decides otherwise.
    slot.granted = open.state == wire::SeatState::kHolding;
    claimed = slot.granted ? sched::Claim::kHolding : sched::Claim::kDraining;
  }
  leases_.apply(sched::SeatClaimed{seat_of(session, slot), claimed, kind, base::LeaseEpoch{possible ? open.epoch : 0}});
}

void Translator::on(Session& session, Slot& slot, const wire::SeatClose& close) {
  const base::SeatId seat = seat_of(session, slot);
  if (slot.granted) session.page.revoke(close.slot);
  const base::TimePoint now = leases_.now();
  parts_.books.closed(session, slot, now);
  parts_.mover_seats.closed(session, slot);
  session.close_slot(close.slot);
  leases_.apply(sched::SeatClosed{seat}, now);
  parts_.table.changed(session);
}

void Translator::on(Session& session, Slot& slot, const wire::Request& /*request*/) {
  leases_.apply(sched::Requested{seat_of(session, slot)});
}

void Translator::on(Session& session, Slot& slot, const wire::RevokeSeen& seen) {
  leases_.apply(sched::RevokeSeen{seat_of(session, slot), {seen.epoch}});
}

// A tenant that says its gate is closed or its work done has given up that lease, whatever we said last. The page
// follows before another seat is granted.
void Translator::closed_by_tenant(Session& session, Slot& slot, base::LeaseEpoch epoch) {
  if (!slot.granted || slot.epoch != epoch) return;
  slot.granted = false;
  session.page.revoke(slot.number);
}

void Translator::on(Session& session, Slot& slot, const wire::GateClosed& closed) {
  closed_by_tenant(session, slot, {closed.epoch});
  leases_.apply(sched::GateClosed{seat_of(session, slot), {closed.epoch}});
}

void Translator::on(Session& session, Slot& slot, const wire::Drained& drained) {
  closed_by_tenant(session, slot, {drained.epoch});
  leases_.apply(sched::Drained{seat_of(session, slot), {drained.epoch}, drained.poisoned != 0, drained.frozen != 0});
}

void Translator::on(Session& session, Slot& slot, const wire::Idling& idling) {
  leases_.apply(sched::Idling{seat_of(session, slot), {idling.epoch}});
}

void Translator::on(Session& session, Slot& slot, const wire::Measured& measured) {
  trials_.measured(seat_of(session, slot), measured.question, measured.submissions);
}

void Translator::on(Session& session, Slot& slot, const wire::Memory& memory) {
  slot.memory = memory;
  parts_.books.reported(session, slot);
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
  if (!parts_.mover_seats.can_move(session, slot))
    report.unpageable += std::min(std::exchange(report.resident, 0), ~std::uint64_t{0} - report.unpageable);
  leases_.apply(node::MemoryReported{seat_of(session, slot), report});
  parts_.mover_seats.reported(session, slot);
}

base::Status Translator::on(Session& session, const wire::RoomWanted& wanted) {
  if (wanted.ticket == 0) return base::fail(base::Code::kProtocol, "a ticket of zero");
  const Slot* const slot = session.slot(wanted.slot);
  if (slot != nullptr)
    leases_.apply(node::RoomWanted{seat_of(session, *slot), wanted.ticket, wanted.room, wanted.commitment,
                                   wanted.managed, wanted.again != 0});
  return {};
}

void Translator::on(Session& session, Slot& slot, const wire::MoverWanted& wanted) {
  parts_.mover_seats.wanted(session, slot, wanted.number);
}

base::Status Translator::on(Session& session, const wire::GangJoin& join) {
  if (++session.gang_joins > kMaxGangJoins) return base::fail(base::Code::kProtocol, "it joins too many gangs");
  leases_.apply(sched::GangJoined{session.id, std::string(wire::text_of(join.key)), 0});
  return {};
}

base::Status Translator::on(Session& session, const wire::Note& note) {
  if (note.kind == wire::NoteKind::kUnknownEntry) {
    parts_.unknown_entries.note(wire::text_of(note.text), session.label->program);
    return {};
  }
  if (note.kind == wire::NoteKind::kUninterruptible) {
    if (!session.not_interrupted.empty()) return {};
    session.not_interrupted = printable(wire::text_of(note.text));
    for (const auto& [number, slot] : session.slots()) leases_.apply(sched::CannotFreeze{seat_of(session, slot)});
  }
  if (!session.notes.take(leases_.now())) {
    ++session.notes_suppressed;
    return {};
  }
  const server::LogFields fields{{"tenant", session.id.value},
                                 {"pid", session.peer.pid},
                                 {"program", session.label->program},
                                 {"suppressed", std::exchange(session.notes_suppressed, 0)},
                                 {"text", wire::text_of(note.text)}};
  const bool is_uninterruptible = note.kind == wire::NoteKind::kUninterruptible;
  log(level_of(note.severity), is_uninterruptible ? "its unfinished work drains" : "note from tenant", fields);
  return {};
}

}  // namespace gpumux::daemon
