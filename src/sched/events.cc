// SPDX-License-Identifier: Apache-2.0
#include "sched/events.h"

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

std::string text(SeatId seat) { return std::to_string(seat.tenant.value) + "@" + std::to_string(seat.gpu.value); }
std::string text(const std::vector<SeatId>& seats) {
  std::string out;
  for (const SeatId seat : seats) out += " " + text(seat);
  return out;
}
std::string text(LeaseEpoch epoch) { return "e" + std::to_string(epoch.value); }
std::string text(GpuIndex gpu) { return "gpu " + std::to_string(gpu.value); }
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
  }
  return "?";
}

std::string_view text(MemoryObstacle obstacle) {
  switch (obstacle) {
    case MemoryObstacle::kNone: return "nothing";
    case MemoryObstacle::kOtherTenants: return "other tenants";
    case MemoryObstacle::kContexts: return "contexts";
    case MemoryObstacle::kOtherPrograms: return "other programs";
    case MemoryObstacle::kNothingMoves: return "nothing moves";
  }
  return "?";
}

std::string text(const GpuSettings& s) {
  std::string out = s.mode == Mode::kSerial ? "serial" : "concurrent";
  out += s.policy == PolicyKind::kFair ? " fair" : " fifo";
  out += " quantum=" + text(s.quantum) + " max_runtime=" + text(s.max_runtime) + " stall=" + text(s.stall_timeout) +
         "/" + text(s.stall_retry) + "/" + text(s.kill_stalled_after) + " step=" + text(s.step_delay) +
         " ageing=" + text(s.gang_ageing) + " priority_ageing=" + text(s.priority_ageing) +
         " idle_hold=" + text(s.idle_hold) + " in_flight=" + text(s.in_flight) + " silence=" + text(s.silence_limit) +
         "/" + text(s.kill_silent_after);
  out += s.overlap ? " overlap" : " no-overlap";
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

std::string times(std::uint32_t count) { return count == 1 ? "" : " times " + std::to_string(count); }

struct EventText {
  std::string operator()(const GpuAdded& e) const {
    return "gpu_added " + text(e.gpu) + " " + text(e.first_epoch) + " " + text(e.settings);
  }
  std::string operator()(const SettingsChanged& e) const { return "settings " + text(e.gpu) + " " + text(e.settings); }
  std::string operator()(const GrantsHeld& e) const {
    return "grants_held " + std::to_string(e.until.time_since_epoch().count());
  }
  std::string operator()(const GrantsAllowed&) const { return "grants_allowed"; }
  std::string operator()(const TenantConnected& e) const {
    return "connect " + std::to_string(e.tenant.value) + " uid " + std::to_string(e.uid);
  }
  std::string operator()(const TenantGone& e) const { return "gone " + std::to_string(e.tenant.value); }
  std::string operator()(const GangJoined& e) const {
    return "gang " + std::to_string(e.tenant.value) + " " + in_quotes(e.key) + " of " + std::to_string(e.world);
  }
  std::string operator()(const SeatOpened& e) const {
    return "open " + text(e.seat) + " weight " + std::to_string(e.weight) +
           (e.ends_own_turns ? " ends_own_turns" : "") +
           (e.priority != 0 ? " priority " + std::to_string(e.priority) : "") +
           (e.cap != kNoCap ? " cap " + std::to_string(e.cap) : "") + (e.is_suspended ? " suspended" : "") +
           (e.share_group.empty() ? "" : " group " + in_quotes(e.share_group));
  }
  std::string operator()(const StandingChanged& e) const {
    return "standing " + text(e.seat) + " priority " + std::to_string(e.priority) + " weight " +
           std::to_string(e.weight) + " cap " + std::to_string(e.cap);
  }
  std::string operator()(const SeatClaimed& e) const {
    return "claim " + text(e.seat) + " " + std::string(text(e.claim)) + " " + std::string(text(e.kind)) + " " +
           text(e.epoch);
  }
  std::string operator()(const SeatClosed& e) const { return "close " + text(e.seat); }
  std::string operator()(const SeatsSuspended& e) const { return "suspend" + text(e.seats); }
  std::string operator()(const SeatsResumed& e) const { return "resume" + text(e.seats); }
  std::string operator()(const Requested& e) const { return "request " + text(e.seat); }
  std::string operator()(const RevokeSeen& e) const { return "revoke_seen " + text(e.seat) + " " + text(e.epoch); }
  std::string operator()(const GateClosed& e) const { return "gate_closed " + text(e.seat) + " " + text(e.epoch); }
  std::string operator()(const Drained& e) const {
    return "drained " + text(e.seat) + " " + text(e.epoch) + (e.poisoned ? " poisoned" : "");
  }
  std::string operator()(const Stepped& e) const {
    return "stepped " + text(e.seat) + " " + text(e.epoch) + times(e.count);
  }
  std::string operator()(const Idling& e) const { return "idling " + text(e.seat) + " " + text(e.epoch); }
  std::string operator()(const MemoryNeed& e) const {
    return "memory " + text(e.seat) + (e.pages ? " pages" : " is there");
  }
  std::string operator()(const MemoryObstructed& e) const {
    return "memory " + text(e.seat) + " obstructed by " + std::string(text(e.obstacle));
  }
  std::string operator()(const MemoryExpected& e) const {
    return "memory " + text(e.seat) + " " + std::string(text(e.outlook));
  }
  std::string operator()(const TimePassed&) const { return "time"; }
};

struct CommandText {
  std::string operator()(const Grant& c) const {
    return "grant " + text(c.seat) + " " + text(c.epoch) + " " + std::string(text(c.kind)) +
           (c.contended ? " contended" : "") + (c.borrowed ? " borrowed" : "");
  }
  std::string operator()(const Revoke& c) const {
    return "revoke " + text(c.seat) + " " + text(c.epoch) + " " + std::string(text(c.reason));
  }
  std::string operator()(const Reopen& c) const {
    return "reopen " + text(c.seat) + " " + text(c.epoch) + " " + std::string(text(c.kind));
  }
  std::string operator()(const Step& c) const { return "step " + text(c.seat) + " " + text(c.epoch) + times(c.count); }
  std::string operator()(const Contention& c) const {
    return "contention " + text(c.seat) + (c.contended ? " yes " : " no ") + text(c.idle_hold) +
           (c.in_flight.is_unlimited() ? "" : " in_flight=" + text(c.in_flight));
  }
  std::string operator()(const HeadsUp& c) const { return "heads_up " + text(c.seat); }
  std::string operator()(const ReportStall& c) const {
    return "stall " + text(c.seat) + " " + text(c.epoch) + " waited " + text(c.waited) + " undrained" +
           text(c.undrained) + (c.partners.empty() ? "" : " partners" + text(c.partners));
  }
  std::string operator()(const ReportSilent& c) const { return "silent " + text(c.seat) + " waited " + text(c.waited); }
  std::string operator()(const ReportAnswering& c) const { return "answering " + text(c.seat); }
  std::string operator()(const KillTenant& c) const {
    return "kill " + std::to_string(c.tenant.value) + (c.reason == KillReason::kSilent ? " silent" : " stalled");
  }
};

}  // namespace

std::string to_string(const Event& event) { return std::visit(EventText(), event); }
std::string to_string(const Command& command) { return std::visit(CommandText(), command); }

}  // namespace gpumux::sched
