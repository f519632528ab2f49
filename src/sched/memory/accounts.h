// SPDX-License-Identifier: Apache-2.0
// What the residency planner knows: of each seat what it has said and was told, and of each GPU what is there. Also how
// much a seat counts for, which follows from that.
//
// The planner's events change accounts (residency.h). Plans, promises, wishes and outlooks are made from them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "sched/memory/memory_types.h"
#include "sched/turns.h"

namespace gpumux::sched {

// A seat that has not answered its first bound by then is taken to leave its memory to the driver. (That first bound
// gives it nothing: a seat that is stopped before it answers has nothing that is not counted.)
inline constexpr Duration kFirstReportPatience = std::chrono::seconds(1);
// A seat confirms a bound within a millisecond or so; a machine under load takes longer. As the lease core's silence
// limit.
inline constexpr Duration kAnswerPatience = std::chrono::milliseconds(500);
// The driver has returned a killed tenant's memory by then (40 GiB were back after 68 ms).
inline constexpr Duration kReturnPatience = std::chrono::seconds(2);
// Nothing has moved for this long: the seats that could make room are stopped, or do not drain. Without gpumux the
// allocation would have failed at once.
inline constexpr Duration kRoomPatience = std::chrono::seconds(10);
// A program whose memory cannot come back has been told so: it ends by then, or goes on without. A process that exits
// with 20 GiB of registered host memory takes several seconds.
inline constexpr Duration kStrandedPatience = std::chrono::seconds(60);
// Other seats free memory time and again, and it does not help. A whole GPU has left over a slow bus (5 GB/s) by then.
inline constexpr Duration kLongestRoomWait = std::chrono::seconds(20);
// A seat takes the room that it was given as soon as its thread has woken up; on a busy machine, a little later. Until
// then that room is not spare.
inline constexpr Duration kTakePatience = std::chrono::milliseconds(250);
// A holder lacks memory, and for this long nothing has been freed for it: other seats may use the GPU. Getting the
// first host memory ready takes some tenths of a second.
inline constexpr Duration kHolderPatience = std::chrono::seconds(2);
// The holder is tried again after this, doubled each time up to the longest. The GPU is idle for less than a thirtieth
// of the time then.
inline constexpr Duration kHolderRetry = std::chrono::seconds(4);
inline constexpr Duration kLongestHolderRetry = std::chrono::seconds(64);
// The last look at other programs' memory is up to a second old, and only two looks show that it has become less.
// Before a new look, or for this long, no allocation is refused because of it.
inline constexpr Duration kForeignPatience = std::chrono::seconds(2);
// How long before its quantum ends a holder's managed memory begins to leave, at most: 25 GB leave over a fast bus.
inline constexpr Duration kExpectEvictionAhead = std::chrono::milliseconds(500);
// The holder's own work misses what has left. So it leaves only within this part of the turn.
inline constexpr int kManagedAheadPart = 8;
// Bounds under way to one seat; beyond them the newest one waits for an answer. A stopped tenant does not read, and
// what it does not read must not pile up.
inline constexpr std::size_t kMaxBoundsUnderWay = 8;

// `at` is still to come. None: it is not.
inline bool is_before(TimePoint now, const std::optional<TimePoint>& at) { return at && now < *at; }
// `at`, or `other` if that is later.
inline TimePoint latest(TimePoint at, const std::optional<TimePoint>& other) {
  return std::max(at, other.value_or(at));
}

// The earlier one of those that there are.
inline std::optional<TimePoint> earlier(const std::optional<TimePoint>& one, const std::optional<TimePoint>& other) {
  return one && other ? std::min(one, other) : std::max(one, other);
}

// A bound that a seat was told.
struct ToldBound {
  std::uint32_t sequence = 0;
  std::uint64_t room = 0;
  std::uint64_t commitment = 0;
  std::uint64_t most = 0;
  TimePoint told_at{};
  bool is_stranded = false;
};
// While its turn is kHolding.
struct HeldTurn {
  TimePoint since{};
  bool told_to_prepare = false;
};
// A wish of a seat's threads. Several may wait: the newest ticket answers all, so it asks for the most of them.
struct Wish {
  std::uint32_t ticket = 0;
  TimePoint since{};
  std::uint64_t room = 0;
  std::uint64_t commitment = 0;
  std::uint64_t managed = 0;
};
// Bytes that a seat was given because it asked. It takes them in a moment, and needs them until then.
struct Given {
  std::uint64_t bytes = 0;
  TimePoint until{};
};
// Nothing has moved for the seat: it is expected to move at that moment, `after` it was found.
struct Retry {
  Duration after{};
  TimePoint at{};
};
enum class Voice {
  kNone,    // it has not reported
  kBack,    // the same, and it gets no bound before it has reported
  kSpeaks,  // it has reported
};

struct SeatAccount {
  SeatId id;
  Quota quota;
  std::uint64_t account = 0;
  MemoryReport report;
  std::uint64_t promised = 0;  // of report.allocated, when it was reported; `bounds` may promise more by now
  Voice voice = Voice::kNone;
  bool is_awaited = false;  // what it reports first was promised by an earlier daemon, and tenants are still awaited
  std::uint64_t left = 0;
  bool suspended = false;
  TimePoint opened_at{};
  std::deque<ToldBound> bounds;  // the one in force, then those under way; the last one is what it was told
  std::optional<Wish> wish;
  std::uint32_t answered = 0;  // the newest ticket that is
  std::optional<Given> given_room;
  std::optional<Given> given_commitment;
  bool wants_more = false;                          // it was answered without room, and asks again when it holds
  std::optional<TimePoint> grows_until;             // it was given more than it ever had, and is likely to ask for more
  std::uint64_t most_had = 0;                       // all of its memory, at its peak
  MemoryOutlook outlook = MemoryOutlook::kUnknown;  // as the lease core was told
  // Its turn, at the last plan. When a holder's is over, as it looked then.
  TurnKind turn = TurnKind::kIdle;
  TimePoint ends = TimePoint::max();
  std::optional<TimePoint> next_since;
  std::optional<HeldTurn> hold;
  bool is_stranded = false;                // nothing in its way moves, and its program is told so
  std::optional<TimePoint> lacking_since;  // holding, and nothing has come since
  std::optional<Retry> retry;              // the last one, while it lacks memory

