// SPDX-License-Identifier: Apache-2.0
// Seats, units, GPUs, tenants and gangs: what the lease core's rules are about.
//
// A *unit* is what is queued, granted and revoked as one: a single seat, or a gang. Every seat is in exactly one unit
// at any time; joining a gang moves a tenant's seats from their own units into the gang's.
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/histogram.h"
#include "sched/events.h"
#include "sched/lease/cap_budget.h"
#include "sched/lease/flat_set.h"
#include "sched/lease/idle_watch.h"
#include "sched/lease/lease_core.h"
#include "sched/lease/places.h"
#include "sched/lease/revocation.h"
#include "sched/lease/shapes.h"
#include "sched/lease/share_groups.h"
#include "sched/lease/switch_cost.h"
#include "sched/lease/timers.h"

namespace gpumux::sched {

struct Gpu;
struct Tenant;
struct Unit;

// A holder that has said that it has nothing to do.
struct Idleness {
  TimePoint since{};
  bool rests = false;  // see rests()
};

// The residency planner's word on a seat's memory.
struct MemoryWait {
  bool pages = false;  // something of it is not on the GPU
  MemoryOutlook outlook = MemoryOutlook::kUnknown;
  std::uint64_t coming = 0;  // bytes that have come, or come, since the seat last had all of its memory

  bool comes() const { return outlook == MemoryOutlook::kComes; }
  bool is_obstructed() const { return pages && is_obstacle(outlook); }
};

struct Freezing {
  enum class Ability : std::uint8_t {
    kNone,
    kUntried,  // its library says that it can
    kProven,   // and has done it
  };
  // Since its last grant.
  enum class Work : std::uint8_t {
    kMayNot,
    kMay,     // its tenant was told that it may freeze its work, or may have been, before a restart
    kFrozen,  // it stands still in the middle
  };
  Ability ability = Ability::kNone;
  Work work = Work::kMayNot;
};

// A seat that has not drained since it was told to.
struct Stuck {
  Stuck(Seat& seat, TimePoint at) : since(at), kill(TimerKind::kStuck, seat) {}

  TimePoint since;        // the first of the revocations without a drain
  bool overruns = false;  // one of them ended because it took too long
  Timer kill;             // when its tenant is killed, if others need the GPU
};

// Whether a seat may have a lease.
enum class Suspension : std::uint8_t {
  kNone,
  kDrains,       // no, but its work may not have ended
  kStandsStill,  // no, and its process may be stopped from now on
};

struct Seat {
  SeatId id;
  Gpu* gpu = nullptr;
  Tenant* tenant = nullptr;
  Unit* unit = nullptr;
  std::shared_ptr<ShareGroup> group;

  SeatPhase phase = SeatPhase::kIdle;
  LeaseKind kind = LeaseKind::kExclusive;
  LeaseEpoch epoch;
  Occupancy place = Occupancy::kNone;
  bool poisoned = false;
  Suspension suspension = Suspension::kNone;
  Freezing freezing;
  MemoryWait memory;
  bool keeps_place =
      false;  // it waits as from before its last lease: it gave that up for lack of memory, or borrowed it

  std::uint64_t account = 0;
  bool ends_own_turns = false;  // as far as its GPU has own turns
  Limit<Duration> told_in_flight;
  Limit<Duration> told_hold{Duration::zero()};  // how long it keeps an idle lease
  std::int32_t priority = 0;
  CapBudget budget;

  TimePoint since{};
  std::optional<Stuck> stuck;
  TimePoint charged_to{};                // while its work may run: up to when its time is accounted
  std::optional<TimePoint> wants_since;  // it has asked, and was not granted since
  TimePoint turn_since{};                // since when it had waited for its last lease
  std::uint64_t grants = 0;
  std::uint64_t switches = 0;  // SeatTotals
  Duration held{};
  Duration waited{};
  Duration idle{};                   // of `held`: before it gave leases up that it did not use
  std::optional<Idleness> idleness;  // of the lease that it holds
  base::DurationHistogram waits;     // from request to grant
  std::optional<SeatRevocation> revocation;
};

// Whether it holds, and drained of its own accord while its gang goes on. Its gate is closed.
inline bool rests(const Seat& seat) { return seat.idleness && seat.idleness->rests; }

inline bool is_in_revocation(const Seat& seat) { return seat.revocation.has_value(); }
inline bool is_undrained(const Seat& seat) { return seat.revocation && !seat.revocation->drained(); }

// One GPU of a unit.
struct UnitGpu {
  Gpu* gpu = nullptr;
  Seat* lead = nullptr;       // the unit's first seat there: its standing is the unit's
  std::uint32_t holding = 0;  // the unit's seats whose place is kHolding
};

enum class UnitPhase : std::uint8_t { kIdle, kWaiting, kHolding, kRevoking };

// From the grant of a unit's lease until all of its work is done.
struct Hold {
  TimePoint granted_at{};
  // Its quantum counts from then, as if it had never stood still since. None: from `granted_at`, for no core granted
  // the lease to this unit. It was claimed, or a seat had it before it joined the gang.
  std::optional<TimePoint> began{};
  std::optional<TimePoint> stands_since{};  // the quantum stands still: not all of the unit's memory is there, or more
                                            // is to come
  Duration lent{};                          // the time of other units on the GPU, in loans that have ended
  bool is_safe = false;                     // higher priorities wait for the end of its quantum
};

struct Gang {
  std::uint32_t uid = 0;
  // Empty: one tenant's own seats. Several: gangs that a common member has joined into one.
  std::vector<std::string> keys;
  std::uint32_t world = 0;
  std::map<TenantId, Tenant*> members;
};

struct Unit {
  std::uint64_t serial = 0;
  std::vector<Seat*> seats;    // ascending
  std::vector<UnitGpu> gpus;   // ascending
  Shape* shape = nullptr;      // nullptr: no seats
  std::unique_ptr<Gang> gang;  // nullptr: a seat by itself

