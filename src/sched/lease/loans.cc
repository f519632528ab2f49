// SPDX-License-Identifier: Apache-2.0
// Turns that are lent while memory comes.
//
// A holder that waits for its memory leaves the GPU idle, for seconds where host memory is slow. So the first unit in
// the queue that lacks nothing borrows the turn: it is granted its lease while the holder has its own. It borrows only
// if the holder does not need its memory. The holder keeps its lease and its place. When the holder's memory is there,
// or will not come, the borrower is revoked. It drains as a predecessor does. Time that is lent is not charged to the
// lender, and is no cost of a switch.
//
// On each GPU one turn at most is lent, by a single seat to a single seat.
#include <algorithm>

#include "sched/lease/grants.h"
#include "sched/lease/order.h"
#include "sched/lease/revocations.h"
#include "sched/lease/settler.h"

namespace gpumux::sched {
namespace {

// A single unit that waits and must have the lender's turn now, lent or not; nullptr: none. For gangs see
// preempt_for().
Unit* due_for(const Unit& lender, const Gpu& gpu, TimePoint now) {
  Unit* const waiter = gpu.first_single();
  return waiter != nullptr && time_left(lender, gpu, *waiter, now) == Duration::zero() ? waiter : nullptr;
}

}  // namespace

void Settler::settle_loan(Gpu& gpu) {
  if (!gpu.loan) {
    if (gpu.holders.size() != 1) return;
    Unit& holder = *gpu.holders.front();
    if (!may_lend(holder, gpu) || due_for(holder, gpu, now()) != nullptr || borrower_on(gpu) == nullptr) return;
    gpu.loan = {.lender = &holder, .since = now()};
    return;
  }
  Unit& lender = *gpu.loan->lender;
  if (Unit* const waiter = due_for(lender, gpu, now())) return revoke_for(*waiter, lender, gpu);
  Unit* const borrower = turn_on(gpu);
  if (borrower != nullptr && waits_for_memory(*borrower)) revocations_.revoke(*borrower, RevokeReason::kMemory);
  const bool any_borrower = gpu.holders.size() > 1 || borrower_on(gpu) != nullptr;
  if (!may_lend(lender, gpu) || !any_borrower) revocations_.take_turn_back(gpu);
}

void Revocations::take_turn_back(Gpu& gpu) {
  for (Unit* unit : std::vector<Unit*>(gpu.holders.begin(), gpu.holders.end())) {
    if (gpu.is_lent_by(*unit)) continue;
    revoke(*unit, RevokeReason::kQuantum);
    for (Seat* seat : unit->seats) seat->keeps_place = true;
  }
  grants_.end_loan(*gpu.loan->lender);
}

void Grants::end_loan(Unit& unit) {
  Gpu& gpu = *unit.gpus.front().gpu;
  if (!gpu.is_lent_by(unit)) return;
  const Duration lent = now() - gpu.loan->since;
  gpu.loan.reset();
  unit.hold->lent += lent;
  unit.seats.front()->charged_to += lent;
  agenda().touch(gpu);
}

}  // namespace gpumux::sched