  // A seat that never reports leaves its memory to the driver: it counts as foreign.
  bool counts() const { return voice == Voice::kSpeaks; }
  std::uint64_t has() const { return report.resident + report.unpageable; }
  // A holder whose work cannot run. Memory is still on its way out, the driver refuses the holder's own, or the holder
  // is stopped and does not fetch it.
  bool is_lacking() const { return turn == TurnKind::kHolding && report.evicted > 0; }
  // Memory that does not leave is in the way of what it lacks, for longer than a look can be wrong.
  bool is_blocked() const { return outlook == MemoryOutlook::kContexts || outlook == MemoryOutlook::kOtherTenants; }
  // Its memory once all of it is there. (While nothing moves, the sum is believed: `allocated` is what its program
  // asked for, which may take a little more.)
  std::uint64_t all() const {
    const std::uint64_t sum = has() + report.evicted;
    if (!report.moving) return sum;
    return std::clamp(report.allocated - std::min(report.allocated, report.managed), has(), sum);
  }
  // Its managed memory once it is given what it waits for.
  std::uint64_t managed() const { return wish ? std::max(report.managed, wish->managed) : report.managed; }
  // The part of all() that can leave.
  std::uint64_t pageable() const { return all() - report.unpageable; }
  // It is suspended, and none of its work can need its memory any more.
  bool is_out() const { return suspended && turn > TurnKind::kNext; }
  // It is told less as soon as it has drained.
  bool is_told_too_much() const {
    return suspended && (told_room() > report.unpageable || told_commitment() > report.allocated);
  }
  // It waits, and must be answered.
  bool asks() const { return wish && !is_out(); }
  // The most that it may have allocated, by any bound that may still be in force.
  std::uint64_t promise() const {
    std::uint64_t largest = promised;
    for (const ToldBound& bound : bounds) largest = std::max(largest, bound.commitment);
    return largest;
  }
  // As far as it is believed.
  std::uint64_t allocated() const { return std::min(report.allocated, promise()); }
  std::uint64_t told_room() const { return bounds.empty() ? 0 : bounds.back().room; }
  std::uint64_t told_commitment() const { return bounds.empty() ? 0 : bounds.back().commitment; }
  std::uint64_t told_most() const { return bounds.empty() ? 0 : bounds.back().most; }
  bool told_stranded() const { return !bounds.empty() && bounds.back().is_stranded; }
};

struct GpuAccount {
  std::uint64_t capacity = 0;
  std::uint64_t reserve = 0;
  Foreign foreign;
  std::uint64_t returning = 0;
  TimePoint returning_until{};
  TimePoint closed_at{};  // the last tenant that is gone
  bool free_only = false;
  bool has_other_programs = false;
  std::optional<TimePoint> all_blocked_since;  // all of its seats are (SeatAccount::is_blocked)
  std::optional<TimePoint> stranded_at;        // since then, the last one
  std::optional<TimePoint> moved_at;           // when memory last became free
  std::optional<TimePoint> prepare_at;         // when a holder hears what it must make way for
  std::map<SeatId, SeatAccount> seats;