  UnitPhase phase = UnitPhase::kIdle;
  bool lifted = false;  // has waited for priority_ageing: goes first, as an equal of the holder
  bool told_contended = false;
  TimePoint requested{};
  std::optional<Hold> hold;  // while it holds or is being revoked
  // max_runtime ended its lease: it is behind all others until one of them has started.
  std::optional<TimePoint> yields_since;
  std::optional<UnitRevocation> revocation;
  IdleWatch idle_watch;

  Timer run{TimerKind::kRun, *this};  // when its quantum ends, or it may be revoked again
  Timer age{TimerKind::kAge, *this};
  Timer lift{TimerKind::kLift, *this};
  Timer thaw{TimerKind::kThaw, *this};  // its cap has ended its lease, and allows the next one then

  bool single() const { return seats.size() == 1; }
  void begin_revocation(RevokeReason why, TimePoint at) { revocation.emplace(*this, why, at); }
  bool passed_over() const { return revocation && revocation->silent > 0; }
  // Its part of the GPU; nullptr: none.
  UnitGpu* on(const Gpu& gpu) {
    const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const UnitGpu& one) { return one.gpu == &gpu; });
    return found == gpus.end() ? nullptr : &*found;
  }
  const UnitGpu* on(const Gpu& gpu) const { return const_cast<Unit*>(this)->on(gpu); }
  // Its entry in its shape's queue. REQUIRES: it waits.
  const QueueEntry& queued() const { return *queued_; }

 private:
  friend class Shape;
  std::set<QueueEntry>::const_iterator queued_;
};

