// SPDX-License-Identifier: Apache-2.0
// Who is likely to belong to what stalls.
//
// A kernel that waits for work of another process ends as soon as that process has its GPU. Programs whose kernels wait
// for each other are gangs for that reason; where nobody has said that they are, it shows only in a stall: here is a
// kernel that does not end, and there somebody who waits.
//
// Likely partners of a stalled unit are the units of the same user that have waited for a lease during the whole of the
// revocation. Whoever had a lease meanwhile could have done what the kernel waits for; whoever is being revoked himself
// gets his lease back when that stalls. And whoever needs one of the stalled unit's own GPUs waits because of it, which
// says nothing. (Beside a kernel that spins for work on its own GPU that work can start anyway: see overlap.)
//
// With on_stall = gang they are taken for one gang with it. That is a guess, and a wrong one must not hold anybody up
// for good. So it never brings together on one GPU what nobody has said belongs together: of each GPU only one is
// taken, the one that has waited longest at the first stall, another one at the next. (Their memory might not fit.) And
// it holds until it turns out not to help, which is the next stall, or until anything is said about its members that it
// did not reckon with: one of them leaves, joins a gang, opens a seat, is suspended, or falls silent. Then it is taken
// apart, and everybody is in the unit in which he was.
//
// Two programs on the same two GPUs are told apart at their first stall. The more GPUs and programs, the more stalls
// that may take; each lets somebody go on.
#include <algorithm>
#include <utility>

#include "sched/state.h"

namespace gpumux::sched {
namespace {

bool shares_gpu(const Unit& a, const Unit& b) {
  return std::any_of(a.gpus.begin(), a.gpus.end(), [&b](const UnitGpu& on_a) {
    return std::any_of(b.gpus.begin(), b.gpus.end(), [&on_a](const UnitGpu& on_b) { return on_a.gpu == on_b.gpu; });
  });
}

TimePoint waits_since(const Unit& unit) {
  TimePoint since = TimePoint::max();
  for (const Seat* seat : unit.seats) {
    if (seat->wants) since = std::min(since, seat->wants_since);
  }
  return since;
}

bool may_be_guessed(const Unit& unit) {
  return std::all_of(unit.gpus.begin(), unit.gpus.end(),
                     [](const UnitGpu& on_gpu) { return on_gpu.gpu->settings.on_stall == OnStall::kGang; });
}

}  // namespace

// Longest wait first.
std::vector<Unit*> LeaseCore::State::partners_of(const Unit& stalled) const {
  std::vector<Unit*> partners;
  if (grants_held) return partners;  // everybody waits
  for (const auto& [serial, unit] : units) {
    if (unit->phase != UnitPhase::kWaiting || waits_since(*unit) > stalled.revoked_at) continue;
    if (unit->seats.front()->tenant->uid != stalled.seats.front()->tenant->uid || shares_gpu(*unit, stalled)) continue;
    partners.push_back(unit.get());
  }
  std::sort(partners.begin(), partners.end(), [](const Unit* a, const Unit* b) {
    return std::pair(waits_since(*a), a->seats.front()->id) < std::pair(waits_since(*b), b->seats.front()->id);
  });
  return partners;
}

// `undrained`: these have stalled together.
void LeaseCore::State::take_for_gang(Unit& stalled, const std::vector<SeatId>& undrained) {
  if (stalled.suspended > 0 || !may_be_guessed(stalled)) return;
  std::vector<Unit*> candidates = partners_of(stalled);
  for (const SeatId id : undrained) {
    Unit* const other = seat_of(id)->unit;
    const bool hangs = other->phase == UnitPhase::kRevoking && !other->returning && other->suspended == 0;
    if (hangs && other != &stalled) candidates.push_back(other);
  }
  if (candidates.empty()) return;
  const std::size_t first = stalled.stalls % candidates.size();
  std::rotate(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(first), candidates.end());
  std::vector<Unit*> taken{&stalled};
  for (Unit* candidate : candidates) {
    const auto is_beside = [candidate](const Unit* other) { return shares_gpu(*candidate, *other); };
    if (may_be_guessed(*candidate) && std::none_of(taken.begin(), taken.end(), is_beside)) taken.push_back(candidate);
  }
  taken.erase(taken.begin());
  if (taken.empty()) return;
  ReportTakenForGang report;
  for (const Seat* seat : stalled.seats) report.seats.push_back(seat->id);
  unplace(stalled);
  for (Unit* partner : taken) {
    unplace(*partner);
    absorb(stalled, *partner);
    if (partner->gang != nullptr) partner->gang->unit = &stalled;
    for (Seat* seat : std::vector<Seat*>(partner->seats)) {
      report.seats.push_back(seat->id);
      detach(*seat);
      attach(*seat, stalled);
    }
    destroy_unit(*partner);
  }
  stalled.guessed = true;
  rebuild(stalled, true);
  timers.stop(stalled.stall);
  command(std::move(report));
}

// It has stalled as a guess, or nobody can be guessed: the user's guesses that wait are taken apart, for whoever it
// lacks may be in one; and so is it, if it is one.
void LeaseCore::State::doubt(Unit& stalled) {
  std::vector<Unit*> doubtful;
  for (const auto& [serial, unit] : units) {
    if (unit.get() != &stalled && unit->phase != UnitPhase::kWaiting) continue;
    if (unit->guessed && unit->seats.front()->tenant->uid == stalled.seats.front()->tenant->uid)
      doubtful.push_back(unit.get());
  }
  for (Unit* unit : doubtful) take_apart(*unit);
}

// Nothing, if it is no guess.
void LeaseCore::State::take_apart(Unit& unit) {
  if (!unit.guessed) return;
  unplace(unit);
  unit.guessed = false;
  Gang* const kept = unit.gang = unit.seats.front()->tenant->gang;
  if (kept != nullptr) kept->unit = &unit;
  std::vector<Unit*> parts{&unit};
  for (Seat* seat : std::vector<Seat*>(unit.seats.begin() + 1, unit.seats.end())) {
    Gang* const gang = seat->tenant->gang;
    if (gang != nullptr && gang == kept) continue;
    Unit* part = gang != nullptr && gang->unit != &unit ? gang->unit : nullptr;
    if (part == nullptr) {
      part = parts.emplace_back(&make_unit(gang));
      absorb(*part, unit);
      part->quantum = unit.quantum;
      if (gang != nullptr) gang->unit = part;
    }
    detach(*seat);
    attach(*seat, *part);
  }
  for (Unit* part : parts) rebuild(*part, true);
}

}  // namespace gpumux::sched
