// SPDX-License-Identifier: Apache-2.0
// The residency planner. It decides how much memory each seat may have on its GPU, its room. It also decides how much
// the seat may have allocated in all, its commitment. docs/memory.md is the protocol that it speaks.
//
// Pure, as the lease core is. Reports, turns and the time go in, bounds come out. No clock, no I/O, no floating point.
// All GPUs of a machine are in one planner, because they share the host memory that evicted data goes to. It knows
// nothing of how leases are decided: its caller hands it each GPU's turns (LeaseCore::turns) when it plans.
//
// A bound is in force only when the seat has confirmed it. Until the seat confirms a lower bound, it may still take
// what the higher one before allowed. So a seat *counts* for the most that any bound under way allows it, or for what
// it has, if that is more. A seat that confirms nothing for kAnswerPatience (stopped, frozen, in a debugger) takes
// nothing in that time. It counts for what it has or was last told, whichever is more. If it wakes up and takes what it
// was told before, the driver refuses it, and that allocation asks for room. Invariants after every step (checked by
// check_invariants):
//   1. On each GPU, what all seats count for fits together with the reserve and foreign memory. If a seat has, or was
//      left with, more than its bound, this may fail, and no bound is raised.
//   2. The promises to all seats fit on the GPUs and in the host memory budget. A seat counts for what it is promised.
//      If it says that it has allocated more, the excess is promised to it as far as memory is left, and otherwise
//      counts for nothing. (Exception: memory that tenants bring back after a restart, until all are back.)
//   3. A seat that wants room gets the room, or a refusal. It is refused if no event could make it fit, if nothing has
//      moved for kRoomPatience, or after kLongestRoomWait. A seat that holds no lease is answered at once with what
//      there is. No seat is refused while the daemon awaits tenants of an earlier one (await_tenants).
//   4. A holder is never told to have less than it has.
//
// A suspended seat (set_suspended) keeps on the GPU only what cannot leave it, even if no other seat needs the room.
// Its wishes wait until it is resumed. When the planner decides which programs fit together, it counts only what cannot
// leave of a suspended seat. The rest is in host memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sched/events.h"
#include "sched/memory/foreign_use.h"
#include "sched/turns.h"