inline bool has_turn(const Seat& seat) { return seat.phase != SeatPhase::kIdle && seat.phase != SeatPhase::kWaiting; }
// Whether the seat holds or drains, and its unit is not passed over.
inline bool runs(const Seat& seat) { return has_turn(seat) && !seat.unit->passed_over(); }
// Whether its turn is over, and its work is not.
inline bool runs_on(const Seat& seat) { return seat.stuck && seat.stuck->overruns && !has_turn(seat); }
// Whether the time that passes is the seat's.
inline bool is_charged(const Seat& seat) { return runs(seat) || runs_on(seat); }
// Whether `is_so` holds for any of its seats.
template <class Predicate>
bool any_seat(const Unit& unit, Predicate is_so) {
  for (const Seat* seat : unit.seats) {
    if (is_so(*seat)) return true;
  }
  return false;
}
inline bool wants(const Unit& unit) {
  return any_seat(unit, [](const Seat& seat) { return seat.wants_since.has_value(); });
}
inline bool is_suspended(const Seat& seat) { return seat.suspension != Suspension::kNone; }
inline bool is_suspended(const Unit& unit) {
  return any_seat(unit, [](const Seat& seat) { return is_suspended(seat); });
}
inline bool is_frozen(const Seat& seat) { return seat.freezing.work == Freezing::Work::kFrozen; }
inline bool has_frozen(const Unit& unit) {
  return any_seat(unit, [](const Seat& seat) { return is_frozen(seat); });
}
inline bool is_undrained(const Unit& unit) {
  return any_seat(unit, [](const Seat& seat) { return is_undrained(seat); });
}
// Whether it has not drained since a revocation ended because it took too long.
inline bool has_overrun(const Seat& seat) { return seat.stuck && seat.stuck->overruns; }
inline bool has_overrun(const Unit& unit) {
  return any_seat(unit, [](const Seat& seat) { return has_overrun(seat); });
}
// Whether it may wait for a lease. A suspended gang may if work of one member is frozen and that of another one runs
// on. The kernels of its members wait for each other's submissions, so it needs another turn to leave the GPU.
inline bool may_wait(const Unit& unit) {
  const auto stands_still = [](const Seat& seat) { return seat.suspension == Suspension::kStandsStill; };
  return !is_suspended(unit) ||
         (!unit.single() && has_frozen(unit) && any_seat(unit, runs_on) && !any_seat(unit, stands_still));
}
// How many of its seats hold, and do not rest.
inline std::ptrdiff_t at_work(const Unit& unit) {
  return std::count_if(unit.seats.begin(), unit.seats.end(),
                       [](const Seat* seat) { return seat->phase == SeatPhase::kHolding && !rests(*seat); });
}
// Whether it holds, but not as a whole: a member has joined since, or is suspended.
inline bool holds_in_part(const Unit& unit) {
  return unit.phase == UnitPhase::kHolding &&
         any_seat(unit, [](const Seat& seat) { return is_suspended(seat) || seat.phase == SeatPhase::kIdle; });
}
inline bool has_cap(const Unit& unit) {
  return any_seat(unit, [](const Seat& seat) { return seat.budget.is_capped(); });
}
// The highest of its seats.
inline std::int32_t priority_of(const Unit& unit) {
  std::int32_t priority = std::numeric_limits<std::int32_t>::min();
  for (const Seat* seat : unit.seats) priority = std::max(priority, seat->priority);
  return priority;
}
// Whether something of its memory is not on the GPU.
inline bool has_pages_to_move(const Unit& unit) {
  return any_seat(unit, [](const Seat& seat) { return seat.memory.pages; });
}
// Whether something of its memory cannot come.
inline bool is_obstructed(const Unit& unit) {
  return any_seat(unit, [](const Seat& seat) { return seat.memory.is_obstructed(); });
}
// Whether it does not have all of its memory yet, or waits to allocate more that comes.
inline bool waits_for_memory(const Unit& unit) {
  return any_seat(unit, [](const Seat& seat) { return seat.memory.pages || seat.memory.comes(); });
}
// Whether a thread may still be inside: in a launch, say, that waits for room behind a kernel that spins.
inline bool has_open_gate(const Unit& unit) {
  return any_seat(unit, [](const Seat& seat) {
    return seat.revocation && seat.phase != SeatPhase::kSilent && !seat.revocation->gate_closed();
  });
}
// Whether what it lacks comes, and needs no holder's memory.
inline bool is_coming(const Unit& unit) {
  const auto does_not_come = [](const Seat& seat) { return seat.memory.pages && !seat.memory.comes(); };
  return has_pages_to_move(unit) && !any_seat(unit, does_not_come);
}
// The seat that lacked memory may have left its gang, so `stands_since` alone does not tell.
inline bool is_restoring(const Unit& unit) { return unit.hold && unit.hold->stands_since && waits_for_memory(unit); }

struct BySerial {
  bool operator()(const Unit* a, const Unit* b) const { return a->serial < b->serial; }
};
using UnitSet = FlatSet<Unit*, BySerial>;
struct BySeat {
  bool operator()(const Seat* a, const Seat* b) const { return a->id < b->id; }
};

// A turn that is lent while its memory comes (loans.cc).
struct Loan {
  Unit* lender = nullptr;  // holds
  TimePoint since{};
};

struct Gpu {
  GpuIndex index;
  GpuSettings settings;
  PolicyKind policy{};         // in force: fifo while seats end their own turns, otherwise that of the settings
  bool has_own_turns = false;  // may_end_own_turns
  LeaseEpoch next_epoch;
  Places places;
  UnitSet holders;  // with a seat whose place is kHolding
  std::set<Seat*, BySeat> seats;
  ShareGroups groups;
  std::uint32_t waiting = 0;  // units that wait for it
  bool contended = false;     // as last told to the holders
  std::optional<Loan> loan;
  SwitchCost cost;
  std::uint64_t switches = 0;
  std::uint64_t interrupts = 0;
  std::uint64_t last_holder = 0;  // serial
  Duration held{};
  TimePoint held_since{};

  // The shapes that contain it.
  const std::vector<Shape*>& shapes() const { return shapes_; }
  // The shape that has no other GPU; nullptr: no unit has it.
  const Shape* single_shape() const {
    for (const Shape* shape : shapes_) {
      if (shape->gpus().size() == 1) return shape;
    }
    return nullptr;
  }
  // The first unit that waits for this GPU alone; nullptr: none.
  Unit* first_single() const {
    const Shape* const shape = single_shape();
    return shape == nullptr ? nullptr : shape->first();
  }
  bool is_lent_by(const Unit& unit) const { return loan && loan->lender == &unit; }
  // The unit that the GPU is kept free for; nullptr: none.
  Unit* reserved() const { return reserved_; }
  bool can_start(LeaseKind kind) const { return places.can_start(kind, settings.overlap); }
  // A unit of the GPU's mode.
  bool can_start() const {
    return can_start(settings.mode == Mode::kSerial ? LeaseKind::kExclusive : LeaseKind::kShared);
  }
  Limit<Duration> quantum() const {
    return settings.quantum.is_automatic() ? cost.automatic_quantum() : settings.quantum.value();
  }

