// SPDX-License-Identifier: Apache-2.0
// A plan is made for a GPU, and its seats are told.
#include <algorithm>
#include <set>

#include "sched/memory/commitments.h"
#include "sched/memory/outlooks.h"
#include "sched/memory/plan.h"
#include "sched/memory/residency.h"
#include "sched/memory/wishes.h"

namespace gpumux::sched {

// The GPU's seats, nearest turn first. Each one has its turn from now on.
std::vector<SeatAccount*> Residency::take_turns(GpuAccount& gpu, std::span<const Turn> turns) const {
  std::vector<SeatAccount*> order;
  order.reserve(gpu.seats.size());
  std::set<SeatId> placed;
  for (const Turn& turn : turns) {
    const auto found = gpu.seats.find(turn.seat);
    if (found == gpu.seats.end() || !placed.insert(turn.seat).second) continue;
    found->second.turn = turn.kind;
    found->second.ends = turn.ends;
    order.push_back(&found->second);
  }
  for (auto& [id, seat] : gpu.seats) {
    if (placed.contains(id)) continue;
    seat.turn = TurnKind::kIdle;
    order.push_back(&seat);
  }
  for (SeatAccount* const seat : order) {
    // Without the lease it takes nothing, and asks again when it holds one.
    if (seat->turn == TurnKind::kHolding) continue;
    seat->given_room.reset();
    seat->grows_until.reset();
  }
  return order;
}

// Memory that seats report beyond their promises is promised to them, as far as there is some left.
void Residency::believe_reports(const GpuAccount& gpu, std::span<SeatAccount* const> order) const {
  using enum Commitments::For;
  const auto needs = Commitments::Needs::kCharged;
  const Commitments commitments(accounts_);
  const std::uint64_t capacity = commitments.capacity(gpu, gpu.available(), needs, kThoseThatBegin);
  const std::uint64_t reserved = capacity - commitments.capacity(gpu, gpu.available(), needs, kAll);
  std::uint64_t free = commitments.left_of(capacity, gpu);
  for (SeatAccount* const seat : order) {
    if (!seat->counts()) continue;
    const std::uint64_t more = commitments.believed(gpu, *seat, capacity, minus(free, reserved));
    if (more == 0) continue;
    seat->promised = seat->promise() + more;
    free -= more;
  }
}

// A thread is given `bytes`, while others of its seat may not have taken yet what they were given.
Given Residency::also_given(const std::optional<Given>& before, std::uint64_t bytes) const {
  return {.bytes = std::max(accounts_.taken(before), bytes), .until = accounts_.now + kTakePatience};
}

void Residency::tell(const GpuAccount& gpu, SeatAccount& seat, Telling telling, ResidencyCommands& commands) const {
  const bool is_full = seat.bounds.size() > kMaxBoundsUnderWay;
  if (is_full) {  // the bound that it was told last is what it has
    telling.room = seat.told_room();
    telling.commitment = seat.told_commitment();
  }
  const auto [room, commitment, its_most] = telling;
  Wishes::Answer answer;
  if (seat.asks()) {
    const Wish& wish = *seat.wish;
    answer = Wishes(accounts_).answer(gpu, seat, room, commitment);
    if (answer.kind == Wishes::Answer::Kind::kAll && seat.turn == TurnKind::kHolding) {
      seat.given_room = also_given(seat.given_room, wish.room);
      if (wish.room > seat.most_had) seat.grows_until = seat.given_room->until;
      seat.most_had = std::max(seat.most_had, wish.room);  // asking for it again is no growth
    }
    if (answer.kind != Wishes::Answer::Kind::kRefused && commitment >= wish.commitment)
      seat.given_commitment = also_given(seat.given_commitment, wish.commitment);
    if (answer.kind == Wishes::Answer::Kind::kCommitment) seat.wants_more = true;
  }
  // The most that it could have changes with each allocation of others. A message is worth it if it changes by much,
  // and if its process is not meant to be frozen.
  const std::uint64_t most = std::max(its_most, commitment);
  const bool is_most_far_off =
      !seat.is_out() && std::max(most, seat.told_most()) - std::min(most, seat.told_most()) >= kLeastRaise;
  const bool changes =
      seat.bounds.empty() || room != seat.told_room() || commitment != seat.told_commitment() || is_most_far_off;
  if (room >= seat.told_room() + kLeastRaise && seat.lacking_since)
    seat.lacking_since = accounts_.now;  // something comes, and more than crumbs
  const bool tells_stranded = seat.is_stranded != seat.told_stranded();
  const bool is_answered = answer.kind != Wishes::Answer::Kind::kNone;
  if (!is_answered && !tells_stranded && (!changes || is_full)) return;
  const std::uint32_t last = seat.bounds.empty() ? 0 : seat.bounds.back().sequence;
  const std::uint32_t sequence = last + 1 == 0 ? 1 : last + 1;
  if (!seat.bounds.empty() && room == seat.told_room() && commitment == seat.told_commitment()) {
    seat.bounds.back().sequence = sequence;
  } else {
    seat.bounds.push_back({.sequence = sequence, .room = room, .commitment = commitment, .told_at = accounts_.now});
  }
  seat.bounds.back().most = most;
  seat.bounds.back().is_stranded = seat.is_stranded;
  if (is_answered) {
    seat.answered = seat.wish->ticket;
    seat.wish.reset();
  }
  const bool is_limited = seat.quota.group != 0;
  commands.bounds.push_back({.seat = seat.id,
                             .sequence = sequence,
                             .room = room,
                             .commitment = commitment,
                             .total = is_limited ? std::min(seat.quota.bytes, gpu.capacity) : gpu.capacity,
                             .most = most,
                             .is_limited = is_limited,
                             .is_stranded = seat.is_stranded,
                             .ticket = seat.answered,
                             .refusal = answer.refusal});
}

void Residency::plan(TimePoint now, GpuIndex index, std::span<const Turn> turns, ResidencyCommands& commands) {
  accounts_.now = std::max(accounts_.now, now);
  GpuAccount* const gpu = accounts_.find(index);
  if (gpu == nullptr) return;
  if (gpu->returning > 0 && accounts_.now >= gpu->returning_until) {
    gpu->returning = 0;
    gpu->moved_at = accounts_.now;
  }
  for (auto& [id, seat] : gpu->seats) {
    // It has nothing to say.
    if (seat.voice == Voice::kBack && !accounts_.may_speak_yet(seat)) seat.voice = Voice::kNone;
  }
  const std::vector<SeatAccount*> order = take_turns(*gpu, turns);
  const std::uint64_t before = accounts_.charged(*gpu);
  const std::vector<std::uint64_t> most = most_of(accounts_, *gpu, order);
  std::vector<SeatPlan> plans;
  for (bool is_settled = false; !is_settled;) {
    is_settled = true;
    believe_reports(*gpu, order);
    plans = make_plan(accounts_, *gpu, order);
    for (const bool are_out : {false, true}) {
      for (std::size_t i = 0; i < order.size(); ++i) {
        SeatAccount& seat = *order[i];
        if (!seat.counts() || seat.is_out() != are_out) continue;
        const std::uint64_t charged = accounts_.charge(seat);
        tell(*gpu, seat, {plans[i].room, plans[i].commitment, most[i]}, commands);
        // The plan does not wait for the answer of a seat that does not answer. The bytes by which it counts for less
        // are free for other seats now.
        is_settled = is_settled && accounts_.charge(seat) >= charged;
      }
    }
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    // The first bound gives nothing: with its answer it counts.
    if (order[i]->voice == Voice::kNone) tell(*gpu, *order[i], {.most = most[i]}, commands);
  }
  note_outlooks(accounts_.now, *gpu, order, plans, commands);
  note_stranded(accounts_.now, *gpu, commands);
  note_evictions(accounts_.now, *gpu, order, plans, commands);
  const std::uint64_t after = accounts_.charged(*gpu);
  if (broken_.empty() && after > before && after > gpu->available())
    broken_ = "GPU " + std::to_string(index.value) + ": bounds were raised beyond what is free";
}

}  // namespace gpumux::sched
