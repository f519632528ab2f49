# SPDX-License-Identifier: Apache-2.0
"""Each rule of the order of turns, and the edit that takes it out of the lease core.

An edit is (file, text before, text after). The text must be in the file once: run.py says so where the code has moved.
"""
from typing import NamedTuple

H = "src/sched/lease/units.h"
O = "src/sched/lease/order.cc"
OH = "src/sched/lease/order.h"
Q = "src/sched/lease/settler.cc"
S = "src/sched/lease/standing.cc"
R = "src/sched/lease/revocations.cc"
V = "src/sched/lease/reservations.cc"
L = "src/sched/lease/loans.cc"


class Variant(NamedTuple):
    name: str
    without: str
    edits: list[tuple[str, str, str]]


COST = "  const Duration cost = is_far_behind ? kIdleHoldBehind : least;"
BY_GAP = "  return holder.idle_watch.gap() > cost ? kIdleHoldInLongGaps : cost;"
MOVES = "  if (gpu.cost.paging() > Duration::zero() && (next == nullptr || has_moved(*next)))\n"

VARIANTS = [
    Variant("none", "nothing: the core as it is", []),
    # ---- the key --------------------------------------------------------------------------------
    Variant("obstructed", "a unit that cannot have its memory stands behind all others",
            [(O, ".obstructed = is_obstructed(unit),", ".obstructed = false,")]),
    Variant("obstructed, all of it", "... and makes way for them",
            [(H, "  return any_seat(unit, [](const Seat& seat) { return seat.memory.is_obstructed(); });",
              "  return unit.seats.empty();")]),
    Variant("level", "a higher priority is ahead in the queue",
            [(O, "  return -static_cast<std::int64_t>(priority_of(unit));", "  return 0;")]),
    Variant("precedence", "a holder goes at once for a higher priority",
            [(OH, "  return priority_of(waiter) <=> priority_of(holder);", "  return std::strong_ordering::equal;")]),
    Variant("rank", "the least time for its weight is first; instead: first come, first served",
            [(O, ".rank = has_rank ? virtual_time_of(unit, gpu, now) : 0,", ".rank = 0,")]),
    Variant("extension", "a holder goes on until the waiter's turn has come",
            [(O, "  return extension_of(unit, gpu, virtual_time_of(unit, gpu, now), before) >",
              "  return Duration::zero() >"),
             (O, "  const Duration extension = extension_of(holder, gpu, its_time, virtual_time_of(waiter, gpu, now));",
              "  const Duration extension = Duration::zero() * its_time;")]),
    Variant("lifted", "ageing puts a unit first",
            [(S, "  if (unit.phase != UnitPhase::kWaiting || unit.lifted) return;\n",
              "  if (!unit.lifted) return;\n")]),
    Variant("lifted, held up", "... and those that wait for such units",
            [(S, "  if (!ages) return;\n", "  if (ages || !ages) return;\n")]),
    Variant("yields", "a unit that max_runtime ended stands behind all others once",
            [(Q, "  if (reason == RevokeReason::kMaxRuntime && order < 0) holder.yields_since = now();\n", "")]),
    Variant("is_safe", "a unit that was let in before a higher one has a quantum",
            [(S, "  started.hold->is_safe = started.lifted;", "  started.hold->is_safe = false;"),
             (S, "        started.hold->is_safe = true;\n", ""),
             (S, "      holder->hold->is_safe = true;\n", "")]),
    Variant("keeps_place, obstacle", "a turn that an obstacle ended leaves the unit its place",
            [(R, "    seat->keeps_place = reason == RevokeReason::kMemory;", "    seat->keeps_place = false;")]),
    Variant("keeps_place, loan", "a borrowed turn leaves the unit its place",
            [(L, "    for (Seat* seat : unit->seats) seat->keeps_place = true;\n", "")]),
    # ---- several GPUs ---------------------------------------------------------------------------
    Variant("aged", "a gang that has waited long has its GPUs reserved",
            [(V, "  if (unit.phase == UnitPhase::kWaiting && !is_obstructed(unit)) reservations_.add_aged(unit);\n",
              "")]),
    Variant("aged, preempting", "... and so has one for which holders go",
            [(V, "    queues_.age(waiter);  // so that what is given up for it goes to it\n", "")]),
    Variant("aged, outranked", "... and none that must wait for a higher priority elsewhere",
            [(V, "[](const Unit* unit) { return !is_outranked(*unit); }", "[](const Unit*) { return true; }")]),
    Variant("reserved", "a reserved GPU is kept from the units behind",
            [(V, "    if (reserved == nullptr || reserved == &unit) continue;\n    // Of its",
              "    if (reserved == nullptr || reserved != nullptr) continue;\n    // Of its")]),
    Variant("reserved, from all", "... and not from those ahead",
            [(V, "!(entry_of(unit, *on_gpu.gpu, now) < entry_of(*reserved, *on_gpu.gpu, now))", "true")]),
    Variant("gives way", "a gang gives way to single seats that are ahead on its other GPUs",
            [(V, "    if (&gpu == &here) continue;", "    if (&gpu == &here || true) continue;")]),
    # ---- the end of a turn ----------------------------------------------------------------------
    Variant("short turns", "a turn is short while a unit that is behind waits",
            [(O, "  return is_cheap && is_behind(waiter, holder, gpu, now) ? turn : quantum;",
              "  return is_cheap ? quantum : quantum;")]),
    Variant("coming", "no holder goes for a unit whose memory still comes",
            [(O, "  if (is_coming(waiter)) return latest - now;\n", "")]),
    # ---- the idle hold --------------------------------------------------------------------------
    Variant("hold 200 us", "an idle lease is kept for a switch's cost; instead: 25 us",
            [(O, COST, "  const Duration cost = is_far_behind ? kIdleHoldBehind : kIdleHoldInLongGaps;")]),
    Variant("hold 25 us", "... and for 25 us if the gaps are longer",
            [(O, BY_GAP, "  return cost;")]),
    Variant("hold 25 us, behind", "... also if the unit is behind",
            [(O, BY_GAP, "  return holder.idle_watch.gap() > cost && !is_far_behind ? kIdleHoldInLongGaps : cost;")]),
    Variant("hold 500 us", "a unit that is behind keeps it longer",
            [(O, COST, "  const Duration cost = is_far_behind ? least : least;")]),
    Variant("hold 1 ms", "a higher priority keeps it longer",
            [(O, "  const bool is_above = next != nullptr && priority_of(holder) > priority_of(*next);\n",
              "  const bool is_above = false;\n")]),
    Variant("hold, paging", "it is kept for as long as memory takes to come; instead: 200 us",
            [(O, MOVES, "  if (next == nullptr && next != nullptr)\n")]),
    Variant("hold x8", "... and up to eight times as long while switches are useless",
            [(O, " * holder.idle_watch.patience();", ";")]),
]