 private:
  friend class Reservations;
  friend class Shapes;
  std::vector<Shape*> shapes_;
  Unit* reserved_ = nullptr;
};
// Whether there are seats that end their turns themselves, and no seat of another account. (A suspended seat takes no
// part, nor does one that is on its way from one unit to another.)
inline bool may_end_own_turns(const Gpu& gpu) {
  bool any = false;
  const Seat* first = nullptr;
  for (const Seat* seat : gpu.seats) {
    if (is_suspended(*seat) || seat->unit == nullptr) continue;
    if (first == nullptr) first = seat;
    if (seat->account != first->account) return false;
    any = any || seat->ends_own_turns;
  }
  return any;
}
inline bool ends_own_turns(const Unit& unit, const Gpu& gpu) {
  return gpu.has_own_turns && any_seat(unit, [](const Seat& seat) { return seat.ends_own_turns; });
}
// Whether the unit has borrowed the turn that it has there.
inline bool has_borrowed(const Unit& unit, const Gpu& gpu) { return gpu.loan && gpu.loan->lender != &unit; }
// Whether others wait for a GPU that it holds, as last told. A capped seat is not to spend its allowance idle.
inline bool is_contended(const Unit& unit) {
  const auto is_wanted = [](const UnitGpu& on_gpu) { return on_gpu.holding > 0 && on_gpu.gpu->contended; };
  return std::any_of(unit.gpus.begin(), unit.gpus.end(), is_wanted) || has_cap(unit);
}
inline bool can_start(const Shape& shape) {
  return std::all_of(shape.gpus().begin(), shape.gpus().end(), [](const Gpu* gpu) { return gpu->can_start(); });
}
// Whether its work can be frozen. That of a gang is frozen as a whole, or drains as a whole: kernels of one member may
// wait for those of another.
inline bool can_freeze(const Unit& unit) {
  return !any_seat(unit, [](const Seat& seat) {
    return seat.freezing.ability == Freezing::Ability::kNone ||
           seat.gpu->settings.interrupt == settings::Interrupt::kOff;
  });
}
// Whether the next unit may start when its gates are closed, while its work runs out. A single seat waits for no other
// seat's work. The members of a gang may wait for each other's submissions. So their work runs out for certain only if
// it is frozen, which each of them has done before.
inline bool may_overlap(const Unit& unit) {
  if (unit.single()) return true;
  const auto is_unproven = [](const Seat& seat) { return seat.freezing.ability != Freezing::Ability::kProven; };
  return unit.revocation->freezes && !has_open_gate(unit) && !any_seat(unit, is_unproven);
}
// The least value that a setting has on the unit's GPUs. REQUIRES: the unit has seats.
template <class Member>
auto strictest(const Unit& unit, Member setting) {
  auto value = unit.gpus.front().gpu->settings.*setting;
  for (const UnitGpu& on_gpu : unit.gpus) value = std::min(value, on_gpu.gpu->settings.*setting);
  return value;
}

// Whether it must not start yet: nothing of its memory can come before a predecessor has drained.
inline bool must_wait_for_drain(const Unit& unit) {
  if (!has_pages_to_move(unit)) return false;
  return std::any_of(unit.gpus.begin(), unit.gpus.end(),
                     [](const UnitGpu& on_gpu) { return on_gpu.gpu->places.count(Occupancy::kOverlapping) > 0; });
}

struct Tenant {
  TenantId id;
  std::uint32_t uid = 0;
  Unit* gang = nullptr;  // nullptr: it is in none
  bool kill_sent = false;
  std::map<GpuIndex, std::unique_ptr<Seat>> seats;  // at most kMaxSeatsPerTenant
};

// Weights beyond this say nothing that this does not.
inline constexpr std::uint32_t kMaxWeight = 1'000'000;

// Up to when the time of the seat's lease is its own: a turn that is lent is not.
inline TimePoint used_until(const Seat& seat, TimePoint now) {
  return seat.gpu->is_lent_by(*seat.unit) ? seat.gpu->loan->since : now;
}
// The part of the time since the seat was charged that its group owes.
Duration uncharged(const Seat& seat, TimePoint now);
// Unlimited: never.
inline TimePoint after(TimePoint now, const Limit<Duration>& limit) {
  return limit.is_unlimited() ? TimePoint::max() : after(now, limit.value());
}

}  // namespace gpumux::sched
