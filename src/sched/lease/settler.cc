// SPDX-License-Identifier: Apache-2.0
// Which unit goes next, and which must go: docs/order.md has the rules on one page.
#include "sched/lease/settler.h"

#include <algorithm>

#include "sched/lease/order.h"

namespace gpumux::sched {

// ---- grants -------------------------------------------------------------------------------------

Unit* Settler::next_on(Gpu& gpu) {
  if (gpu.waiting == 0) return nullptr;
  if (gpu.loan) return borrower_on(gpu);
  if (!gpu.can_start()) return nullptr;
  Unit* const next = first_of_heads(gpu, now(), [&](const Unit& head) {
    return can_start(*head.shape) && !is_reserved_against(head, now()) && !queues_.gives_way(head, gpu);
  });
  // No unit behind it starts instead: it would wait for that one's drain next.
  if (next == nullptr || !must_wait_for_drain(*next)) return next;
  agenda().wait_for_drain(gpu);
  return nullptr;
}

void Settler::grant_all(Gpu& gpu) {
  for (;;) {
    queues_.settle_reservations();
    Unit* const next = next_on(gpu);
    if (next == nullptr) return;
    grants_.start(*next);
  }
}

// ---- preemption ---------------------------------------------------------------------------------

// REQUIRES: `holder` has no time left on `gpu` before `waiter`.
void Settler::revoke_for(Unit& waiter, Unit& holder, const Gpu& gpu) {
  const bool ran_out = now() >= after(holder.hold->granted_at, gpu.settings.max_runtime);
  const auto order = precedence(waiter, holder);
  RevokeReason reason = order > 0 && !holder.hold->is_safe ? RevokeReason::kUrgent : RevokeReason::kQuantum;
  if (ran_out) reason = RevokeReason::kMaxRuntime;
  if (is_obstructed(holder) && !is_obstructed(waiter)) reason = RevokeReason::kMemory;
  if (reason == RevokeReason::kUrgent) note_return(waiter, holder);
  holder.yields_since.reset();
  if (reason == RevokeReason::kMaxRuntime && order < 0) holder.yields_since = now();
  revocations_.revoke(holder, reason);
}

void Settler::preempt(Gpu& gpu) {
  if (gpu.waiting > 0) {
    if (gpu.reserved() != nullptr) preempt_for(*gpu.reserved());
    // In the GPU's order, so that a holder goes for the unit that is next.
    heads_.clear();
    for (const Shape* shape : gpu.shapes()) {
      if (shape->first() != nullptr) heads_.push_back(head_of(*shape, gpu, now()));
    }
    std::sort(heads_.begin(), heads_.end());
    for (const QueueEntry& head : heads_) preempt_for(*head.unit);
  }
  if (Unit* const holder = turn_on(gpu)) arm_run(*holder);
  if (gpu.loan) arm_run(*gpu.loan->lender);
}

// The next moment at which time alone can end this lease. Events can end it, too, and look for themselves.
void Settler::arm_run(Unit& unit) {
  // It is due, and has not fired yet. When it fires, all its GPUs are looked at, not only this one.
  if (unit.run.armed() && unit.run.at() <= now()) return;
  TimePoint next = TimePoint::max();
  const auto consider = [&](const Gpu& gpu, const Unit& waiter) {
    const Duration left = time_left(unit, gpu, waiter, now());
    if (left > Duration::zero()) next = std::min(next, after(now(), left));
  };
  for (const UnitGpu& on_gpu : unit.gpus) {
    const Gpu& gpu = *on_gpu.gpu;
    if (on_gpu.holding == 0 || gpu.waiting == 0 || gpu.settings.mode != Mode::kSerial) continue;
    for (const Shape* shape : gpu.shapes()) {
      if (const Unit* const head = shape->first()) consider(gpu, *head);
    }
    if (gpu.reserved() != nullptr && gpu.reserved() != &unit) consider(gpu, *gpu.reserved());
  }
  timers().arm(unit.run, next);
}

// ---- bringing everything to rest ----------------------------------------------------------------

// Applies a changed mode to the holders. To concurrent: holders share from now on. To serial: a sole holder becomes
// exclusive. Several holders must all go, and no unit starts before they have drained.
void Settler::settle_mode(Gpu& gpu) {
  if (gpu.settings.mode == Mode::kConcurrent) {
    if (gpu.places.count(LeaseKind::kExclusive, Occupancy::kHolding) == 0) return;
    if (gpu.loan) grants_.end_loan(*gpu.loan->lender);
    for (Unit* unit : std::vector<Unit*>(gpu.holders.begin(), gpu.holders.end()))
      grants_.convert(*unit, gpu, LeaseKind::kShared);
    return;
  }
  if (gpu.places.count(LeaseKind::kShared, Occupancy::kHolding) == 0) return;
  if (gpu.holders.size() == 1) {
    if (gpu.places.leaving() == 0) grants_.convert(*gpu.holders.front(), gpu, LeaseKind::kExclusive);
    return;
  }
  for (Unit* unit : std::vector<Unit*>(gpu.holders.begin(), gpu.holders.end())) {
    revocations_.revoke(*unit, RevokeReason::kModeChange);
  }
}

// A unit that holds, but not as a whole. With a suspended member it goes. Members that have joined it are granted in
// place if their GPUs are free; otherwise the gang is revoked, to be granted whole.
void Settler::settle_in_part() {
  for (Unit* unit : std::vector<Unit*>(grants_.in_part().begin(), grants_.in_part().end())) {
    const auto has = [unit](const UnitGpu& on_gpu) {
      const Gpu& gpu = *on_gpu.gpu;
      const bool alone = gpu.holders.size() == 1 && gpu.places.count(LeaseKind::kShared, Occupancy::kHolding) == 0;
      if (on_gpu.holding > 0 && alone) return true;
      return gpu.can_start() && (gpu.reserved() == nullptr || gpu.reserved() == unit);
    };
    if (is_suspended(*unit)) {
      revocations_.revoke(*unit, RevokeReason::kSuspended);
    } else if (!std::all_of(unit->gpus.begin(), unit->gpus.end(), has)) {
      revocations_.revoke(*unit, RevokeReason::kGang);
    } else {
      grants_.forget_in_part(*unit);
      grants_.grant_joined(*unit);
      grants_.tell_contention(*unit, false);
      agenda().touch(*unit);
    }
  }
}

void Settler::settle() {
  agenda().look_again();
  for (;;) {
    if (!grants_.are_held() && !grants_.in_part().empty()) settle_in_part();
    queues_.settle_reservations();
    if (agenda().is_at_rest()) break;
    Gpu& gpu = *roster_.gpu_of({agenda().take_changed()});
    if (grants_.are_held()) continue;
    settle_mode(gpu);
    settle_loan(gpu);
    grant_all(gpu);
    preempt(gpu);
  }
  for (GpuSet set = agenda().take_handing_over(); !set.empty();) {
    Gpu& gpu = *roster_.gpu_of({set.take_first()});
    if (gpu.holders.empty()) grants_.heads_up(gpu);  // otherwise the next one has it already
  }
  for (GpuSet set = agenda().take_looked_at(); !set.empty();) {
    Gpu& gpu = *roster_.gpu_of({set.take_first()});
    const bool contended = gpu.waiting > 0;
    if (contended == gpu.contended) continue;
    gpu.contended = contended;
    for (Unit* unit : gpu.holders) grants_.tell_contention(*unit, false);
  }
}

}  // namespace gpumux::sched
