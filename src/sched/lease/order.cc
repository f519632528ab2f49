// SPDX-License-Identifier: Apache-2.0
#include "sched/lease/order.h"

#include <algorithm>
#include <limits>

#include "sched/lease/reservations.h"

namespace gpumux::sched {
namespace {

// A fair holder is not looked at again sooner: rounding would otherwise ask for moments that are a nanosecond apart.
constexpr Duration kShortestExtension = std::chrono::microseconds(1);
// A unit is *behind* another one if it has had less time by more than a quantum divided by this (is_behind). Units that
// always have work are never that far apart.
constexpr int kBehindPart = 2;
// A holder's turn while a unit that is behind waits (turn_of): the longer of kTurnAhead and kSwitchCostsPerTurn times
// the measured cost of a drain. So a change of hands and back takes a tenth of the turn at most.
constexpr Duration kTurnAhead = std::chrono::milliseconds(5);
constexpr int kSwitchCostsPerTurn = 20;

// The idle holds of idle_hold_of(): how long an idle holder keeps a contended lease.
//
// No idle hold is longer, at any cost of a switch, before IdleWatch::patience() multiplies it: people wait for nothing.
constexpr Duration kMaxIdleHold = std::chrono::seconds(1);
// The hold of a holder to which nothing below applies. Giving the lease up sooner saves less than the message costs.
constexpr Duration kUsualIdleHold = std::chrono::microseconds(200);
// The hold of a holder that is behind the next unit (is_behind): what a change of hands and back takes.
constexpr Duration kIdleHoldBehind = std::chrono::microseconds(500);
// The hold of a holder whose priority is higher than the next unit's: what it costs to bring the next unit's work onto
// the GPU and to take it off again (experiment 030: a thaw and a freeze; a drain of a few kernels takes as long).
constexpr Duration kIdleHoldAbove = std::chrono::milliseconds(1);

// A single unit that lacks nothing, asks for nothing, and drained in time when it was last revoked.
bool is_complete(const Unit& unit) {
  const Seat& seat = *unit.seats.front();
  return unit.single() && !has_overrun(seat) && !seat.memory.pages && seat.memory.outlook != MemoryOutlook::kWants;
}

// How much time on the GPU makes up for the virtual time that the holder's group, which stands at `from`, has had less.
// Zero: it has had no less, or time does not count.
Duration extension_of(const Unit& holder, const Gpu& gpu, std::int64_t from, std::int64_t to) {
  if (gpu.policy == PolicyKind::kFifo || to <= from) return Duration::zero();
  const std::int64_t weight = holder.on(gpu)->lead->group->weight();
  return to - from > std::numeric_limits<std::int64_t>::max() / weight ? Duration::max()
                                                                       : Duration((to - from) * weight);
}

// Whether memory has to move for its next turn, or did.
bool has_moved(const Unit& unit) {
  return any_seat(unit, [](const Seat& seat) { return seat.memory.pages || seat.memory.coming > 0; });
}

std::int64_t level_of(const Unit& unit) {
  if (unit.yields_since) return std::numeric_limits<std::int64_t>::max();
  if (unit.lifted) return std::numeric_limits<std::int64_t>::min();
  return -static_cast<std::int64_t>(priority_of(unit));
}

// How long a turn of `holder` is while `waiter` waits: the quantum, or less if the waiter is behind. A program that
// pauses often gives the GPU up at each pause. If it waited for a whole quantum each time, it would get next to
// nothing. No turn is shortened where switches are dear (memory that moves, gangs), if the quantum was set, or if the
// holder is safe.
Limit<Duration> turn_of(const Unit& holder, const Gpu& gpu, const Unit& waiter, TimePoint now) {
  const Limit<Duration> quantum = gpu.quantum();
  if (!gpu.settings.quantum.is_automatic() || holder.hold->is_safe) return quantum;
  const Duration turn = std::max(kTurnAhead, gpu.cost.drain() * kSwitchCostsPerTurn);
  const bool is_cheap = gpu.cost.paging() == Duration::zero() && holder.single() && waiter.single() && turn < quantum;
  return is_cheap && is_behind(waiter, holder, gpu, now) ? turn : quantum;
}

}  // namespace

// ---- the key ------------------------------------------------------------------------------------

std::int64_t virtual_time_of(const Unit& unit, const Gpu& gpu, TimePoint now) {
  const Seat& lead = *unit.on(gpu)->lead;
  return runs(lead) ? lead.group->virtual_time_after(uncharged(lead, now)) : lead.group->virtual_time();
}

QueueEntry entry_of(const Unit& unit, const Gpu& gpu, TimePoint now) {
  const bool has_rank = gpu.policy == PolicyKind::kFair && !unit.lifted;
  return {.obstructed = is_obstructed(unit),
          .level = level_of(unit),
          .rank = has_rank ? virtual_time_of(unit, gpu, now) : 0,
          .requested = unit.requested,
          .lead = unit.seats.front()->id,
          .unit = unit.seats.front()->unit};
}

QueueEntry head_of(const Shape& shape, const Gpu& gpu, TimePoint now) {
  const QueueEntry& head = *shape.queue().begin();
  return shape.gpus().front() == &gpu ? head : entry_of(*head.unit, gpu, now);
}

// ---- the end of a turn --------------------------------------------------------------------------

Unit* turn_on(const Gpu& gpu) {
  const std::size_t one_turn = gpu.loan ? 2 : 1;
  if (gpu.settings.mode == Mode::kConcurrent || gpu.holders.size() != one_turn) return nullptr;
  Unit* const first = gpu.holders.front();
  return gpu.is_lent_by(*first) ? gpu.holders.back() : first;
}

bool is_behind(const Unit& unit, const Unit& other, const Gpu& gpu, TimePoint now) {
  const std::int64_t before = other.on(gpu)->lead->group->virtual_time();
  return extension_of(unit, gpu, virtual_time_of(unit, gpu, now), before) >
         gpu.quantum().at_most(Duration::max()) / kBehindPart;
}

Duration time_left(const Unit& holder, const Gpu& gpu, const Unit& waiter, TimePoint now) {
  // Row 1. An obstructed holder makes way for a waiter that can run. A holder that can run makes way for no obstructed
  // one.
  if (is_obstructed(holder) != is_obstructed(waiter)) return is_obstructed(holder) ? Duration::zero() : Duration::max();
  // Row 2. From the grant, so that no unit holds for ever while its memory comes and does not arrive.
  const TimePoint latest = after(holder.hold->granted_at, gpu.settings.max_runtime);
  if (now >= latest) return Duration::zero();
  const auto order = precedence(waiter, holder);
  // Row 3.
  if (order < 0) return latest - now;
  // Row 4. A borrowed turn ends with the lender's wait. Before that it ends for a gang, with the lender's, or for a
  // unit that can borrow it.
  if (has_borrowed(holder, gpu) && (order == 0 || (waiter.gpus.size() == 1 && !may_borrow(waiter))))
    return latest - now;
  // Rows 5 and 6.
  if (order > 0 && !holder.hold->is_safe) return Duration::zero();
  if (ends_own_turns(holder, gpu)) return latest - now;
  // Row 7.
  const TimePoint quantum_end = is_restoring(holder) ? TimePoint::max()
                                                     : after(holder.hold->began.value_or(holder.hold->granted_at),
                                                             turn_of(holder, gpu, waiter, now));
  if (now < quantum_end) return std::min(quantum_end, latest) - now;
  // Rows 8 and 9.
  if (is_coming(waiter)) return latest - now;
  if (waiter.lifted || order > 0) return Duration::zero();
  // Row 10. Under fifo there is no extension. All of the holder's present turn counts, though it does not owe all of
  // it: a waiter that owes more than one turn may cost would wait for ever otherwise.
  const Seat& lead = *holder.on(gpu)->lead;
  const std::int64_t its_time = lead.group->virtual_time_after(used_until(lead, now) - lead.charged_to);
  const Duration extension = extension_of(holder, gpu, its_time, virtual_time_of(waiter, gpu, now));
  if (extension == Duration::zero()) return extension;
  return std::min(std::max(extension, kShortestExtension), latest - now);
}

// ---- lent turns ---------------------------------------------------------------------------------

bool may_borrow(const Unit& unit) {
  return is_complete(unit) && unit.seats.front()->memory.outlook == MemoryOutlook::kStays;
}

bool may_lend(const Unit& holder, const Gpu& gpu) {
  if (!holder.hold || !holder.hold->stands_since) return false;  // most have all their memory
  if (gpu.settings.mode != Mode::kSerial || !gpu.settings.overlap || gpu.has_own_turns) return false;
  const Seat& seat = *holder.seats.front();
  return holder.phase == UnitPhase::kHolding && holder.single() && !is_suspended(seat) && seat.memory.comes();
}

Unit* complete_on(const Gpu& gpu) {
  const Shape* const shape = gpu.single_shape();
  if (shape == nullptr) return nullptr;
  for (const QueueEntry& entry : shape->queue()) {
    if (is_complete(*entry.unit)) return entry.unit;
  }
  return nullptr;
}

Unit* borrower_on(const Gpu& gpu) {
  const bool is_free = gpu.holders.size() == 1 && gpu.places.leaving() == 0;
  if (!is_free || gpu.reserved() != nullptr) return nullptr;
  Unit* const borrower = complete_on(gpu);
  return borrower != nullptr && may_borrow(*borrower) ? borrower : nullptr;
}

// ---- the next unit, and what a holder does for it -----------------------------------------------

Unit* expected_on(const Gpu& gpu, TimePoint now) {
  if (gpu.waiting == 0 || gpu.reserved() != nullptr) return gpu.reserved();
  const auto lends = [&](const Unit* holder) { return may_lend(*holder, gpu); };
  if (std::any_of(gpu.holders.begin(), gpu.holders.end(), lends)) {
    if (Unit* const complete = complete_on(gpu)) return complete;
  }
  return first_of_heads(gpu, now, [now](const Unit& head) { return !is_reserved_against(head, now); });
}

Limit<Duration> idle_hold_of(const Unit& holder, const Gpu& gpu, TimePoint now) {
  if (may_lend(holder, gpu)) return Limit<Duration>();
  if (!gpu.settings.idle_hold.is_automatic()) return gpu.settings.idle_hold.value();
  const Unit* const next = expected_on(gpu, now);
  const bool is_above = next != nullptr && priority_of(holder) > priority_of(*next);
  const Duration least = is_above ? kIdleHoldAbove : kUsualIdleHold;
  if (gpu.cost.paging() > Duration::zero() && (next == nullptr || has_moved(*next)))
    return std::clamp(gpu.cost.total(), least, kMaxIdleHold) * holder.idle_watch.patience();
  if (is_above) return least;
  const bool is_far_behind = next != nullptr && holder.single() && is_behind(holder, *next, gpu, now);
  const Duration cost = is_far_behind ? kIdleHoldBehind : least;
  return holder.idle_watch.gap() > cost ? kIdleHoldInLongGaps : cost;
}

}  // namespace gpumux::sched
