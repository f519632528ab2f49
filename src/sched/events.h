// SPDX-License-Identifier: Apache-2.0
// The lease core's whole interface, as plain values: events, and the commands that follow.
//
// The same events at the same times give the same commands, byte for byte. So a run can be replayed and simulated.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "settings/structs.gen.h"

namespace gpumux::sched {

using base::Duration;
using base::GpuIndex;
using base::LeaseEpoch;
using base::SeatId;
using base::TenantId;
using base::TimePoint;
using settings::kAutomatic;
using settings::kUnlimited;
using settings::Limit;

enum class Mode { kSerial, kConcurrent };  // exclusive quanta / shared leases, all at once
using PolicyKind = settings::Policy;       // among those of one priority
enum class LeaseKind { kExclusive, kShared };
enum class Way : std::uint8_t { kAtOnce, kByTurns };  // of the modes that memory leaves open

inline constexpr std::uint32_t kNoCap = 1000;  // thousandths

// One GPU's settings. All may change while tenants run.
struct GpuSettings : settings::LeaseSettings {
  Mode mode = Mode::kSerial;  // at this moment: the setting may leave it to the daemon
  bool operator==(const GpuSettings&) const = default;
};

// ---- events -----------------------------------------------------------------------------------------------

// clang-format off
struct GpuAdded { GpuIndex gpu; GpuSettings settings; LeaseEpoch first_epoch; };
struct SettingsChanged { GpuIndex gpu; GpuSettings settings; };
// No grants on any GPU until `until`, or until GrantsAllowed: the daemon has restarted, and holders are coming back.
struct GrantsHeld { TimePoint until; };
struct GrantsAllowed {};
struct TenantConnected { TenantId tenant; std::uint32_t uid = 0; };
struct TenantGone { TenantId tenant; };  // dead or disconnected for good: all its seats and places are free
// Joins the gang `key` of its user; an empty key makes a gang of this tenant's own seats. `world`: how many members
// will join; 0: unknown.
struct GangJoined { TenantId tenant; std::string key; std::uint32_t world = 0; };
// clang-format on
// A seat's standing among those that want its GPU. It is told from the beginning: a gang has the highest priority of
// its members, and must not have another one between two events.
struct SeatOpened {
  SeatId seat;
  std::uint32_t weight = 1;     // its group's part of the time among equals (fair): only ratios count. The daemon gives
                                // hundredths of a share (base::kOneShare)
  bool ends_own_turns = false;  // while all seats of its GPU are of one account, no quantum ends its leases, and seats
                                // that wait for its GPU are served in order of arrival
  std::int32_t priority = 0;    // higher first
  std::uint32_t cap = kNoCap;   // thousandths of all time that it may have at most, even if no other seat wants the GPU
  bool is_suspended = false;    // from the beginning, as by SeatsSuspended: in between it could be granted
  std::string share_group{};    // all seats of its GPU in this group have one weight and one account of time; empty:
                                // the seat is a group by itself
  std::uint64_t account = 0;    // its owner's (SeatOwner::account)
  bool can_freeze = false;      // work that does not drain can be frozen, as far as is known
};
struct StandingChanged {
  SeatId seat;
  std::int32_t priority = 0;
  std::uint32_t weight = 1;  // of its group
  std::uint32_t cap = kNoCap;
};
// clang-format off
// After SeatOpened, when a tenant comes back: what it still has. A claim that cannot be true is answered with Revoke.
enum class Claim { kWaiting, kHolding, kDraining };
struct SeatClaimed { SeatId seat; Claim claim; LeaseKind kind; LeaseEpoch epoch; };
struct SeatClosed { SeatId seat; };
// The core gives these seats no lease until they are resumed (`are_suspended` is false). It revokes what they hold, and
// remembers what they ask for. All seats of a run are in one event. Otherwise, of two that take turns, the core would
// grant the second one what the first one gives up.
struct SeatsSuspended { std::vector<SeatId> seats; bool are_suspended = true; };
// A thread waits at the gate. Harmless when repeated, or when a grant has crossed it.
struct Requested { SeatId seat; };
// These four name the epoch that they speak of, and mean nothing under another than the seat's latest one.
struct RevokeSeen { SeatId seat; LeaseEpoch epoch; };
struct GateClosed { SeatId seat; LeaseEpoch epoch; };
// Unasked while holding: a release. `is_frozen`: its work has been taken off the GPU in the middle. It goes on with the
// next lease, for which the seat waits from then on.
struct Drained { SeatId seat; LeaseEpoch epoch; bool poisoned = false; bool is_frozen = false; };
// The driver does not freeze its work: from now on a revocation of its unit is a drain.
struct CannotFreeze { SeatId seat; };
// An idle holder will give its lease up in a moment, unless it finds work again. Only a hint.
struct Idling { SeatId seat; LeaseEpoch epoch; };
// Whether something of the seat's memory is not on the GPU: its work cannot run before that is there. Such a seat is
// not granted while a predecessor drains, and its quantum begins when it says that all is there.
struct MemoryNeed { SeatId seat; bool pages = false; };
// The residency planner's expectation of the seat's memory. kComes, of holders and of the seat that is next: what it
// lacks, or waits to allocate, is on its way. No holder's memory is needed for that. kStays, of the seat that is next:
// it lacks nothing, and will lose nothing to the seats before it. kWants, of seats that wait: it asks for more than it
// has, or will as soon as it holds.
//
// The others are obstacles: what the seat lacks cannot come. Such a seat waits behind all that can run, and gives its
// lease to them. `evicted`: what it lacks, in bytes.
enum class MemoryOutlook {
  kUnknown, kComes, kStays, kWants,
  kOtherTenants /* cannot give up theirs */, kContexts /* of tenants */, kOtherPrograms, kNothingMoves
};
constexpr bool is_obstacle(MemoryOutlook outlook) { return outlook >= MemoryOutlook::kOtherTenants; }
struct MemoryExpected { SeatId seat; MemoryOutlook outlook = MemoryOutlook::kUnknown; std::uint64_t evicted = 0; };
struct TimePassed {};  // the deadline asked for has come (or any other moment)
// clang-format on

using Event =
    std::variant<GpuAdded, SettingsChanged, GrantsHeld, GrantsAllowed, TenantConnected, TenantGone, GangJoined,
                 SeatOpened, StandingChanged, SeatClaimed, SeatClosed, SeatsSuspended, Requested, RevokeSeen,
                 GateClosed, Drained, CannotFreeze, Idling, MemoryNeed, MemoryExpected, TimePassed>;

// ---- commands ---------------------------------------------------------------------------------------------

// clang-format off
// `idle_hold`: how long to keep a contended lease while idle. `borrowed`: the seat has an exclusive lease together with
// a holder that waits for its memory. `again`: a gang that stays half drained may submit for a moment more.
struct Grant {
  SeatId seat; LeaseEpoch epoch; LeaseKind kind; bool contended; Limit<Duration> idle_hold{}; bool borrowed = false;
  bool again = false;
};
enum class RevokeReason { kQuantum, kMaxRuntime, kModeChange, kGang, kUrgent, kCap, kBadClaim, kMemory, kSuspended };
// Close the gate, drain, and say so. Every agent whose latest epoch this is answers RevokeSeen
// at once, even if it has released that lease already. It says GateClosed and Drained when they are true, and repeats
// them if it has said them before. Sent again for the same epoch while a seat drains for long. Then it mainly asks
// whether the agent is alive.
// `drains_for`: work that has not finished then is frozen.
struct Revoke { SeatId seat; LeaseEpoch epoch; RevokeReason reason; Limit<Duration> drains_for{}; };
// Whether a seat waits for a GPU that this seat's unit holds. Also sent when the seat is opened, and when its idle hold
// or its in-flight bound changes: a Grant says only whether it is contended. `in_flight`: the most work that it may
// have queued.
struct Contention { SeatId seat; bool contended; Limit<Duration> idle_hold; Limit<Duration> in_flight; };
// A grant is likely to come. Sent to the next unit's members when the unit before it is told to go, has closed its
// gates, or is about to give up. Only a hint: it promises nothing, and is sent once.
struct HeadsUp { SeatId seat; };
// The seat has not drained. It counts as drained all the same from now on, and its work runs beside that of the next
// holders. One for each such seat of a unit. `partners`, of the unit's first one: seats that it may be waiting for,
// longest wait first (partners.cc).
struct ReportStall {
  SeatId seat;
  LeaseEpoch epoch;
  Duration waited;
  std::vector<SeatId> partners;
};
struct ReportSilent { SeatId seat; Duration waited; };  // its agent does not answer; others go on without it
struct ReportAnswering { SeatId seat; };                // it answers again
enum class KillReason { kSilent, kStalled };            // for longer than the configured limit
struct KillTenant { TenantId tenant; KillReason reason; };
// clang-format on

using Command =
    std::variant<Grant, Revoke, Contention, HeadsUp, ReportStall, ReportSilent, ReportAnswering, KillTenant>;

std::string to_string(SeatId seat);  // tenant@gpu
// One line each, for logs that are compared byte for byte.
std::string to_string(const Event& event);
std::string to_string(const Command& command);

}  // namespace gpumux::sched
