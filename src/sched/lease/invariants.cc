// SPDX-License-Identifier: Apache-2.0
// The invariants, checked from the seats up: every counter is counted again, every index compared with what it indexes.
#include <algorithm>

#include "sched/lease/order.h"
#include "sched/lease/state.h"

namespace gpumux::sched {
namespace {

std::string name(SeatId seat) { return "seat " + to_string(seat); }
std::string name(const Gpu& gpu) { return "GPU " + std::to_string(gpu.index.value); }
std::string name(const Unit& unit) {
  return unit.seats.empty() ? "an empty unit" : "the unit of " + name(unit.seats.front()->id);
}

std::string check_seat(const Seat& seat) {
  const Unit& unit = *seat.unit;
  const std::string who = name(seat.id);
  if (std::count(unit.seats.begin(), unit.seats.end(), &seat) != 1) return who + " is not in its unit";
  if (seat.epoch >= seat.gpu->next_epoch) return who + " has an epoch that was not given out";
  if ((seat.phase == SeatPhase::kWaiting) != (unit.phase == UnitPhase::kWaiting))
    return who + " waits without its unit";
  if (seat.phase == SeatPhase::kHolding && unit.phase != UnitPhase::kHolding) return who + " holds without its unit";
  if (is_in_revocation(seat) && unit.phase != UnitPhase::kRevoking) return who + " is revoked without its unit";
  if (seat.idleness && seat.phase != SeatPhase::kHolding) return who + " idles without holding";
  if (is_frozen(seat) && seat.phase == SeatPhase::kHolding) return who + " holds, and its work is frozen";
  if (seat.suspension == Suspension::kStandsStill && has_turn(seat)) return who + " has a turn, and may stand still";
  const bool is_leaving =
      seat.phase != SeatPhase::kIdle && seat.phase != SeatPhase::kWaiting && seat.phase != SeatPhase::kHolding;
  if (is_leaving != is_in_revocation(seat)) return who + " is revoked, and is not";
  if (!seat.revocation) return {};
  const SeatRevocation& revocation = *seat.revocation;
  if (seat.phase == SeatPhase::kDraining && !revocation.gate_closed()) return who + " drains behind an open gate";
  if (seat.phase == SeatPhase::kRevoked && revocation.gate_closed()) return who + " has closed its gate unnoticed";
  const bool waits_for_answer = seat.phase != SeatPhase::kSilent && !revocation.drained();
  if (waits_for_answer && !revocation.answer.armed()) return who + " may stay silent for ever";
  return {};
}

// The seats of a unit are those of one gang, or one seat of a tenant that is in none.
std::string check_members(const Unit& unit) {
  const std::string who = name(unit);
  if (!unit.gang && !unit.single()) return who + " has seats that do not belong together";
  for (const Seat* seat : unit.seats) {
    if (seat->tenant->gang != (unit.gang ? &unit : nullptr)) return name(seat->id) + " is not in its gang's unit";
    if (seat->tenant->uid != unit.seats.front()->tenant->uid) return who + " is of two users";
  }
  return {};
}

std::string check_unit(const Unit& unit) {
  const std::string who = name(unit);
  if (std::string wrong = check_members(unit); !wrong.empty()) return wrong;
  if ((unit.phase == UnitPhase::kRevoking) != unit.revocation.has_value()) return who + " is revoked, and is not";
  const bool has_lease = unit.phase == UnitPhase::kHolding || unit.phase == UnitPhase::kRevoking;
  if (has_lease != unit.hold.has_value()) return who + " holds, and does not";
  const bool any_silent = any_seat(unit, [](const Seat& seat) { return seat.phase == SeatPhase::kSilent; });
  if (any_silent != unit.passed_over()) return who + " has miscounted its silent seats";
  if (unit.phase == UnitPhase::kIdle && wants(unit) && may_wait(unit) && !unit.thaw.armed())
    return who + " wants and does not wait";
  if (unit.phase == UnitPhase::kWaiting && !may_wait(unit)) return who + " waits although a seat of it is suspended";
  if (unit.phase == UnitPhase::kWaiting && !wants(unit)) return who + " waits and does not want";
  if (unit.phase == UnitPhase::kRevoking && !is_undrained(unit)) return who + " has drained and is not done";
  if (unit.phase == UnitPhase::kHolding && at_work(unit) == 0) return who + " holds and no seat of it does";
  const bool may_stall = unit.phase == UnitPhase::kRevoking && !unit.passed_over();
  if (may_stall && !unit.revocation->stall.armed()) return who + " may drain for ever";
  if (unit.phase == UnitPhase::kHolding && unit.told_contended != is_contended(unit))
    return who + " was not told of contention";
  return {};
}

std::string check_groups(const Gpu& gpu) {
  std::size_t members = 0, remembered = 0;
  for (const Seat* seat : gpu.seats) {
    const auto& seats = seat->group->seats();
    if (std::count(seats.begin(), seats.end(), seat) != 1) return name(seat->id) + " is not in its group";
    if (seat->group->name().empty() && seats.size() != 1) return name(seat->id) + " is not a group by itself";
    members += seat->group->name().empty() ? 0u : 1u;
  }
  for (const auto& [key, group] : gpu.groups.named()) {
    members -= group->seats().size();
    remembered += group->seats().empty() ? 1u : 0u;
  }
  if (members != 0) return name(gpu) + " has groups with other GPUs' seats";
  if (remembered > ShareGroups::kMostRemembered) return name(gpu) + " remembers too many groups";
  return {};
}

std::string check_gpu(const Gpu& gpu) {
  const std::string who = name(gpu);
  Places places;
  std::set<const Unit*> holders, undrained, waiting;
  bool any_late = false;
  const Seat* open = nullptr;
  for (const Seat* seat : gpu.seats) {
    places.move(seat->kind, Occupancy::kNone, seat->place);
    if ((seat->place == Occupancy::kHolding) != (seat->phase == SeatPhase::kHolding))
      return name(seat->id) + " is misplaced";
    if (seat->place == Occupancy::kHolding) holders.insert(seat->unit);
    if (seat->place == Occupancy::kBlocking || seat->place == Occupancy::kOverlapping) {
      if (!seat->revocation) return name(seat->id) + " is misplaced";
      undrained.insert(seat->unit);
      any_late |= seat->revocation->late;
      if (!seat->revocation->late && !seat->revocation->gate_closed()) open = seat;
    }
    if (seat->unit->phase == UnitPhase::kWaiting) waiting.insert(seat->unit);
  }
  if (std::string wrong = check_groups(gpu); !wrong.empty()) return wrong;
  if (may_end_own_turns(gpu) != gpu.has_own_turns) return who + " has overlooked seats that end their turns themselves";
  if (places != gpu.places) return who + " has miscounted its places";
  if (holders.size() != gpu.holders.size()) return who + " has miscounted its holders";
  if (waiting.size() != gpu.waiting) return who + " has miscounted its waiters";
  if (gpu.contended != (gpu.waiting > 0)) return who + " has not told its holders of contention";
  const std::uint32_t exclusive = gpu.places.count(LeaseKind::kExclusive, Occupancy::kHolding);
  const std::size_t most = gpu.loan ? 2 : 1;
  if (exclusive > 0 && holders.size() > most) return who + " has an exclusive holder and another holder";
  if (gpu.loan && (!holders.contains(gpu.loan->lender) || !gpu.loan->lender->single()))
    return who + " has a lender that does not hold";
  if (exclusive > 0 && open != nullptr && !holders.contains(open->unit))
    return name(open->id) + " may still submit beside an exclusive holder";
  if (!holders.empty() && undrained.size() > 1 && exclusive > 0 && !any_late) {
    return who + " has more than one undrained predecessor";
  }
  return {};
}

}  // namespace

std::string LeaseCore::check_invariants() const {
  const State& state = *state_;
  for (const Gpu* gpu : state.roster.gpus()) {
    if (std::string wrong = check_gpu(*gpu); !wrong.empty()) return wrong;
    for (const Seat* seat : gpu->seats) {
      if (std::string wrong = check_seat(*seat); !wrong.empty()) return wrong;
    }
    const Unit* const reserved = gpu->reserved();
    if (reserved != nullptr && reserved->phase != UnitPhase::kWaiting)
      return name(*gpu) + " is reserved for nobody who waits";
  }
  for (const auto& [serial, unit] : state.roster.units()) {
    if (std::string wrong = check_unit(*unit); !wrong.empty()) return wrong;
    if (state.queues.reservations().is_aged(*unit) && unit->phase != UnitPhase::kWaiting)
      return name(*unit) + " is aged and does not wait";
    if (unit->phase == UnitPhase::kWaiting) {
      const QueueEntry& queued = unit->queued();
      const auto found = unit->shape->queue().find(queued);
      if (found == unit->shape->queue().end() || &*found != &queued) return name(*unit) + " is not queued";
      const QueueEntry now = entry_of(*unit, *unit->shape->gpus().front(), state.common.now);
      if (now < queued || queued < now) return name(*unit) + " is queued where it no longer stands";
    }
    // A gang is granted whole; members that joined it since are granted, or the gang revoked, unless that has just
    // failed.
    const bool is_in_part = holds_in_part(*unit);
    if (is_in_part != state.grants.in_part().contains(unit.get()))
      return name(*unit) + " holds in part, or is thought to";
    if (is_in_part && !state.grants.are_held()) return name(*unit) + " holds in part";
  }
  if (state.grants.are_held()) return {};
  // A holder with no time left before a single seat that waits has been told to go. (A gang waits until all can.) A
  // change that only time has made shows when a timer has fired. Weights divide, so a timer may be a little late.
  const TimePoint soon = after(state.common.now, Duration(std::chrono::microseconds(1)));
  const auto deadline = next_deadline();
  const bool is_settled = !deadline || *deadline > soon;
  for (const Gpu* gpu : state.roster.gpus()) {
    const Unit* const turn = turn_on(*gpu);
    if (gpu->loan && !may_lend(*gpu->loan->lender, *gpu))
      return name(*gpu->loan->lender) + " lends its turn and has what it waited for";
    if (!is_settled || turn == nullptr) continue;
    const Unit& holder = *turn;
    const Unit* const waiter = gpu->first_single();
    if (waiter == nullptr || holder.phase != UnitPhase::kHolding) continue;
    if (time_left(holder, *gpu, *waiter, state.common.now) == Duration::zero())
      return name(holder) + " keeps " + name(*gpu) + " from " + name(*waiter) + ", which is to have it";
  }
  // A unit that has to wait for a drain keeps its place, even if it keeps off a gang behind it on one GPU.
  const auto is_kept = [&state](const Unit& unit) {
    if (must_wait_for_drain(unit)) return true;
    for (const Gpu* gpu : unit.shape->gpus()) {
      for (const Shape* shape : gpu->shapes()) {
        const Unit* const ahead = shape->first();
        if (ahead != nullptr && ahead != &unit && must_wait_for_drain(*ahead) &&
            !is_reserved_against(*ahead, state.common.now) &&
            entry_of(*ahead, *gpu, state.common.now) < entry_of(unit, *gpu, state.common.now))
          return true;
      }
    }
    return false;
  };
  for (const Gpu* gpu : state.roster.gpus()) {
    const Unit* const reserved = gpu->reserved();
    if (reserved == nullptr || !can_start(*reserved->shape) || is_kept(*reserved)) continue;
    return name(*reserved) + " waits although all GPUs that are kept for it are free";
  }
  for (const auto& [key, shape] : state.roster.shapes()) {
    const Unit* const first = shape->first();
    if (first == nullptr || !can_start(*shape)) continue;
    const auto is_reserved = [](const Gpu* gpu) { return gpu->reserved() != nullptr; };
    if (std::any_of(shape->gpus().begin(), shape->gpus().end(), is_reserved)) continue;
    if (is_kept(*first)) continue;
    return name(*first) + " waits although all its GPUs are free";
  }
  return {};
}

}  // namespace gpumux::sched
