// SPDX-License-Identifier: Apache-2.0
#include "daemon/gpus/leases.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/limits.h"
#include "base/units.h"
#include "daemon/loop/message_log.h"
#include "server/api/api_types.h"
#include "server/loop/log.h"
#include "settings/settings.h"

namespace gpumux::daemon {
namespace {

using base::SeatId;

// Epochs start where the time since boot puts them. So a new daemon's are above all that an earlier one has given,
// without any file. Granting cannot use up 4096 of them a microsecond. In 64 bits this lasts 142 years.
constexpr std::uint64_t kEpochsPerMicrosecond = 4096;

std::uint64_t epoch_of_now() {
  timespec t{};
  ::clock_gettime(CLOCK_BOOTTIME, &t);
  const auto microseconds =
      static_cast<std::uint64_t>(t.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(t.tv_nsec) / 1000;
  return microseconds * kEpochsPerMicrosecond;
}

std::string_view reason_text(sched::RevokeReason reason) {
  switch (reason) {
    case sched::RevokeReason::kQuantum: return "quantum";
    case sched::RevokeReason::kMaxRuntime: return "max_runtime";
    case sched::RevokeReason::kModeChange: return "mode_change";
    case sched::RevokeReason::kGang: return "gang";
    case sched::RevokeReason::kUrgent: return "urgent";
    case sched::RevokeReason::kCap: return "cap";
    case sched::RevokeReason::kBadClaim: return "bad_claim";
    case sched::RevokeReason::kMemory: return "memory";
    case sched::RevokeReason::kSuspended: return "suspended";
  }
  return "";
}

std::string_view claim_text(sched::Claim claim) {
  switch (claim) {
    case sched::Claim::kWaiting: return "waiting";
    case sched::Claim::kHolding: return "holding";
    case sched::Claim::kDraining: return "draining";
  }
  return "";
}

template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

std::string_view in_words(sched::Refusal refusal) {
  switch (refusal) {
    case sched::Refusal::kNone: break;
    case sched::Refusal::kQuota: return "its run would have more than its quota";
    case sched::Refusal::kGpuMemory: return "its GPU has no room for it next to the memory that stays there";
    case sched::Refusal::kHostMemory:
      return "all allocations together would be more than the GPUs and the host memory budget hold";
    case sched::Refusal::kNothingMoves: return "it would fit, but no memory has moved for too long";
  }
  return {};
}

std::string name_of(sched::Mode mode) { return mode == sched::Mode::kSerial ? "serial" : "concurrent"; }

// The settings that differ, old and new: {"quantum": ["auto", "50ms"]}.
std::shared_ptr<const std::string> changes_json(const GpuSettings& before, const GpuSettings& after) {
  std::map<std::string_view, std::string> old;
  settings::show(before,
                 [&](const settings::Setting& setting, std::string text) { old[setting.name] = std::move(text); });
  std::string json;
  settings::show(after, [&](const settings::Setting& setting, const std::string& text) {
    const std::string& was = old[setting.name];
    if (was == text) return;
    json += json.empty() ? "" : ", ";
    json +=
        server::json_string(setting.name) + ": [" + server::json_string(was) + ", " + server::json_string(text) + "]";
  });
  return std::make_shared<const std::string>("{" + json + "}");
}

}  // namespace

Leases::Leases(const base::Clock& clock, Trace& trace)
    : clock_(clock),
      trace_(trace),
      machine_(static_cast<node::Probe*>(this)),
      refusals_([this](base::TenantId tenant) { return label(tenant); }) {}

void Leases::add_gpu(GpuInfo info, const GpuSettings& settings, std::string refused) {
  const base::GpuIndex index{static_cast<std::uint32_t>(gpus_.size())};
  const bool served = refused.empty();
  Gpu& gpu = gpus_.emplace_back();
  gpu.info = std::move(info);
  gpu.settings = settings;
  gpu.refused = std::move(refused);
  if (served) add_to_machine(index);
}

void Leases::serve(base::GpuIndex gpu) {
  Gpu& target = gpus_.at(gpu.value);
  if (target.refused.empty()) return;
  target.refused.clear();
  add_to_machine(gpu);
  tell_settings_();
}

void Leases::add_to_machine(base::GpuIndex index) {
  Gpu& gpu = gpus_.at(index.value);
  apply(node::GpuAdded{index, gpu.settings, base::LeaseEpoch{epoch_of_now()}, gpu.info.memory_total});
  gpu.mode = machine_.mode(index).value_or(gpu.mode);
}

std::optional<base::GpuIndex> Leases::find(const base::GpuUuid& uuid) const {
  for (std::size_t i = 0; i < gpus_.size(); ++i) {
    if (gpus_[i].info.uuid == uuid) return base::GpuIndex{static_cast<std::uint32_t>(i)};
  }
  return std::nullopt;
}

void Leases::set_use(std::size_t index, GpuUse use) {
  if (index >= gpus_.size()) return;
  Gpu& gpu = gpus_[index];
  if (use.sick != gpu.use.sick) {
    if (use.sick.empty()) {
      server::log_info("the GPU is healthy again", {{"gpu", gpu.info.uuid_text}});
    } else {
      server::log_warning("the GPU is sick", {{"gpu", gpu.info.uuid_text}, {"why", use.sick}});
    }
  }
  gpu.use = std::move(use);
}

void Leases::set_settings(base::GpuIndex gpu, const GpuSettings& settings) {
  Gpu& target = gpus_.at(gpu.value);
  if (target.settings == settings) return;
  settings_changes_ = changes_json(target.settings, settings);
  target.settings = settings;
  if (!target.refused.empty()) return;
  apply(node::SettingsChanged{gpu, settings});
  target.mode = machine_.mode(gpu).value_or(target.mode);
  tell_settings_();
}

void Leases::connected(base::TenantId tenant, std::shared_ptr<const TenantLabel> label) {
  const std::uint32_t uid = label->uid;
  labels_[tenant] = std::move(label);
  apply(sched::TenantConnected{tenant, uid});
}

void Leases::gone(base::TenantId tenant, std::string_view why, base::TimePoint now) {
  if (!labels_.contains(tenant)) return;
  TraceEntry traced{.time = now, .event = "gone", .detail = why, .tenant = tenant, .label = label(tenant)};
  trace_.record(std::move(traced));
  apply(sched::TenantGone{tenant}, now);
  for (std::size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
    forget({tenant, {static_cast<std::uint32_t>(gpu)}});
  }
  labels_.erase(tenant);
}

void Leases::forget(SeatId seat) {
  seats_.erase(seat);
  refusals_.gone(seat);
}

void Leases::apply(const node::Event& event, base::TimePoint now) {
  // The executor does not call back, so one buffer does for all calls.
  commands_.clear();
  const auto* const drained = std::get_if<sched::Drained>(&event);
  const base::Duration idle_before = drained == nullptr ? base::Duration() : totals(drained->seat, now).idle;
  machine_.apply(now, event, commands_);
  for (const node::Command& command : commands_) server::debug_text("decision of the node", command);
  if (executor_) {
    for (const node::Command& command : commands_) executor_(command);
  }
  // Written down after the commands: tenants wait for those, and for no record.
  record_event(now, event, idle_before);
  for (const node::Command& command : commands_)
    std::visit([&](const auto& one) { record_command(now, one); }, command);
  if (const auto gpu = machine_.restless(); gpu && !std::exchange(was_restless_, true))
    server::log_error("a fault of gpumux: turns and memory change each other for ever; the last plan stands",
                      {{"gpu", gpu->value}});
}

void Leases::told(const sched::Event& event) { server::debug_text("event of the leases", event); }

base::LeaseEpoch Leases::newest_possible_epoch() const { return {epoch_of_now()}; }

std::shared_ptr<const TenantLabel> Leases::label(base::TenantId tenant) const {
  static const auto kNobody = TenantLabel::make(0, 0, "");
  const auto found = labels_.find(tenant);
  return found == labels_.end() ? kNobody : found->second;
}

std::string Leases::note(SeatId seat) const {
  const auto found = seats_.find(seat);
  return found == seats_.end() ? std::string() : found->second.note;
}

TraceEntry Leases::entry(base::TimePoint now, std::string_view name, SeatId seat) const {
  return TraceEntry{.time = now,
                    .event = name,
                    .gpu = static_cast<std::int32_t>(seat.gpu.value),
                    .tenant = seat.tenant,
                    .label = label(seat.tenant)};
}

void Leases::record(base::TimePoint now, std::string_view name, SeatId seat, base::LeaseEpoch epoch,
                    std::string_view detail) {
  TraceEntry traced = entry(now, name, seat);
  traced.epoch = epoch;
  traced.detail = detail;
  trace_.record(std::move(traced));
}

// "train.py (812, GPU 0)" for each. `reader`: the only user who may see the programs' names; none: every user may.
std::string Leases::names_of(const std::vector<SeatId>& seats, std::optional<uid_t> reader) const {
  std::string names;
  for (const SeatId seat : seats) {
    const auto tenant = label(seat.tenant);
    const bool is_hidden = reader && *reader != tenant->uid;
    names += (names.empty() ? "" : ", ") + (is_hidden ? std::string("a program") : tenant->program) + " (" +
             std::to_string(tenant->pid) + ", GPU " + std::to_string(seat.gpu.value) + ")";
  }
  return names;
}

// Whether it is among the commands of the last event.
bool Leases::grants(SeatId seat) const {
  return std::any_of(commands_.begin(), commands_.end(), [seat](const node::Command& command) {
    const auto* lease = std::get_if<sched::Command>(&command);
    const auto* grant = lease == nullptr ? nullptr : std::get_if<sched::Grant>(lease);
    return grant != nullptr && grant->seat == seat;
  });
}

// A request that has crossed its grant asks for nothing.
void Leases::record_request(base::TimePoint now, SeatId seat) {
  if (machine_.leases().phase(seat) == sched::SeatPhase::kHolding && !grants(seat)) return;
  if (!std::exchange(seats_[seat].is_request_traced, true)) record(now, "request", seat);
}

void Leases::record_event(base::TimePoint now, const node::Event& event, base::Duration idle_before) {
  std::visit(Overloaded{
                 [&](const sched::TenantConnected& e) {
                   trace_.record({.time = now, .event = "connect", .tenant = e.tenant, .label = label(e.tenant)});
                 },
                 [&](const node::SeatOpened& e) { record(now, "open", e.lease.seat); },
                 [&](const sched::StandingChanged& e) { record(now, "standing", e.seat); },
                 [&](const sched::SeatsSuspended& e) {
                   const auto name = e.are_suspended ? "suspend" : "resume";
                   for (const SeatId seat : e.seats) record(now, name, seat);
                 },
                 [&](const sched::SeatClaimed& e) { record(now, "claim", e.seat, e.epoch, claim_text(e.claim)); },
                 [&](const sched::SeatClosed& e) {
                   record(now, "close", e.seat);
                   forget(e.seat);
                 },
                 [&](const sched::Requested& e) { record_request(now, e.seat); },
                 [&](const node::MemoryReported& e) { record_memory(now, e.seat, e.report); },
                 [&](const node::RoomWanted& e) { refusals_.wanted(e); },
                 [&](const sched::GateClosed& e) { record(now, "gate_closed", e.seat, e.epoch); },
                 [&](const sched::Drained& e) {
                   TraceEntry traced = entry(now, "drained", e.seat);
                   traced.epoch = e.epoch;
                   traced.lasted = totals(e.seat, now).idle - idle_before;
                   if (traced.lasted > base::Duration::zero()) traced.before = "idle";
                   if (e.is_frozen) traced.detail = "frozen";
                   trace_.record(std::move(traced));
                   seats_[e.seat].note.clear();
                   if (e.is_frozen) record_request(now, e.seat);  // it waits from now on
                 },
                 [&](const node::SettingsChanged& e) {
                   trace_.record({.time = now,
                                  .event = "settings",
                                  .gpu = static_cast<std::int32_t>(e.gpu.value),
                                  .changes_json = std::move(settings_changes_)});
                 },
                 [](const auto&) {},
             },
             event);
}

// Memory that moves goes out if a report has less of it on the GPU than the report before. It comes in if the report
// has more.
void Leases::record_memory(base::TimePoint now, SeatId seat, const sched::MemoryReport& report) {
  if (!memory().has(seat)) return;
  Remembered& traced = seats_[seat];
  const std::uint64_t resident_before = std::exchange(traced.resident, report.resident);
  const std::uint64_t away_before = std::exchange(traced.away, report.evicted + report.managed_away);
  const Moves moves_before = traced.moves;
  if (!report.moving || traced.away == 0) {
    traced.moves = Moves::kNowhere;
  } else if (traced.resident < resident_before) {
    traced.moves = Moves::kOut;
  } else if (traced.resident > resident_before) {
    traced.moves = Moves::kIn;
  }
  if (traced.away > 0 && away_before == 0) record(now, "evicted", seat);
  if (traced.moves != moves_before) {
    record(now, "moves", seat, {}, traced.moves == Moves::kOut ? "out" : traced.moves == Moves::kIn ? "in" : "nowhere");
  }
  if (traced.away == 0 && away_before > 0) record(now, "complete", seat);
}

void Leases::record_command(base::TimePoint now, const sched::Command& command) {
  std::visit(Overloaded{
                 [&](const sched::Grant& c) {
                   TraceEntry traced = entry(now, "grant", c.seat);
                   traced.epoch = c.epoch;
                   traced.has_lease = true;
                   traced.exclusive = c.kind == sched::LeaseKind::kExclusive;
                   if (c.borrowed) traced.detail = "borrowed";
                   if (c.again) traced.detail = "again";
                   trace_.record(std::move(traced));
                   seats_[c.seat].is_request_traced = false;
                 },
                 [&](const sched::Revoke& c) { record(now, "revoke", c.seat, c.epoch, reason_text(c.reason)); },
                 [](const sched::Contention&) {},
                 [](const sched::HeadsUp&) {},
                 [&](const sched::ReportStall& c) {
                   record(now, "stall", c.seat, c.epoch);
                   for (const SeatId partner : c.partners) record(now, "partner", partner);
                   const auto tenant = label(c.seat.tenant);
                   std::string& note = seats_[c.seat].note;
                   note = "its submitted work did not finish within " + base::format_duration(c.waited) +
                          " of a revocation, and runs beside that of others";
                   // The seat's user sees it.
                   if (!c.partners.empty()) note += "; it may wait for " + names_of(c.partners, tenant->uid);
                   server::log_warning("a tenant's work does not drain; it runs beside the work of others",
                                       {{"pid", tenant->pid},
                                        {"program", tenant->program},
                                        {"gpu", c.seat.gpu.value},
                                        {"waited", base::format_duration(c.waited)},
                                        {"likely_partners", names_of(c.partners)}});
                 },
                 [&](const sched::ReportSilent& c) {
                   record(now, "silent", c.seat);
                   const auto tenant = label(c.seat.tenant);
                   seats_[c.seat].note = "does not answer";
                   server::log_warning("a tenant does not answer a revocation; others go on without waiting for it",
                                       {{"pid", tenant->pid},
                                        {"program", tenant->program},
                                        {"gpu", c.seat.gpu.value},
                                        {"waited", base::format_duration(c.waited)}});
                 },
                 [&](const sched::ReportAnswering& c) {
                   record(now, "answering", c.seat);
                   const auto tenant = label(c.seat.tenant);
                   seats_[c.seat].note.clear();
                   server::log_info("a silent tenant answers again",
                                    {{"pid", tenant->pid}, {"program", tenant->program}, {"gpu", c.seat.gpu.value}});
                 },
                 [&](const sched::KillTenant& c) {
                   const auto tenant = label(c.tenant);
                   const bool is_silent = c.reason == sched::KillReason::kSilent;
                   trace_.record({.time = now,
                                  .event = "kill",
                                  .detail = is_silent ? "silent" : "stalled",
                                  .tenant = c.tenant,
                                  .label = tenant});
                   server::log_warning(
                       is_silent ? "a tenant was silent longer than kill_silent_after: it is killed"
                                 : "a tenant's work has not drained for longer than kill_stalled_after, and others "
                                   "wait: it is killed",
                       {{"pid", tenant->pid}, {"program", tenant->program}});
                 },
             },
             command);
}

void Leases::record_command(base::TimePoint now, const sched::RoomBound& bound) {
  const auto tenant = label(bound.seat.tenant);
  const RefusedAllocation* const refused =
      bound.refused() ? refusals_.refused(now, bound.seat, bound.refusal, memory()) : nullptr;
  if (refused != nullptr) {
    server::log_info("an allocation is refused", {{"why", in_words(bound.refusal)},
                                                  {"pid", tenant->pid},
                                                  {"program", tenant->program},
                                                  {"gpu", bound.seat.gpu.value},
                                                  {"asked", refused->wanted - std::min(refused->wanted, refused->had)},
                                                  {"had", refused->had}});
    record(now, "refused", bound.seat, {}, word_of(bound.refusal));
  }
  if (bound.is_stranded) {
    server::log_warning(
        "memory that cannot leave a GPU blocks all its programs: one of them is told that it has no memory",
        {{"pid", tenant->pid}, {"program", tenant->program}, {"gpu", bound.seat.gpu.value}});
  }
}

void Leases::record_command(base::TimePoint now, const node::ModeChanged& change) {
  const sched::Mode before = std::exchange(gpus_.at(change.gpu.value).mode, change.mode);
  trace_.record({.time = now,
                 .event = "settings",
                 .gpu = static_cast<std::int32_t>(change.gpu.value),
                 .changes_json = std::make_shared<const std::string>("{\"mode_now\": [\"" + name_of(before) + "\", \"" +
                                                                     name_of(change.mode) + "\"]}")});
}

void Leases::record_command(base::TimePoint /*now*/, const node::TurnsForMemory& change) {
  server::log_info(change.are_needed ? "the programs on a GPU do not fit together: they take turns"
                                     : "the programs on a GPU fit together: they run at once",
                   {{"gpu", change.gpu.value}});
}

}  // namespace gpumux::daemon
