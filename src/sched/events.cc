// SPDX-License-Identifier: Apache-2.0
#include "sched/events.h"

#include <concepts>
#include <string_view>

namespace gpumux::sched {
namespace {

std::string text(Duration duration) { return std::to_string(duration.count()) + "ns"; }
template <class T>
std::string text(const Limit<T>& limit) {
  return limit.is_unlimited() ? "unlimited" : text(limit.value());
}
template <class T>
std::string text(const settings::Auto<T>& setting) {
  return setting.is_automatic() ? "auto" : text(setting.value());
}

std::string text(LeaseEpoch epoch) { return "e" + std::to_string(epoch.value); }
std::string text(GpuIndex gpu) { return "gpu " + std::to_string(gpu.value); }
std::string text(SeatId seat) { return to_string(seat); }
std::string text(const std::vector<SeatId>& seats) {
  std::string out;
  for (const SeatId seat : seats) out += (out.empty() ? "" : " ") + text(seat);
  return out;
}
std::string text(std::integral auto number) { return std::to_string(number); }
std::string_view text(std::string_view word) { return word; }
std::string_view text(LeaseKind kind) { return kind == LeaseKind::kExclusive ? "exclusive" : "shared"; }

std::string_view text(Claim claim) {
  switch (claim) {
    case Claim::kWaiting: return "waiting";
    case Claim::kHolding: return "holding";
    case Claim::kDraining: return "draining";
  }
  return "?";
}

std::string_view text(RevokeReason reason) {
  switch (reason) {
    case RevokeReason::kQuantum: return "quantum";
    case RevokeReason::kMaxRuntime: return "max_runtime";
    case RevokeReason::kModeChange: return "mode";
    case RevokeReason::kGang: return "gang";
    case RevokeReason::kUrgent: return "urgent";
    case RevokeReason::kCap: return "cap";
    case RevokeReason::kBadClaim: return "bad_claim";
    case RevokeReason::kMemory: return "memory";
    case RevokeReason::kSuspended: return "suspended";
  }
  return "?";
}

std::string_view text(MemoryOutlook outlook) {
  switch (outlook) {
    case MemoryOutlook::kUnknown: return "is not expected to change";
    case MemoryOutlook::kComes: return "comes";
    case MemoryOutlook::kStays: return "stays";
    case MemoryOutlook::kWants: return "is to be more";
    case MemoryOutlook::kOtherTenants: return "obstructed by other tenants";
    case MemoryOutlook::kContexts: return "obstructed by contexts";
    case MemoryOutlook::kOtherPrograms: return "obstructed by other programs";
    case MemoryOutlook::kNothingMoves: return "obstructed, and nothing moves";
  }
  return "?";
}

std::string text(const GpuSettings& s) {
  std::string out = s.mode == Mode::kSerial ? "serial" : "concurrent";
  out += s.policy == PolicyKind::kFair ? " fair" : " fifo";
  out += " quantum=" + text(s.quantum) + " max_runtime=" + text(s.max_runtime) + " stall=" + text(s.stall_timeout) +
         "/" + text(s.kill_stalled_after) + " ageing=" + text(s.gang_ageing) +
         " priority_ageing=" + text(s.priority_ageing) + " idle_hold=" + text(s.idle_hold) +
         " in_flight=" + text(s.in_flight) + " silence=" + text(s.silence_limit) + "/" + text(s.kill_silent_after);
  out += s.overlap ? " overlap" : " no-overlap";
  if (s.interrupt == settings::Interrupt::kOff) out += " no-interrupt";
  return out;
}

// Its words with a space between them. An empty one is left out.
template <class... Words>
std::string line(const Words&... words) {
  std::string out;
  const auto add = [&out](std::string_view word) {
    if (!out.empty() && !word.empty()) out += ' ';
    out += word;
  };
  (add(text(words)), ...);
  return out;
}

// A hostile program chooses these strings: they must not break a log's lines.
std::string in_quotes(std::string_view raw) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : raw) {
    if (c >= ' ' && c <= '~' && c != '"' && c != '\\') {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
  return out + "\"";
}

struct EventText {
  std::string operator()(const GpuAdded& e) const { return line("gpu_added", e.gpu, e.first_epoch, e.settings); }
  std::string operator()(const SettingsChanged& e) const { return line("settings", e.gpu, e.settings); }
  std::string operator()(const GrantsHeld& e) const { return line("grants_held", e.until.time_since_epoch().count()); }
  std::string operator()(const GrantsAllowed&) const { return "grants_allowed"; }
  std::string operator()(const TenantConnected& e) const { return line("connect", e.tenant.value, "uid", e.uid); }
  std::string operator()(const TenantGone& e) const { return line("gone", e.tenant.value); }
  std::string operator()(const GangJoined& e) const {
    return line("gang", e.tenant.value, in_quotes(e.key), "of", e.world);
  }
  std::string operator()(const SeatOpened& e) const {
    return line("open", e.seat, "weight", e.weight, e.ends_own_turns ? "ends_own_turns" : "",
                e.priority != 0 ? line("priority", e.priority) : "", e.cap != kNoCap ? line("cap", e.cap) : "",
                e.is_suspended ? "suspended" : "", e.share_group.empty() ? "" : line("group", in_quotes(e.share_group)),
                e.account != 0 ? line("account", e.account) : "", e.can_freeze ? "can_freeze" : "");
  }
  std::string operator()(const StandingChanged& e) const {
    return line("standing", e.seat, "priority", e.priority, "weight", e.weight, "cap", e.cap);
  }
  std::string operator()(const SeatClaimed& e) const { return line("claim", e.seat, e.claim, e.kind, e.epoch); }
  std::string operator()(const SeatClosed& e) const { return line("close", e.seat); }
  std::string operator()(const SeatsSuspended& e) const {
    return line(e.are_suspended ? "suspend" : "resume", e.seats);
  }
  std::string operator()(const Requested& e) const { return line("request", e.seat); }
  std::string operator()(const RevokeSeen& e) const { return line("revoke_seen", e.seat, e.epoch); }
  std::string operator()(const GateClosed& e) const { return line("gate_closed", e.seat, e.epoch); }
  std::string operator()(const Drained& e) const {
    return line("drained", e.seat, e.epoch, e.poisoned ? "poisoned" : "", e.is_frozen ? "frozen" : "");
  }
  std::string operator()(const CannotFreeze& e) const { return line("cannot_freeze", e.seat); }
  std::string operator()(const Idling& e) const { return line("idling", e.seat, e.epoch); }
  std::string operator()(const MemoryNeed& e) const { return line("memory", e.seat, e.pages ? "pages" : "is there"); }
  std::string operator()(const MemoryExpected& e) const { return line("memory", e.seat, e.outlook); }
  std::string operator()(const TimePassed&) const { return "time"; }
};

struct CommandText {
  std::string operator()(const Grant& c) const {
    return line("grant", c.seat, c.epoch, c.kind, c.contended ? "contended" : "", c.borrowed ? "borrowed" : "",
                c.again ? "again" : "");
  }
  std::string operator()(const Revoke& c) const {
    return line("revoke", c.seat, c.epoch, c.reason,
                c.drains_for.is_unlimited() ? "" : "drains_for=" + text(c.drains_for));
  }
  std::string operator()(const Contention& c) const {
    return line("contention", c.seat, c.contended ? "yes" : "no", c.idle_hold,
                c.in_flight.is_unlimited() ? "" : "in_flight=" + text(c.in_flight));
  }
  std::string operator()(const HeadsUp& c) const { return line("heads_up", c.seat); }
  std::string operator()(const ReportStall& c) const {
    return line("stall", c.seat, c.epoch, "waited", c.waited, c.partners.empty() ? "" : "partners", c.partners);
  }
  std::string operator()(const ReportSilent& c) const { return line("silent", c.seat, "waited", c.waited); }
  std::string operator()(const ReportAnswering& c) const { return line("answering", c.seat); }
  std::string operator()(const KillTenant& c) const {
    return line("kill", c.tenant.value, c.reason == KillReason::kSilent ? "silent" : "stalled");
  }
};

}  // namespace

std::string to_string(SeatId seat) { return std::to_string(seat.tenant.value) + "@" + std::to_string(seat.gpu.value); }
std::string to_string(const Event& event) { return std::visit(EventText(), event); }
std::string to_string(const Command& command) { return std::visit(CommandText(), command); }

}  // namespace gpumux::sched
