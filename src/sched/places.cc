// SPDX-License-Identifier: Apache-2.0
// Phases, places and what they cost: the bookkeeping under everything else.
#include <algorithm>
#include <limits>

#include "sched/order.h"
#include "sched/state.h"

namespace gpumux::sched {
namespace {

// How much a seat may have queued where a higher priority may come at any moment. That work runs next to the first
// kernels of the newcomer, which gets half of the GPU until it is through. Enough for a host that takes 10 us for a
// launch to keep the GPU busy.
constexpr Duration kInFlightBelow = std::chrono::milliseconds(1);

}  // namespace

void LeaseCore::State::set_phase(Seat& seat, SeatPhase phase) {
  if (seat.phase == phase) return;
  settle_allowance(seat);
  seat.phase = phase;
  seat.since = now;
}

void LeaseCore::State::set_wants(Seat& seat, bool wants) {
  if (seat.wants_since.has_value() == wants) return;
  if (wants) {
    seat.wants_since = now;
  } else {
    if (!seat.suspended) seat.waited += now - *seat.wants_since;
    seat.wants_since.reset();
  }
}

void LeaseCore::State::set_place(Seat& seat, Occupancy place) {
  if (seat.place == place) return;
  Gpu& gpu = *seat.gpu;
  Unit& unit = *seat.unit;
  UnitGpu* const on_gpu = unit.on(gpu);
  gpu.places.move(seat.kind, seat.place, place);
  if (seat.place == Occupancy::kHolding && --on_gpu->holding == 0) {
    gpu.holders.erase(&unit);
    if (gpu.holders.empty()) gpu.held += now - gpu.held_since;
  }
  seat.place = place;
  if (place == Occupancy::kHolding && ++on_gpu->holding == 1) {
    if (gpu.holders.empty()) {
      gpu.held_since = now;
      gpu.contended = gpu.waiting > 0;  // no other unit is there to be told
    }
    gpu.holders.insert(&unit);
  }
}

void LeaseCore::State::place(Seat& seat) {
  const Unit& unit = *seat.unit;
  Occupancy place = Occupancy::kNone;
  if (seat.phase == SeatPhase::kHolding) {
    place = Occupancy::kHolding;
  } else if (!unit.passed_over()) {
    // A gang in revocation keeps all its GPUs, those of drained members too, until the last member has drained. A
    // member that is behind may have to be let through there. Another unit's work in between would make it wait.
    if (seat.phase == SeatPhase::kRevoked) place = Occupancy::kBlocking;
    if (seat.phase == SeatPhase::kDraining) place = unit.single() ? Occupancy::kOverlapping : Occupancy::kBlocking;
  }
  if (seat.place == Occupancy::kOverlapping && place != Occupancy::kOverlapping) agenda.drain_is_over();
  set_place(seat, place);
}

void LeaseCore::State::place(Unit& unit) {
  for (Seat* seat : unit.seats) place(*seat);
}

// Up to now it has been idle, if it has said so: of the lease that it holds it has not used that.
void LeaseCore::State::settle_idle(Seat& seat) const {
  if (seat.idleness) seat.idle += now - seat.idleness->since;
  seat.idleness.reset();
}

LeaseEpoch LeaseCore::State::next_epoch(Gpu& gpu) { return LeaseEpoch{gpu.next_epoch.value++}; }

void LeaseCore::State::tell_contention(Unit& unit, bool always) {
  const bool contended = is_contended(unit);
  if (unit.told_contended == contended && !always) return;
  unit.told_contended = contended;
  for (Seat* seat : unit.seats) {
    if (seat->phase == SeatPhase::kHolding && !rests(*seat)) {
      tell_contention(*seat);
    }
  }
}

void LeaseCore::State::tell_contention(Seat& seat) {
  const bool contended = seat.phase == SeatPhase::kHolding && seat.unit->told_contended;
  seat.told_hold = idle_hold_of(*seat.unit, *seat.gpu, now);
  command(Contention{seat.id, contended, seat.told_hold, seat.told_in_flight});
}

// The policy that the waiting units are sorted by, and how much work each seat may have queued. To be called when the
// GPU's seats, which of them are suspended, their or their gangs' priorities, its mode or its settings have changed.
void LeaseCore::State::seats_changed(Gpu& gpu) {
  // A suspended seat is told when it is resumed: its process may be frozen, and what it does not read piles up. A seat
  // without a unit is on its way from one to another.
  const auto takes_part = [](const Seat* seat) { return !seat->suspended && seat->unit != nullptr; };
  std::size_t seats = 0;
  std::int32_t highest = std::numeric_limits<std::int32_t>::min();
  gpu.has_own_turns = false;
  for (const Seat* seat : gpu.seats) {
    if (!takes_part(seat)) continue;
    ++seats;
    highest = std::max(highest, priority_of(*seat->unit));
    gpu.has_own_turns = gpu.has_own_turns || seat->ends_own_turns;
  }
  const GpuSettings& settings = gpu.settings;
  const PolicyKind policy = gpu.has_own_turns ? PolicyKind::kFifo : settings.policy;
  if (std::exchange(gpu.policy, policy) != policy) rekey(gpu);
  // A seat that is alone keeps no other waiting, and where all run at once none waits for a turn.
  const bool is_bounded = settings.mode == Mode::kSerial && seats > 1 && !settings.in_flight.is_unlimited();
  for (Seat* seat : gpu.seats) {
    if (!takes_part(seat)) continue;
    const bool is_below = priority_of(*seat->unit) < highest;
    Limit<Duration> bound;
    if (is_bounded) bound = is_below ? settings.in_flight.at_most(kInFlightBelow) : settings.in_flight;
    if (std::exchange(seat->told_in_flight, bound) != bound) tell_contention(*seat);
  }
}

}  // namespace gpumux::sched