  // Bytes that seats may have together: now, and after the memory of tenants that are gone has come back.
  std::uint64_t available() const { return minus(eventual(), returning); }
  std::uint64_t eventual() const { return eventual_beside(foreign.bytes); }
  // As if there were this much foreign memory.
  std::uint64_t eventual_beside(std::uint64_t foreign_bytes) const { return minus(capacity, reserve + foreign_bytes); }
  // The memory that cannot be taken from the seat for another one. The same of all seats together.
  std::uint64_t kept_by(const SeatAccount& seat) const;
  std::uint64_t kept() const;
};

// Host memory for evicted data, in bytes.
struct HostBudget {
  std::uint64_t bytes = 0;
  std::uint64_t chunk = 0;     // of one seat, each
  std::uint64_t reserved = 0;  // more, for accounts that begin
};

struct Accounts {
  std::map<std::uint32_t, GpuAccount> gpus;
  HostBudget host;
  TimePoint now{};
  std::optional<TimePoint> awaited_until;  // tenants of an earlier daemon may come back

  // Null: it is not known.
  GpuAccount* find(GpuIndex index);
  SeatAccount* find(SeatId seat);
  const SeatAccount* find(SeatId seat) const { return const_cast<Accounts*>(this)->find(seat); }
  // A GPU that is not known has no memory and no seats.
  const GpuAccount& at(GpuIndex index) const;

  bool awaits_tenants() const { return is_before(now, awaited_until); }
  bool may_speak_yet(const SeatAccount& seat) const {
    return !seat.counts() && now - seat.opened_at < kFirstReportPatience;
  }
  // It confirms its bounds; otherwise it is taken to be stopped.
  bool answers(const SeatAccount& seat) const {
    return seat.bounds.size() < 2 || now - seat.bounds[1].told_at < kAnswerPatience;
  }
  // The bytes that a seat counts for: the most that any bound under way allows it, or what it has, if that is more.
  std::uint64_t charge(const SeatAccount& seat) const;
  // The same of all seats of a GPU together.
  std::uint64_t charged(const GpuAccount& gpu) const;
  // The bytes that a seat counts for of what may be allocated: the most that it is promised.
  std::uint64_t commitment_charge(const SeatAccount& seat) const;
  // Bytes that a seat was given, and takes in a moment.
  std::uint64_t taken(const std::optional<Given>& given) const {
    return given && now < given->until ? given->bytes : 0;
  }
};

}  // namespace gpumux::sched