namespace gpumux::sched {

// A seat's report about itself (wire: Memory), in bytes.
struct MemoryReport {
  std::uint32_t sequence = 0;  // the newest bound that is in force
  std::uint64_t allocated = 0;
  std::uint64_t resident = 0;
  std::uint64_t evicted = 0;
  std::uint64_t unpageable = 0;
  std::uint64_t hidden = 0;  // of it, room that the driver has refused: there is no memory behind it
  // Unified memory, part of `allocated` and of nothing else. The driver moves its pages, and they may exceed the GPU.
  // They are wanted on the GPU while the seat holds a lease, and make way for other allocations.
  std::uint64_t managed = 0;
  std::uint64_t managed_away = 0;  // of it, moved out of the way by the seat itself
  bool stuck = false;              // it cannot give anything up
  // A job of its pager's is under way: what is being restored is counted twice, as evicted and as there.
  bool moving = false;
};

// The most that the seats of one process tree may have together, on each GPU.
struct Quota {
  std::uint64_t group = 0;  // 0: none
  std::uint64_t bytes = 0;
};

// A GPU's use beyond what seats report: other programs, and contexts of tenants.
struct Foreign {
  std::uint64_t bytes = 0;
  std::optional<TimePoint> seen_at{};          // when a look last showed it; none: no look has
  std::optional<ForeignUse::Unseen> unseen{};  // of `bytes`
};

// The owner of a seat.
struct SeatOwner {
  Quota quota;
  std::uint64_t account = 0;  // the unit of sharing: a user, or a container
};

// Why an allocation is impossible, or has become so. Trace, metrics and the API have these names (`word_of` in
// daemon/gpus/refusals.h), the log has sentences (`in_words` in daemon/gpus/leases.cc).
enum class Refusal {
  kNone,
  kQuota,         // the seats of its quota would have more than that together
  kGpuMemory,     // its GPU cannot hold it together with what stays there
  kHostMemory,    // all allocations would be more than GPUs and host memory hold
  kNothingMoves,  // it could be had, and has not come
};

struct RoomBound {
  SeatId seat;
  std::uint32_t sequence = 0;
  std::uint64_t room = 0;
  std::uint64_t commitment = 0;
  std::uint64_t total = 0;   // the size of its GPU that the program is told
  std::uint64_t most = 0;    // the most that it could be given now if it asked for it, what it has included
  bool is_limited = false;   // it has a quota
  bool is_stranded = false;  // what it lacks cannot come, and its program is told so
  std::uint32_t ticket = 0;  // the newest that is answered
  Refusal refusal = Refusal::kNone;
  bool refused() const { return refusal != Refusal::kNone; }
};

// The holder's turn is nearly over, and this much of its managed memory is in the next seat's way.
struct ExpectEviction {
  SeatId seat;
  std::uint64_t managed = 0;  // bytes
};

struct ResidencyCommands {
  std::vector<MemoryExpected> expected;  // for the lease core; turns may be others when it knows
  std::vector<RoomBound> bounds;
  std::vector<ExpectEviction> evictions;
};

// For people.
struct SeatMemoryView {
  SeatId seat;
  MemoryReport report;
  bool speaks = false;     // it has reported; otherwise its memory counts as foreign
  bool answers = true;     // it confirms its bounds; otherwise it is taken to be stopped
  bool is_behind = false;  // it has kMaxBoundsUnderWay bounds to confirm, and is told nothing more until it does
  std::uint64_t room = 0;
  std::uint64_t counted = 0;  // as having: what it may have had at most by now
  std::uint64_t commitment = 0;
  std::uint64_t promised = 0;  // the most that it may have allocated; reports beyond that are not believed
  std::uint64_t wanted = 0;    // more than that, and waits for it
  std::uint64_t quota = 0;
  bool is_suspended = false;
  bool is_told = true;         // it has confirmed all bounds, and is not about to be told less
  bool may_speak_yet = false;  // it has not reported, but has just come
};
struct GpuMemory {
  std::uint64_t capacity = 0;
  std::uint64_t reserve = 0;
  std::uint64_t foreign = 0;
  std::uint64_t returning = 0;  // of tenants that are gone, until the driver has it back
  std::vector<SeatMemoryView> seats;
};

// Host memory that a GPU's programs may need, in bytes. An allocation counts from the moment when a thread asks for it.
// `evicted` is for what does not fit on the GPU, and for all memory of suspended seats that can leave. `copies` keeps
// copies of what has come back, so that it need not be copied out again while unchanged. They are at most what takes
// turns, and at most what fits on the GPU. If two programs or more have nearly filled the GPU, their memory beyond all
// but this part of it counts as not fitting. They go on to fill it faster than host memory is made.
inline constexpr std::uint64_t kPreparedPart = 8;
struct HostDemand {
  std::uint64_t evicted = 0;
  std::uint64_t copies = 0;
};

// The facts about a GPU's seats that decide whether they can all run at once.
struct Togetherness {
  std::size_t suspended = 0;  // left out of all that follows
  std::size_t seats = 0;
  std::size_t unknown = 0;    // of them, have not said yet whether they report
  std::size_t silent = 0;     // do not report
  std::uint64_t evicted = 0;  // bytes
};

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

class Residency {
 public:
  // Evicted data lies in chunks that belong to one seat, of `chunk` bytes each. `reserved`: more bytes, only for
  // accounts that are promised no more than that in all. So an account that comes last can begin.
  void set_host_budget(std::uint64_t bytes, std::uint64_t chunk, std::uint64_t reserved) {
    host_budget_ = bytes;
    host_chunk_ = chunk;
    host_reserved_ = reserved;
  }
  // Tenants of an earlier daemon may still come back, until then. Before their first reports, their memory looks like
  // other programs'. So no wish is hopeless.
  void await_tenants(TimePoint until) { awaited_until_ = until; }
  // For a known GPU: changes its capacity and reserve.
  void add_gpu(GpuIndex gpu, std::uint64_t capacity, std::uint64_t reserve);
  // Returns whether it has changed.
  bool set_foreign(TimePoint now, GpuIndex gpu, const Foreign& foreign);
  // Whether programs that are no tenants are on the GPU. Otherwise all memory that seats do not report is tenants'
  // contexts.
  void set_other_programs(GpuIndex gpu, bool any);
  // Whether a seat's answer depends on a new look at the GPU's memory: look at once.
  bool awaits_look(GpuIndex gpu) const;
  // No seat is evicted for another one: allocations beyond what is free are refused.
  void set_free_only(GpuIndex gpu, bool free_only);

