// SPDX-License-Identifier: Apache-2.0
// How moving memory changes turns, and the turns as the residency planner sees them.
//
// The core knows two things of a seat's memory. `pages`: something of it is not on the GPU. `outlook`: what the planner
// expects of it, for example that it comes, or what keeps it from coming. A unit that cannot have its memory waits
// behind all that can run. If it holds, it makes way for them at once, and keeps the place that it had before. Five
// rules are for a unit whose memory is only missing:
//
// 1. It does not start while a predecessor drains. Nothing can be evicted before that has drained.
// 2. No holder is revoked for it while its memory comes anyway, and does not need the holder's.
// 3. Its quantum begins when its memory is there. max_runtime counts from the grant all the same, so no unit holds for
//    ever while its memory does not come. The time that it took is part of what a switch costs.
// 4. A holder's quantum stands still while it waits for room that others are giving up.
// 5. While it holds and waits, its turn is lent (loans.cc).
#include <algorithm>

#include "sched/lease/order.h"
#include "sched/lease/state.h"

namespace gpumux::sched {
namespace {

// The cost to the running program of each GiB that comes to the GPU, with the GiB that leaves for it. Matrix products
// were 6 % slower while 32 GiB moved each way in 0.64 s (experiment 011).
constexpr Duration kCostPerGiB = std::chrono::microseconds(1200);

// The cost to other programs of the unit's memory that came while they ran. Counts it once.
Duration cost_of_moving(Unit& unit) {
  std::uint64_t bytes = 0;
  for (Seat* seat : unit.seats) bytes += std::exchange(seat->memory.coming, 0);
  return kCostPerGiB * static_cast<std::int64_t>(bytes >> 20) / 1024;
}

}  // namespace

void LeaseCore::State::on(const MemoryNeed& e) {
  Seat* const seat = roster.seat_of(e.seat);
  if (seat == nullptr || seat->memory.pages == e.pages) return;
  Unit& unit = *seat->unit;
  const bool changes_place = unit.phase == UnitPhase::kWaiting && is_obstacle(seat->memory.outlook);
  if (changes_place) queues.dequeue(unit);
  seat->memory.pages = e.pages;
  if (!e.pages) seat->keeps_place = false;
  if (changes_place) queues.enqueue(unit);
  common.agenda.touch(unit);
  common.agenda.drain_is_over();  // or needs no waiting for
  // An idle holder's hold depends on what the next unit would have to move.
  for (Unit* holder : seat->gpu->holders) {
    if (holder->told_contended) grants.tell_contention(*holder, true);
  }
  grants.resume_quantum(unit);
}

// An obstacle that comes or goes changes the place of a unit that waits, and a holder may have to make way.
void LeaseCore::State::on(const MemoryExpected& e) {
  Seat* const seat = roster.seat_of(e.seat);
  if (seat == nullptr || seat->memory.outlook == e.outlook) return;
  Unit& unit = *seat->unit;
  MemoryWait& memory = seat->memory;
  const bool changes_place = unit.phase == UnitPhase::kWaiting && is_obstacle(memory.outlook) != is_obstacle(e.outlook);
  if (changes_place) queues.dequeue(unit);
  memory.outlook = e.outlook;
  if (changes_place) queues.enqueue(unit);
  if (memory.comes()) memory.coming = std::max(memory.coming, e.evicted);
  common.agenda.touch(unit);
  if (memory.comes() && unit.phase == UnitPhase::kHolding && !unit.hold->stands_since)
    unit.hold->stands_since = common.now;
  grants.resume_quantum(unit);
  if (unit.told_contended) grants.tell_contention(unit, true);  // how long it may be idle
}

void Grants::resume_quantum(Unit& unit) {
  if (!unit.hold || !unit.hold->stands_since || waits_for_memory(unit)) return;
  Hold& hold = *unit.hold;
  const TimePoint since = *std::exchange(hold.stands_since, std::nullopt);
  if (hold.began) *hold.began += now() - since;
  // Memory that is asked for later is not the price of the switch.
  if (unit.phase != UnitPhase::kHolding || since != hold.granted_at) return;
  const Duration used = used_until(*unit.seats.front(), now()) - hold.granted_at - hold.lent;
  const Duration cost = used + cost_of_moving(unit);
  for (const UnitGpu& on_gpu : unit.gpus) {
    if (on_gpu.gpu->settings.mode == Mode::kSerial) on_gpu.gpu->cost.add_paging(cost);
  }
}

// A unit is being granted: its quantum begins now, or when its memory is there.
void Grants::begin_hold(Unit& unit) {
  unit.hold = {.granted_at = now(), .began = now()};
  if (waits_for_memory(unit)) {
    unit.hold->stands_since = now();
    return;
  }
  const Duration cost = cost_of_moving(unit);
  for (const UnitGpu& on_gpu : unit.gpus) {
    Gpu& gpu = *on_gpu.gpu;
    if (gpu.last_holder != unit.serial && gpu.settings.mode == Mode::kSerial) gpu.cost.add_paging(cost);
  }
}

// `waiter` takes the GPU at once, by its priority, from `holder`, which had got it while `waiter` idled. If memory was
// moved for that, and `holder` got less from it than it cost, the waiter's idle leases last twice as long. This ends
// when such a switch has paid back.
void Settler::note_return(Unit& waiter, const Unit& holder) const {
  const bool restores = is_restoring(holder);
  const Hold& hold = *holder.hold;
  if (!restores && hold.began == hold.granted_at) return;
  const auto costs_more = [&](const UnitGpu& on_gpu) {
    return hold.began && now() - *hold.began < on_gpu.gpu->cost.paging();
  };
  waiter.idle_watch.took_back(restores || std::any_of(holder.gpus.begin(), holder.gpus.end(), costs_more));
}

// ---- turns --------------------------------------------------------------------------------------

void LeaseCore::turns(GpuIndex index, std::vector<Turn>& turns) const {
  turns.clear();
  State& state = *state_;
  Gpu* const gpu = state.roster.gpu_of(index);
  if (gpu == nullptr) return;
  const Unit* const next = expected_on(*gpu, state.common.now);

  struct Ranked {
    Turn turn;
    QueueEntry entry;  // of a unit that waits
    TimePoint since{};
    std::int32_t priority = 0;
    bool lends = false;  // what it waits for comes before what a borrower may ask for
  };
  std::vector<Ranked> ranked;
  ranked.reserve(gpu->seats.size());
  for (const Seat* seat : gpu->seats) {
    Ranked one{.turn = {.seat = seat->id}, .entry = {}, .since = seat->since, .priority = 0};
    const Unit& unit = *seat->unit;
    if (seat->phase == SeatPhase::kHolding) {
      one.turn.kind = TurnKind::kHolding;
      if (next != nullptr && next != &unit && gpu->settings.mode == Mode::kSerial)
        one.turn.ends = after(state.common.now, time_left(unit, *gpu, *next, state.common.now));
    } else if (any_seat(unit, runs_on)) {
      one.turn.kind = TurnKind::kHeldBack;
    } else if (&unit == next && unit.phase == UnitPhase::kWaiting) {
      one.turn.kind = TurnKind::kNext;
    } else if (unit.phase == UnitPhase::kWaiting) {
      one.turn.kind = TurnKind::kWaiting;
      one.entry = entry_of(unit, *gpu, state.common.now);
    } else if (is_in_revocation(*seat)) {
      const bool may_go_on = !unit.single() && is_undrained(unit) && !unit.passed_over();
      one.turn.kind = may_go_on ? TurnKind::kHeldBack : TurnKind::kLeaving;
    } else if (is_suspended(*seat)) {
      one.turn.kind = TurnKind::kSuspended;
    }
    one.priority = priority_of(unit);
    one.lends = gpu->is_lent_by(unit);
    ranked.push_back(one);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
    // A higher priority's memory is the last to go for another seat: it may be wanted at any moment, and at once.
    const bool both_off = a.turn.kind > TurnKind::kNext && b.turn.kind > TurnKind::kNext &&
                          (a.turn.kind == TurnKind::kSuspended) == (b.turn.kind == TurnKind::kSuspended);
    if (both_off && a.priority != b.priority) return a.priority > b.priority;
    if (a.turn.kind != b.turn.kind) return a.turn.kind < b.turn.kind;
    if (a.turn.kind == TurnKind::kWaiting) return a.entry < b.entry;
    if (a.lends != b.lends) return a.lends;
    return a.turn.kind == TurnKind::kIdle && a.since > b.since;
  });
  for (const Ranked& one : ranked) turns.push_back(one.turn);
}

}  // namespace gpumux::sched
