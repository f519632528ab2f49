// SPDX-License-Identifier: Apache-2.0
#include "sched/lease/books.h"

#include <algorithm>

#include "sched/lease/order.h"

namespace gpumux::sched {
namespace {

// However long one seat held, or its work ran on, it owes the others at most this much of it. So minutes of an
// unlimited quantum, or of a kernel, shut no seat out for minutes in return. Guesses: with less, a seat that holds long
// gains by it.
constexpr std::int64_t kMaxDebtQuanta = 8;
constexpr Duration kMinDebt = std::chrono::seconds(10);
// A group that comes back after idling is ahead of the others by at most this much, and at most by one quantum. A
// guess: with more, it would shut the others out for that long.
constexpr Duration kMaxCredit = std::chrono::seconds(1);

bool is_behind_in_unit(const Seat& seat) {
  if (seat.group->seats().size() == 1) return false;
  const auto& seats = seat.unit->seats;
  return std::any_of(seats.begin(), std::find(seats.begin(), seats.end(), &seat),
                     [&](const Seat* other) { return other->group == seat.group && is_charged(*other); });
}

std::int64_t credit_of(const Seat& seat) {
  return seat.group->in_virtual_time(seat.gpu->quantum().at_most(kMaxCredit));
}

}  // namespace

void Books::set_phase(Seat& seat, SeatPhase phase) {
  if (seat.phase == phase) return;
  settle_allowance(seat);
  seat.phase = phase;
  seat.since = now();
}

void Books::set_wants(Seat& seat, bool wants) {
  if (seat.wants_since.has_value() == wants) return;
  if (wants) {
    seat.wants_since = now();
  } else {
    if (!is_suspended(seat)) seat.waited += now() - *seat.wants_since;
    seat.wants_since.reset();
  }
}

void Books::set_standing(Seat& seat, std::int32_t priority, std::uint32_t weight, std::uint32_t cap) {
  seat.priority = priority;
  set_weight(*seat.group, std::clamp(weight, 1u, kMaxWeight));
  seat.budget.set(cap);
}

void Books::set_weight(ShareGroup& group, std::uint32_t weight) {
  if (group.weight() == weight) return;
  for (Seat* seat : group.seats()) {
    if (seat->unit != nullptr) charge(*seat);
  }
  group.set_weight(weight);
}

// ---- places on GPUs -----------------------------------------------------------------------------

void Books::set_place(Seat& seat, Occupancy place) {
  if (seat.place == place) return;
  Gpu& gpu = *seat.gpu;
  Unit& unit = *seat.unit;
  UnitGpu* const on_gpu = unit.on(gpu);
  gpu.places.move(seat.kind, seat.place, place);
  if (seat.place == Occupancy::kHolding && --on_gpu->holding == 0) {
    gpu.holders.erase(&unit);
    if (gpu.holders.empty()) gpu.held += now() - gpu.held_since;
  }
  seat.place = place;
  if (place == Occupancy::kHolding && ++on_gpu->holding == 1) {
    if (gpu.holders.empty()) {
      gpu.held_since = now();
      gpu.contended = gpu.waiting > 0;  // no other unit is there to be told
    }
    gpu.holders.insert(&unit);
  }
}

void Books::place(Seat& seat) {
  const Unit& unit = *seat.unit;
  Occupancy place = Occupancy::kNone;
  if (seat.phase == SeatPhase::kHolding) {
    place = Occupancy::kHolding;
  } else if (!unit.passed_over()) {
    // A gang in revocation that drains keeps all its GPUs, those of drained members too, until the last member has
    // drained: it may have to be opened again.
    if (seat.phase == SeatPhase::kRevoked) place = Occupancy::kBlocking;
    if (seat.phase == SeatPhase::kDraining) place = may_overlap(unit) ? Occupancy::kOverlapping : Occupancy::kBlocking;
  }
  if (seat.place == Occupancy::kOverlapping && place != Occupancy::kOverlapping) agenda().drain_is_over();
  set_place(seat, place);
}

void Books::place(Unit& unit) {
  for (Seat* seat : unit.seats) place(*seat);
}

// ---- accounts -----------------------------------------------------------------------------------

Duration uncharged(const Seat& seat, TimePoint now) {
  const Duration quantum = seat.gpu->quantum().at_most(Duration::max());
  const Duration most =
      quantum > Duration::max() / kMaxDebtQuanta ? Duration::max() : std::max(kMinDebt, quantum * kMaxDebtQuanta);
  return std::min(used_until(seat, now) - seat.charged_to, most);
}

void Books::charge(Seat& seat) {
  if (!is_charged(seat)) return;
  ShareGroup& group = *seat.group;
  const std::int64_t before = group.virtual_time();
  if (!is_behind_in_unit(seat)) group.charge(uncharged(seat, now()));
  const TimePoint until = used_until(seat, now());
  seat.held += until - seat.charged_to;
  seat.charged_to = until;
  if (group.virtual_time() == before) return;
  rerank(group, *seat.unit);
  if (seat.unit->phase == UnitPhase::kWaiting) requeue(*seat.unit);
}

void Books::charge(Unit& unit) {
  for (Seat* seat : unit.seats) charge(*seat);
}

void Books::charge_what_runs_on(const ShareGroup& group) {
  for (Seat* seat : group.seats()) {
    if (seat->unit != nullptr && runs_on(*seat)) charge(*seat);
  }
}

void Books::catch_up(Seat& seat) {
  ShareGroup& group = *seat.group;
  group.begin(seat.gpu->groups.present());
  const std::int64_t least = seat.gpu->groups.present() - credit_of(seat);
  const auto has_run = [this](const Seat* other) {
    return other->unit != nullptr && !runs_on(*other) && (runs(*other) || other->charged_to == now());
  };
  if (group.virtual_time() >= least || std::any_of(group.seats().begin(), group.seats().end(), has_run)) return;
  group.move_to(least);
  rerank(group, *seat.unit);
}

void Books::begin_anew(Seat& seat) {
  ShareGroup& group = *seat.group;
  const std::int64_t most = seat.gpu->groups.present() + credit_of(seat);
  if (group.virtual_time() <= most) return;
  group.move_to(most);
  rerank(group, *seat.unit);
}

void Books::settle_idle(Seat& seat) const {
  if (seat.idleness) seat.idle += now() - seat.idleness->since;
  seat.idleness.reset();
}

void Books::settle_allowance(Seat& seat) const { seat.budget.settle(now(), runs(seat)); }

void Books::begin_gap(const Seat& seat) const {
  if (!seat.unit->single()) return;
  // An unlimited hold has not ended: the seat gives up its lease for another reason, at this moment.
  seat.unit->idle_watch.begin_gap(seat.told_hold.is_unlimited() ? now() : now() - seat.told_hold.value());
}

// ---- the order of queues ------------------------------------------------------------------------

void Books::insert_in_queue(Unit& unit) const {
  unit.shape->insert(entry_of(unit, *unit.shape->gpus().front(), now()));
}

void Books::requeue(Unit& unit) {
  unit.shape->erase(unit);
  insert_in_queue(unit);
  agenda().touch(unit);
  for (const UnitGpu& on_gpu : unit.gpus) {
    if (on_gpu.gpu->reserved() == &unit) agenda().touch_around(*on_gpu.gpu);
  }
}

void Books::rekey(Gpu& gpu) {
  for (Shape* shape : gpu.shapes()) {
    if (shape->gpus().front() != &gpu) continue;
    for (const QueueEntry& entry : std::set<QueueEntry>(shape->queue())) {
      shape->erase(*entry.unit);
      insert_in_queue(*entry.unit);
    }
  }
  agenda().touch_around(gpu);
}

void Books::rerank(const ShareGroup& group, const Unit& but) {
  if (group.seats().size() == 1) return;
  for (const Seat* seat : group.seats()) {
    Unit* const unit = seat->unit;
    if (unit != nullptr && unit != &but && unit->phase == UnitPhase::kWaiting) requeue(*unit);
  }
}

}  // namespace gpumux::sched