  // `gets_bound`: it gets a first bound now. Otherwise it says first what it has: it may be back after a restart.
  // `left`: what its process left as a seat that was closed. The part of that which this seat then reports will not be
  // returned.
  void opened(TimePoint now, SeatId seat, const SeatOwner& owner, bool gets_bound, std::uint64_t left = 0);
  // Its memory, left_by() of it, is taken until the driver has returned it (returned()).
  void closed(TimePoint now, SeatId seat);
  // Bytes that the seat would leave on its GPU if it were closed now.
  std::uint64_t left_by(SeatId seat) const;
  // Until it is told otherwise. The seat is open.
  void set_suspended(TimePoint now, SeatId seat, bool is_suspended);
  void reported(TimePoint now, SeatId seat, const MemoryReport& report);
  // A thread of the seat waits for this much in all; zero: unchanged. `managed`: this much of that commitment need not
  // fit on the GPU.
  void wanted(TimePoint now, SeatId seat, std::uint32_t ticket, std::uint64_t room, std::uint64_t commitment,
              std::uint64_t managed = 0);
  // `left`: the most that has not come back of the memory of tenants that are gone. True: that is less than before.
  bool returned(TimePoint now, GpuIndex gpu, std::uint64_t left);
  // At `asked_at` the GPU had `used` bytes in use: tenants that were gone by then have left no more. As returned.
  bool looked(TimePoint now, TimePoint asked_at, GpuIndex gpu, std::uint64_t used);

  // Whether turns matter for this GPU's memory: something is evicted, or a seat waits for room. Otherwise plan() need
  // be called after the events above only.
  bool is_tight(GpuIndex gpu) const;
  // Whether a suspended seat has memory there that must leave. Then the caller calls plan() whenever a seat drains, on
  // any GPU.
  bool is_clearing(GpuIndex gpu) const;
  // Moves the GPU's bounds towards where they belong. `turns`: as the lease core sees them now.
  void plan(TimePoint now, GpuIndex gpu, std::span<const Turn> turns, ResidencyCommands& commands);
  // When plan() is wanted although nothing has happened.
  std::optional<TimePoint> next_deadline(GpuIndex gpu) const;

  // Whether all seats' memory, allocations that they wait for included, fits at once and leaves `margin`.
  bool fits_together(GpuIndex gpu, std::uint64_t margin) const;
  Togetherness together(GpuIndex gpu) const;
  HostDemand host_demand(GpuIndex gpu) const;
  // Sum of what its seats report as being on it. Room that the driver has refused is no memory.
  std::uint64_t on_gpu(GpuIndex gpu) const;
  // Sum of what its seats count for: the most that they have.
  std::uint64_t charged(GpuIndex gpu) const { return charged(at(gpu)); }
  // Sum of what its seats report, evicted memory included.
  std::uint64_t on_gpu_and_evicted(GpuIndex gpu) const;
  // Sum of their managed memory: some of it is on the GPU, too.
  std::uint64_t managed(GpuIndex gpu) const;
  std::uint64_t returning(GpuIndex gpu) const { return at(gpu).returning; }
  // The part of that which has not come back in time. The next plan counts it no longer. So the caller must count it as
  // foreign before (set_foreign).
  std::uint64_t overdue(TimePoint now, GpuIndex gpu) const {
    return now < at(gpu).returning_until ? 0 : at(gpu).returning;
  }
  std::uint64_t capacity(GpuIndex gpu) const { return at(gpu).capacity; }
  bool has(SeatId seat) const { return find(seat) != nullptr; }
  // It may be older than this daemon, and has not yet said what it has.
  bool may_be_back(SeatId seat) const;
  GpuMemory view(GpuIndex gpu) const;
  // None: there is no such seat.
  std::optional<SeatMemoryView> view(SeatId seat) const;
  std::string check_invariants() const;

 private:
  struct Bound {
    std::uint32_t sequence = 0;
    std::uint64_t room = 0;
    std::uint64_t commitment = 0;
    std::uint64_t most = 0;
    TimePoint told_at{};
    bool is_stranded = false;
  };
  // While its turn is kHolding.
  struct Hold {
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
  struct Seat {
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
    std::deque<Bound> bounds;  // the one in force, then those under way; the last one is what it was told
    std::optional<Wish> wish;
    std::uint32_t answered = 0;  // the newest ticket that is
    std::optional<Given> given_room;
    std::optional<Given> given_commitment;
    bool wants_more = false;               // it was answered without room, and asks again when it holds
    std::optional<TimePoint> grows_until;  // it was given more than it ever had, and is likely to ask for more
    std::uint64_t most_had = 0;            // all of its memory, at its peak
    MemoryOutlook outlook = MemoryOutlook::kUnknown;  // as the lease core was told
    std::optional<TimePoint> next_since;
    std::optional<Hold> hold;
    bool is_stranded = false;                // nothing in its way moves, and its program is told so
    std::optional<TimePoint> lacking_since;  // holding, and nothing has come since
    std::optional<Retry> retry;              // the last one, while it lacks memory

