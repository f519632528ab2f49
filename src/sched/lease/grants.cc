// SPDX-License-Identifier: Apache-2.0
#include "sched/lease/grants.h"

#include <algorithm>

#include "sched/lease/order.h"

namespace gpumux::sched {
namespace {}  // namespace

void Grants::hold_until(TimePoint until) {
  are_held_ = true;
  timers().arm(held_timer_, until);
}

void Grants::allow() {
  are_held_ = false;
  timers().stop(held_timer_);
}

// ---- leases -------------------------------------------------------------------------------------

void Grants::start(Unit& unit) {
  queues_.dequeue(unit);
  books_.charge(unit);  // for work that has run on
  agenda().look_again();
  unit.phase = UnitPhase::kHolding;
  queues_.reservations().units_changed();
  begin_hold(unit);
  for (const UnitGpu& on_gpu : unit.gpus) {
    Gpu& gpu = *on_gpu.gpu;
    // A unit that was granted for its priority may have had more time than the units that newcomers must equal.
    std::int64_t least = on_gpu.lead->group->virtual_time();
    for (const Shape* shape : gpu.shapes()) {
      if (const Unit* const head = shape->first()) least = std::min(least, virtual_time_of(*head, gpu, now()));
    }
    gpu.groups.advance(least);
    if (gpu.last_holder != unit.serial) {
      ++gpu.switches;
      ++on_gpu.lead->switches;
    }
    gpu.last_holder = unit.serial;
  }
  queues_.stop_yielding_to(unit);
  for (Seat* seat : unit.seats) grant_seat(*seat);
  unit.told_contended = is_contended(unit);
  queues_.arm_cap(unit);
  note_in_part(unit);
  for (Seat* seat : unit.seats) announce(*seat);
  agenda().touch(unit);
}

void Grants::grant_joined(Unit& unit) {
  std::vector<Seat*> granted;
  for (Seat* seat : unit.seats) {
    if (seat->phase != SeatPhase::kIdle || is_suspended(*seat)) continue;
    grant_seat(*seat);
    granted.push_back(seat);
  }
  for (Seat* seat : granted) announce(*seat);
}

void Grants::grant_seat(Seat& seat) {
  if (seat.wants_since && !seat.keeps_place) seat.turn_since = *seat.wants_since;
  if (seat.wants_since) seat.waits.add(now() - *seat.wants_since);
  books_.set_wants(seat, false);
  seat.kind = seat.gpu->settings.mode == Mode::kSerial ? LeaseKind::kExclusive : LeaseKind::kShared;
  seat.freezing.work = Freezing::Work::kMayNot;
  seat.epoch = books_.next_epoch(*seat.gpu);
  seat.group->begin(seat.gpu->groups.present());
  seat.charged_to = now();
  ++seat.grants;
  books_.set_phase(seat, SeatPhase::kHolding);
  books_.place(seat);
}

void Grants::announce(Seat& seat) {
  seat.told_hold = idle_hold_of(*seat.unit, *seat.gpu, now());
  const bool borrowed = has_borrowed(*seat.unit, *seat.gpu);
  command(Grant{seat.id, seat.epoch, seat.kind, is_contended(*seat.unit), seat.told_hold, borrowed,
                seat.revocation.has_value()});
}

void Grants::convert(Unit& unit, Gpu& gpu, LeaseKind kind) {
  for (Seat* seat : unit.seats) {
    if (seat->gpu != &gpu || seat->phase != SeatPhase::kHolding || seat->kind == kind) continue;
    gpu.places.move(seat->kind, seat->place, Occupancy::kNone);
    seat->kind = kind;
    gpu.places.move(seat->kind, Occupancy::kNone, seat->place);
    if (rests(*seat)) continue;
    seat->epoch = books_.next_epoch(gpu);
    announce(*seat);
  }
}

void Grants::note_in_part(Unit& unit) {
  if (holds_in_part(unit)) {
    in_part_.insert(&unit);
  } else {
    in_part_.erase(&unit);
  }
}

// ---- what tenants are told ----------------------------------------------------------------------

void Grants::tell_contention(Unit& unit, bool always) {
  const bool contended = is_contended(unit);
  if (unit.told_contended == contended && !always) return;
  unit.told_contended = contended;
  for (Seat* seat : unit.seats) {
    if (seat->phase == SeatPhase::kHolding && !rests(*seat)) {
      tell_contention(*seat);
    }
  }
}

void Grants::tell_contention(Seat& seat) {
  const bool contended = seat.phase == SeatPhase::kHolding && seat.unit->told_contended;
  seat.told_hold = idle_hold_of(*seat.unit, *seat.gpu, now());
  command(Contention{seat.id, contended, seat.told_hold, seat.told_in_flight});
}

void Grants::seats_changed(Gpu& gpu) {
  // A suspended seat is told when it is resumed: its process may be frozen, and what it does not read piles up. A seat
  // without a unit is on its way from one to another.
  const auto takes_part = [](const Seat* seat) { return !is_suspended(*seat) && seat->unit != nullptr; };
  const auto seats = std::count_if(gpu.seats.begin(), gpu.seats.end(), takes_part);
  gpu.has_own_turns = may_end_own_turns(gpu);
  const GpuSettings& settings = gpu.settings;
  const PolicyKind policy = gpu.has_own_turns ? PolicyKind::kFifo : settings.policy;
  if (std::exchange(gpu.policy, policy) != policy) books_.rekey(gpu);
  // A seat that is alone keeps no other waiting, and where all run at once none waits for a turn. Work that is frozen
  // keeps none waiting, either.
  const bool is_bounded = settings.mode == Mode::kSerial && seats > 1;
  for (Seat* seat : gpu.seats) {
    if (!takes_part(seat)) continue;
    const Limit<Duration> bound = is_bounded && !can_freeze(*seat->unit) ? settings.in_flight : Limit<Duration>();
    if (std::exchange(seat->told_in_flight, bound) != bound) tell_contention(*seat);
  }
}

void Grants::heads_up(Gpu& gpu) {
  const Unit* const next = expected_on(gpu, now());
  if (next == nullptr || are_held_) return;
  for (const Seat* seat : next->seats) {
    if (seat->phase != SeatPhase::kSilent) command(HeadsUp{seat->id});
  }
}

}  // namespace gpumux::sched
