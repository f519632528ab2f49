// SPDX-License-Identifier: Apache-2.0
// Which seats are one unit: joining, merging, leaving; and what tenants say they had before a restart.
//
// None of this is on a hot path. Whatever changes a unit's members takes it out of everything that is sorted or counted
// (unplace), moves the seats, and works out anew from the seats alone what the unit now is (rebuild). That is linear in
// the gang, and it is one rule for all the cases: a member that joins while the gang waits, holds, or is being revoked;
// one that dies in any of these.
#include <algorithm>

#include "sched/state.h"

namespace gpumux::sched {
namespace {

// A claimed epoch above this is not believed: nobody may use up the numbers.
constexpr std::uint64_t kMaxClaimedEpoch = std::uint64_t{1} << 62;
// Keys that one gang can have, by members that join more gangs. A job, and the handles that its processes share, need a
// few.
constexpr std::size_t kMaxGangKeys = 64;

// Whether this could have been so beside what is known already. Seats that have drained since the restart, or were
// silent, prove nothing.
bool is_believable(const Seat& seat, const SeatClaimed& claim) {
  std::uint32_t overlapping = 0;
  for (const Seat* other : seat.gpu->seats) {
    if (other->unit == seat.unit || other->place == Occupancy::kNone) continue;
    if (other->revocation && other->revocation->late) continue;
    if (other->kind == LeaseKind::kShared && claim.kind == LeaseKind::kShared) continue;
    if (other->place != Occupancy::kOverlapping) return false;
    ++overlapping;
  }
  return overlapping <= 1;
}

}  // namespace

Unit& LeaseCore::State::make_unit() {
  auto unit = std::make_unique<Unit>();
  unit->serial = next_serial++;
  Unit& made = *unit;
  units.emplace(made.serial, std::move(unit));
  return made;
}

// It has no seats any more. Its gang goes with it.
void LeaseCore::State::destroy_unit(Unit& unit) {
  unplace(unit);
  set_shape(unit);
  units.erase(unit.serial);
}

// Takes the unit out of queues and counts. Its seats keep their phases, except that nobody waits.
void LeaseCore::State::unplace(Unit& unit) {
  dequeue(unit);
  charge(unit);
  stop_returning(unit);
  incomplete.erase(&unit);
  to_suspend.erase(&unit);
  agenda.touch(unit);
  agenda.drain_is_over();
  for (const UnitGpu& on_gpu : unit.gpus) {
    if (on_gpu.gpu->loan.lender() == &unit) take_turn_back(*on_gpu.gpu);
  }
  for (Seat* seat : unit.seats) set_place(*seat, Occupancy::kNone);
}

void LeaseCore::State::attach(Seat& seat, Unit& unit) {
  seat.unit = &unit;
  unit.seats.insert(std::upper_bound(unit.seats.begin(), unit.seats.end(), &seat, BySeat()), &seat);
}

void LeaseCore::State::detach(Seat& seat) {
  std::erase(seat.unit->seats, &seat);
  seat.unit = nullptr;
}

void LeaseCore::State::set_shape(Unit& unit) {
  unit.gpus.clear();
  for (Seat* seat : unit.seats) {
    const auto same = [seat](const UnitGpu& on_gpu) { return on_gpu.gpu == seat->gpu; };
    if (std::none_of(unit.gpus.begin(), unit.gpus.end(), same)) unit.gpus.push_back({.gpu = seat->gpu, .lead = seat});
  }
  std::sort(unit.gpus.begin(), unit.gpus.end(),
            [](const UnitGpu& a, const UnitGpu& b) { return a.gpu->index < b.gpu->index; });
  std::vector<Gpu*> here;
  for (const UnitGpu& on_gpu : unit.gpus) here.push_back(on_gpu.gpu);
  Shape* const old = std::exchange(unit.shape, here.empty() ? nullptr : &shapes.join(std::move(here)));
  if (old != nullptr) shapes.leave(*old);
}

// Derives an unplaced unit's state from its seats. `tell_all`: its seats may have been told different things about
// contention.
void LeaseCore::State::rebuild(Unit& unit, bool tell_all) {
  set_shape(unit);
  for (const UnitGpu& on_gpu : unit.gpus) settle_in_flight(*on_gpu.gpu);
  const bool was_passed_over = unit.passed_over();
  const SeatCounts seats = count_seats(unit);
  unit.wanting = seats.wanting;
  unit.resting = seats.resting;
  unit.suspended = seats.suspended;
  unit.contended = 0;
  unit.phase = UnitPhase::kIdle;
  agenda.touch(unit);
  if (seats.revoked.all > 0) {
    UnitRevocation& revocation = *unit.revocation;
    revocation.recount(seats.revoked);
    unit.phase = UnitPhase::kRevoking;
    timers.stop(unit.run);
    if (was_passed_over && !unit.passed_over()) count_again(unit);
    for (Seat* seat : unit.seats) {
      if (seat->phase == SeatPhase::kHolding) revoke_seat(*seat, RevokeReason::kGang);
    }
    place(unit);
    if (unit.passed_over()) {
      timers.stop(revocation.stall);
    } else if (!revocation.stall.armed()) {
      timers.arm(revocation.stall, after(now, unit.gpus.front().gpu->settings.stall_timeout));
    }
    return settle_drains(unit);
  }
  unit.revocation.reset();
  if (seats.holding > 0) {
    unit.phase = UnitPhase::kHolding;
    for (const UnitGpu& on_gpu : unit.gpus) {
      if (on_gpu.gpu->holders.empty()) on_gpu.gpu->contended = on_gpu.gpu->waiting > 0;
    }
    place(unit);
    if (unit.resting == seats.holding) return finish(unit);
    note_incomplete(unit);
    if (unit.suspended > 0) to_suspend.insert(&unit);
    arm_cap(unit);
    return tell_contention(unit, tell_all);
  }
  timers.stop(unit.run);
  if (unit.wanting > 0 && may_queue(unit)) enqueue(unit);
}

// Takes over the state of `other`, whose seats go to `unit`, that is not in the seats.
void LeaseCore::State::absorb(Unit& unit, const Unit& other) {
  const bool first = unit.phase == UnitPhase::kIdle;
  if (other.phase == UnitPhase::kHolding || other.phase == UnitPhase::kRevoking) {
    unit.granted_at = first ? other.granted_at : std::min(unit.granted_at, other.granted_at);
    unit.phase = other.phase;
  }
  if (other.revocation) {
    const TimePoint began = other.revocation->began;
    if (!unit.revocation) unit.begin_revocation(other.revocation->reason, began);
    unit.revocation->reason = other.revocation->reason;
    unit.revocation->began = std::max(unit.revocation->began, began);
  }
  unit.retry.absorb(other.retry);
}

// Takes the seat out of its unit. Until it is attached to another one, it is in none.
void LeaseCore::State::remove_from_unit(Seat& seat) {
  Unit& unit = *seat.unit;
  end_loan(unit);  // a unit that has borrowed its turn holds like any other from now on
  unplace(unit);
  detach(seat);
  if (!unit.seats.empty() || unit.gang != nullptr) {
    rebuild(unit, false);
  } else {
    destroy_unit(unit);
  }
}

void LeaseCore::State::remove_seat(Seat& seat) {
  Tenant& tenant = *seat.tenant;
  Gpu& gpu = *seat.gpu;
  remove_from_unit(seat);
  gpu.seats.erase(&seat);
  gpu.groups.leave(seat, *seat.group);
  std::erase_if(tenant.seats, [&](const std::unique_ptr<Seat>& one) { return one.get() == &seat; });
  settle_order(gpu);
  settle_in_flight(gpu);
}

// ---- gangs --------------------------------------------------------------------------------------

Gang& LeaseCore::State::make_gang(std::uint32_t uid) {
  Unit& unit = make_unit();
  unit.gang = std::make_unique<Gang>();
  unit.gang->uid = uid;
  unit.gang->unit = &unit;
  return *unit.gang;
}

void LeaseCore::State::add_to_gang(Tenant& tenant, Gang& gang) {
  tenant.gang = &gang;
  gang.members.emplace(tenant.id, &tenant);
  if (tenant.seats.empty()) return;
  unplace(*gang.unit);
  for (const auto& seat : tenant.seats) {
    Unit& old = *seat->unit;
    unplace(old);
    absorb(*gang.unit, old);
    detach(*seat);
    if (old.seats.empty()) destroy_unit(old);
    attach(*seat, *gang.unit);
  }
  rebuild(*gang.unit, true);
}

// A common member makes two gangs one.
void LeaseCore::State::merge_gangs(Gang& into, Gang& from) {
  unplace(*into.unit);
  unplace(*from.unit);
  absorb(*into.unit, *from.unit);
  for (const auto& [id, tenant] : from.members) {
    tenant->gang = &into;
    into.members.emplace(id, tenant);
    for (const auto& seat : tenant->seats) {
      detach(*seat);
      attach(*seat, *into.unit);
    }
  }
  for (const std::string& key : from.keys) {
    gang_by_key[{from.uid, key}] = &into;
    into.keys.push_back(key);
  }
  destroy_unit(*from.unit);
  rebuild(*into.unit, true);
}

void LeaseCore::State::leave_gang(Tenant& tenant) {
  Gang* const gang = std::exchange(tenant.gang, nullptr);
  if (gang == nullptr) return;
  gang->members.erase(tenant.id);
  if (!gang->members.empty()) return;
  for (const std::string& key : gang->keys) gang_by_key.erase({gang->uid, key});
  destroy_unit(*gang->unit);
}

void LeaseCore::State::on(const GangJoined& e) {
  Tenant* const tenant = tenant_of(e.tenant);
  if (tenant == nullptr) return;
  if (e.key.empty()) {
    if (tenant->gang == nullptr) add_to_gang(*tenant, make_gang(tenant->uid));
    return;
  }
  const auto found = gang_by_key.find({tenant->uid, e.key});
  Gang* const existing = found == gang_by_key.end() ? nullptr : found->second;
  if (tenant->gang == nullptr) {
    Gang& gang = existing != nullptr ? *existing : make_gang(tenant->uid);
    if (existing == nullptr) {
      gang.keys.push_back(e.key);
      gang_by_key[{tenant->uid, e.key}] = &gang;
    }
    gang.world = std::max(gang.world, e.world);
    add_to_gang(*tenant, gang);
  } else if (existing == nullptr) {
    if (tenant->gang->keys.size() >= kMaxGangKeys) return;
    tenant->gang->keys.push_back(e.key);
    tenant->gang->world = std::max(tenant->gang->world, e.world);
    gang_by_key[{tenant->uid, e.key}] = tenant->gang;
  } else if (existing != tenant->gang) {
    merge_gangs(*existing, *tenant->gang);
  }
}

// ---- claims -------------------------------------------------------------------------------------

void LeaseCore::State::on(const SeatClaimed& e) {
  Seat* const seat = seat_of(e.seat);
  const bool is_new = seat != nullptr && seat->epoch.value == 0 && seat->grants == 0;
  if (!is_new || e.epoch.value > kMaxClaimedEpoch) return;
  seat->gpu->next_epoch.value = std::max(seat->gpu->next_epoch.value, e.epoch.value + 1);
  if (e.claim == Claim::kWaiting) {
    seat->epoch = e.epoch;
    return on(Requested{e.seat});
  }
  if (e.epoch.value == 0) return;  // nobody holds a lease without a number
  const bool believable = is_believable(*seat, e);
  Unit& unit = *seat->unit;
  unplace(unit);
  if (unit.phase == UnitPhase::kIdle) unit.granted_at = now;
  set_wants(*seat, false);
  seat->epoch = e.epoch;
  seat->kind = e.kind;
  seat->charged_to = now;
  seat->group->begin(seat->gpu->groups.present());
  if (e.claim == Claim::kHolding && believable) {
    set_phase(*seat, SeatPhase::kHolding);
  } else {
    // "Draining" means that its page says so. Its gate may be closing still: the GateClosed that follows tells.
    seat->revocation.emplace(*seat).late = true;
    set_phase(*seat, SeatPhase::kRevoked);
    // When an earlier daemon revoked it is not known.
    if (!unit.revocation) unit.begin_revocation(RevokeReason::kBadClaim, unit.granted_at);
    unit.revocation->reason = RevokeReason::kBadClaim;
    if (e.claim == Claim::kDraining) {
      seat->revocation->alive_at = now;
      timers.arm(seat->revocation->answer, probe_at(*seat));
    } else {
      ask(*seat, RevokeReason::kBadClaim);
    }
  }
  rebuild(unit, true);
}

}  // namespace gpumux::sched