    // While a plan is made.
    TurnKind turn = TurnKind::kIdle;
    TimePoint ends = TimePoint::max();
    std::uint64_t need = 0;
    std::uint64_t fair = 0;  // its part of the memory there is, with nothing to spare
    std::uint64_t commitment = 0;
    std::uint64_t most = 0;  // that it could have allocated

    std::uint64_t has() const { return report.resident + report.unpageable; }
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
      for (const Bound& bound : bounds) largest = std::max(largest, bound.commitment);
      return largest;
    }
    // As far as it is believed.
    std::uint64_t allocated() const { return std::min(report.allocated, promise()); }
    std::uint64_t told_room() const { return bounds.empty() ? 0 : bounds.back().room; }
    std::uint64_t told_commitment() const { return bounds.empty() ? 0 : bounds.back().commitment; }
    std::uint64_t told_most() const { return bounds.empty() ? 0 : bounds.back().most; }
    bool told_stranded() const { return !bounds.empty() && bounds.back().is_stranded; }
  };
  struct Gpu {
    std::uint64_t capacity = 0;
    std::uint64_t reserve = 0;
    Foreign foreign;
    std::uint64_t returning = 0;
    TimePoint returning_until{};
    TimePoint closed_at{};  // the last tenant that is gone
    bool free_only = false;
    bool has_other_programs = false;
    std::optional<TimePoint> all_blocked_since;  // all of its seats are (Seat::is_blocked)
    std::optional<TimePoint> stranded_at;        // since then, the last one
    std::optional<TimePoint> moved_at;           // when memory last became free
    std::optional<TimePoint> prepare_at;         // when a holder hears what it must make way for
    std::map<SeatId, Seat> seats;
  };
  // One seat's part of something that is dealt out: what it must have, and what it was told that it may have.
  struct Share {
    Seat* seat = nullptr;
    std::uint64_t base = 0;
    std::uint64_t told = 0;
    std::uint64_t most = 0;
    std::uint64_t target = 0;
  };

  Gpu* gpu_of(GpuIndex index);
  // A GPU that is not known has no memory and no seats.
  const Gpu& at(GpuIndex index) const;
  Seat* find(SeatId seat);
  const Seat* find(SeatId seat) const;

  SeatMemoryView view_of(const Seat& seat) const;

