// SPDX-License-Identifier: Apache-2.0
// Which seats are one unit: joining, merging, leaving.
//
// None of this is on a hot path. Every change of a unit's members takes it out of all that is sorted or counted
// (unplace) and moves the seats. Then it works out the unit anew from the seats alone (rebuild). The cost is linear in
// the gang, and one rule holds for all cases. A member may join, or die, while the gang waits, holds, or is being
// revoked.
#include <algorithm>

#include "sched/lease/state.h"

namespace gpumux::sched {
namespace {

// Keys that one gang can have, by members that join more gangs. A job, and the handles that its processes share, need a
// few.
constexpr std::size_t kMaxGangKeys = 64;

}  // namespace

// It has no seats any more. Its gang goes with it.
void Gangs::destroy_unit(Unit& unit) {
  unplace(unit);
  roster_.set_shape(unit);
  roster_.remove(unit);
}

void Gangs::unplace(Unit& unit) {
  queues_.dequeue(unit);
  books_.charge(unit);
  grants_.forget_in_part(unit);
  agenda().touch(unit);
  agenda().drain_is_over();
  for (const UnitGpu& on_gpu : unit.gpus) {
    if (on_gpu.gpu->is_lent_by(unit)) revocations_.take_turn_back(*on_gpu.gpu);
  }
  for (Seat* seat : unit.seats) books_.set_place(*seat, Occupancy::kNone);
}

void Gangs::rebuild(Unit& unit, bool tell_all) {
  roster_.set_shape(unit);
  for (const UnitGpu& on_gpu : unit.gpus) grants_.seats_changed(*on_gpu.gpu);
  unit.phase = UnitPhase::kIdle;
  agenda().touch(unit);
  if (any_seat(unit, is_in_revocation)) {
    UnitRevocation& revocation = *unit.revocation;
    const bool was_passed_over = unit.passed_over();
    revocation.freezes = revocation.freezes && can_freeze(unit);
    revocation.silent = static_cast<std::uint32_t>(std::count_if(
        unit.seats.begin(), unit.seats.end(), [](const Seat* seat) { return seat->phase == SeatPhase::kSilent; }));
    unit.phase = UnitPhase::kRevoking;
    timers().stop(unit.run);
    if (was_passed_over && !unit.passed_over()) revocations_.count_again(unit);
    for (Seat* seat : unit.seats) {
      if (seat->phase == SeatPhase::kHolding) revocations_.revoke_seat(*seat, RevokeReason::kGang);
    }
    books_.place(unit);
    if (unit.passed_over()) {
      timers().stop(revocation.stall);
    } else if (!revocation.stall.armed()) {
      timers().arm(revocation.stall, after(now(), unit.gpus.front().gpu->settings.stall_timeout));
    }
    return revocations_.settle_drains(unit);
  }
  unit.revocation.reset();
  if (any_seat(unit, [](const Seat& seat) { return seat.phase == SeatPhase::kHolding; })) {
    unit.phase = UnitPhase::kHolding;
    books_.place(unit);
    if (at_work(unit) == 0) return revocations_.finish(unit);
    grants_.note_in_part(unit);
    queues_.arm_cap(unit);
    return grants_.tell_contention(unit, tell_all);
  }
  unit.hold.reset();
  timers().stop(unit.run);
  queues_.admit(unit);
}

// Takes over that state of `other` which is not in its seats; these go to `unit`.
void Gangs::absorb(Unit& unit, const Unit& other) {
  if (other.hold) {
    if (!unit.hold) unit.hold = {.granted_at = other.hold->granted_at};
    unit.hold->granted_at = std::min(unit.hold->granted_at, other.hold->granted_at);
    unit.phase = other.phase;
  }
  if (other.revocation) {
    const TimePoint began = other.revocation->began;
    const bool freezes = (!unit.revocation || unit.revocation->freezes) && other.revocation->freezes;
    if (!unit.revocation) unit.begin_revocation(other.revocation->reason, began);
    unit.revocation->freezes = freezes;
    unit.revocation->reason = other.revocation->reason;
    unit.revocation->began = std::max(unit.revocation->began, began);
  }
}

// Takes the seat out of its unit. Until it is attached to another one, it is in none.
void Gangs::remove_from_unit(Seat& seat) {
  Unit& unit = *seat.unit;
  grants_.end_loan(unit);  // a unit that has borrowed its turn holds like any other from now on
  unplace(unit);
  roster_.detach(seat);
  if (!unit.seats.empty() || unit.gang) {
    rebuild(unit, false);
  } else {
    destroy_unit(unit);
  }
}

void Gangs::remove_seat(Seat& seat) {
  Tenant& tenant = *seat.tenant;
  Gpu& gpu = *seat.gpu;
  remove_from_unit(seat);
  gpu.seats.erase(&seat);
  gpu.groups.leave(seat, *seat.group);
  tenant.seats.erase(gpu.index);
  grants_.seats_changed(gpu);
}

// ---- gangs --------------------------------------------------------------------------------------

// All these seats are the gang's from now on.
void Gangs::add_seats(std::vector<Seat*> seats, Unit& gang) {
  if (seats.empty()) return;
  const auto close = [this](Unit& unit) {
    if (unit.revocation && unit.revocation->is_open) revocations_.close_again(unit);
  };
  close(gang);
  unplace(gang);
  for (Seat* seat : seats) {
    Unit& old = *seat->unit;
    close(old);
    unplace(old);
    absorb(gang, old);
    roster_.detach(*seat);
    if (old.seats.empty()) destroy_unit(old);
    roster_.attach(*seat, gang);
  }
  rebuild(gang, true);
}

void Gangs::add_to_gang(Tenant& tenant, Unit& gang) {
  tenant.gang = &gang;
  gang.gang->members.emplace(tenant.id, &tenant);
  std::vector<Seat*> seats;
  for (const auto& [gpu, seat] : tenant.seats) seats.push_back(seat.get());
  add_seats(std::move(seats), gang);
}

void Gangs::add_key(Unit& gang, const std::string& key) {
  gang.gang->keys.push_back(key);
  by_key_[{gang.gang->uid, key}] = &gang;
}

// A common member makes two gangs one.
void Gangs::merge(Unit& into, Unit& from) {
  for (const auto& [id, tenant] : from.gang->members) {
    tenant->gang = &into;
    into.gang->members.emplace(id, tenant);
  }
  for (const std::string& key : from.gang->keys) add_key(into, key);
  if (from.seats.empty()) return destroy_unit(from);
  add_seats(from.seats, into);
}

void Gangs::leave(Tenant& tenant) {
  Unit* const unit = std::exchange(tenant.gang, nullptr);
  if (unit == nullptr) return;
  unit->gang->members.erase(tenant.id);
  if (!unit->gang->members.empty()) return;
  for (const std::string& key : unit->gang->keys) by_key_.erase({unit->gang->uid, key});
  destroy_unit(*unit);
}

void Gangs::join(Tenant& tenant, const std::string& key, std::uint32_t world) {
  const auto found = key.empty() ? by_key_.end() : by_key_.find({tenant.uid, key});
  Unit* gang = found == by_key_.end() ? tenant.gang : found->second;
  if (gang == nullptr) {
    gang = &roster_.make_unit();
    gang->gang = std::make_unique<Gang>();
    gang->gang->uid = tenant.uid;
  }
  if (found == by_key_.end() && !key.empty()) {
    if (gang->gang->keys.size() >= kMaxGangKeys) return;
    add_key(*gang, key);
  }
  gang->gang->world = std::max(gang->gang->world, world);
  if (tenant.gang == nullptr) {
    add_to_gang(tenant, *gang);
  } else if (tenant.gang != gang) {
    merge(*gang, *tenant.gang);
  }
}

void LeaseCore::State::on(const GangJoined& e) {
  if (Tenant* const tenant = roster.tenant_of(e.tenant)) gangs.join(*tenant, e.key, e.world);
}

}  // namespace gpumux::sched