  // residency_plan.cc
  static std::uint64_t kept_by(const Gpu& gpu, const Seat& seat);
  std::uint64_t kept(const Gpu& gpu) const;
  bool answers(const Seat& seat) const;
  std::uint64_t charge(const Seat& seat) const;
  std::uint64_t commitment_charge(const Seat& seat) const;
  // The uncommitted part of `capacity`.
  std::uint64_t uncommitted(const Gpu& gpu, std::uint64_t capacity) const;
  std::uint64_t believe(const Gpu& gpu, Seat& seat, std::uint64_t capacity, std::uint64_t left) const;
  // Bytes that seats may have together: now, and after the memory of tenants that are gone has come back.
  static std::uint64_t available(const Gpu& gpu);
  static std::uint64_t eventual(const Gpu& gpu);
  // A seat that never reports leaves its memory to the driver: it counts as foreign.
  static bool counts(const Seat& seat) { return seat.voice == Voice::kSpeaks; }
  bool may_speak_yet(const Seat& seat) const { return !counts(seat) && now_ - seat.opened_at < kFirstReportPatience; }
  std::uint64_t charged(const Gpu& gpu) const;
  // Which accounts' seats may be promised it.
  enum class For { kAll, kThoseThatBegin };
  std::uint64_t usable_host(For whom) const;
  // Memory that seats have allocated, or may have allocated by now.
  enum class Needs { kAllocated, kCharged };
  std::uint64_t in_host_memory(const Gpu& gpu, Needs needs, For whom) const;
  std::uint64_t commitment_capacity(const Gpu& gpu, std::uint64_t on_gpu, Needs needs, For whom = For::kAll) const;
  For begins_with(const Seat& seat, std::uint64_t commitment, Needs needs) const;
  // `kept_by_all`: kept(gpu), reckoned once.
  std::uint64_t most_room(std::uint64_t on_gpu, const Gpu& gpu, const Seat& seat, std::uint64_t kept_by_all) const;
  // The part of its quota that the quota's other seats leave.
  static std::uint64_t left_of_quota(const Gpu& gpu, const Seat& seat);
  std::uint64_t most_commitment(std::uint64_t on_gpu, const Gpu& gpu, const Seat& seat,
                                std::uint64_t kept_by_all) const;
  // The next functions are for seats with a wish. `foreign`: as if there were this much foreign memory.
  Refusal refusal_of(const Gpu& gpu, const Seat& seat, std::uint64_t foreign) const;
  bool is_possible(const Gpu& gpu, const Seat& seat, std::uint64_t foreign) const {
    return refusal_of(gpu, seat, foreign) == Refusal::kNone;
  }
  bool is_possible(const Gpu& gpu, const Seat& seat) const { return is_possible(gpu, seat, gpu.foreign.bytes); }
  std::uint64_t expected(const Gpu& gpu, const Seat& seat) const;
  // Room that its seat takes in a moment.
  std::uint64_t taken(const std::optional<Given>& given) const {
    return given && now_ < given->until ? given->bytes : 0;
  }
  // A thread is given `bytes`, while others of its seat may not have taken yet what they were given.
  Given also_given(const std::optional<Given>& before, std::uint64_t bytes) const {
    return {.bytes = std::max(taken(before), bytes), .until = now_ + kTakePatience};
  }
  // Whether only other programs' memory is in the way of its wish, and may have left since the last look.
  bool may_have_left(const Gpu& gpu, const Seat& seat) const;
  // The same of memory that no look has shown: it is only expected.
  bool may_not_come(const Gpu& gpu, const Seat& seat) const;
  std::vector<Seat*> in_order(Gpu& gpu, std::span<const Turn> turns) const;
  std::uint64_t aim(const Gpu& gpu, const std::vector<Seat*>& order) const;
  static void deal(std::vector<Share>& shares, std::uint64_t left);
  std::vector<Share> plan_rooms(Gpu& gpu, const std::vector<Seat*>& order) const;
  void plan_commitments(Gpu& gpu, const std::vector<Seat*>& order) const;
  void find_most(const Gpu& gpu, const std::vector<Seat*>& order) const;
  static std::vector<Share*> fairest_first(std::vector<Share>& shares, std::uint64_t capacity);
  static bool is_lacking(const Seat& seat);
  static std::optional<TimePoint> impatient_at(const Gpu& gpu, const Seat& seat);
  TimePoint refused_at(const Gpu& gpu, const Seat& seat) const;
  // Since when looks at the GPU's memory count for its wish.
  TimePoint looked_for_since(const Seat& seat) const { return latest(seat.wish->since, awaited_until_); }
  bool awaits_tenants() const { return is_before(now_, awaited_until_); }
  static std::optional<TimePoint> comes_until(const Gpu& gpu, const Seat& seat);
  // The seats of a GPU together, in bytes.
  struct Together {
    std::uint64_t kept = 0;  // cannot leave
    std::uint64_t on_gpu = 0;
    // Of the seats that hold a lease: one, or two if a seat has borrowed the turn.
    const Seat* holder = nullptr;  // the turn is its own
    std::uint64_t held = 0;        // could leave if they did not hold
    bool any_short = false;        // there is less than they need
  };
  Together together(const Gpu& gpu, const std::vector<Seat*>& order) const;
  MemoryOutlook obstacle_of(const Gpu& gpu, const Seat& seat, const Together& all) const;
  MemoryOutlook outlook_of(const Gpu& gpu, const Seat& seat, const Together& all) const;
  void find_outlooks(Gpu& gpu, const std::vector<Seat*>& order, ResidencyCommands& commands);
  static std::optional<TimePoint> strands_at(const Gpu& gpu);
  void find_stranded(Gpu& gpu, ResidencyCommands& commands) const;
  void expect_evictions(Gpu& gpu, const std::vector<Seat*>& order, ResidencyCommands& commands);
  void tell(Gpu& gpu, Seat& seat, std::uint64_t room, std::uint64_t commitment, ResidencyCommands& commands);

  std::map<std::uint32_t, Gpu> gpus_;
  std::uint64_t host_budget_ = 0;
  std::uint64_t host_chunk_ = 0;
  std::uint64_t host_reserved_ = 0;
  TimePoint now_{};
  std::optional<TimePoint> awaited_until_;
  std::string broken_;  // the first invariant that a plan has broken
};

}  // namespace gpumux::sched
