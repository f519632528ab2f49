// SPDX-License-Identifier: Apache-2.0
#include "sched/memory/wishes.h"

#include <algorithm>

#include "sched/memory/commitments.h"

namespace gpumux::sched {

Refusal Wishes::refusal_of(const GpuAccount& gpu, const SeatAccount& seat, std::uint64_t foreign) const {
  const Commitments commitments(accounts_);
  const std::uint64_t on_gpu = gpu.eventual_beside(foreign);
  const std::uint64_t kept = gpu.kept();
  const std::uint64_t wanted = seat.wish->commitment;
  const Refusal too_much = wanted > Commitments::left_of_quota(gpu, seat) ? Refusal::kQuota : Refusal::kGpuMemory;
  if (seat.wish->room > std::max(Commitments::most_room(on_gpu, gpu, seat, kept), seat.told_room())) return too_much;
  if (wanted <= seat.told_commitment()) return Refusal::kNone;
  if (wanted > Commitments::most(on_gpu, gpu, seat, kept)) return too_much;
  std::uint64_t others = 0;
  for (const auto& [id, other] : gpu.seats) {
    if (&other != &seat && other.counts()) others += other.allocated();
  }
  const auto needs = Commitments::Needs::kAllocated;
  const auto whom = commitments.begins_with(seat, wanted, needs);
  const bool fits = wanted <= minus(commitments.capacity(gpu, on_gpu, needs, whom), others);
  return fits ? Refusal::kNone : Refusal::kHostMemory;
}

bool Wishes::may_have_left(const GpuAccount& gpu, const SeatAccount& seat) const {
  const TimePoint since = looked_for_since(seat);
  const bool was_seen = gpu.foreign.seen_at && *gpu.foreign.seen_at > since;
  return !was_seen && accounts_.now - since < kForeignPatience && is_possible(gpu, seat, 0);
}

bool Wishes::may_not_come(const GpuAccount& gpu, const SeatAccount& seat) const {
  const auto& unseen = gpu.foreign.unseen;
  return unseen && accounts_.now < unseen->until && is_possible(gpu, seat, minus(gpu.foreign.bytes, unseen->bytes));
}

bool Wishes::awaits_look(const GpuAccount& gpu, const SeatAccount& seat) const {
  if (is_possible(gpu, seat)) return false;
  return may_have_left(gpu, seat) || (may_not_come(gpu, seat) && gpu.foreign.unseen->looks_tell);
}

TimePoint Wishes::refused_at(const GpuAccount& gpu, const SeatAccount& seat) const {
  const TimePoint since = looked_for_since(seat);
  return std::min(latest(since, gpu.moved_at) + kRoomPatience, since + kLongestRoomWait);
}

TimePoint Wishes::next_deadline(const GpuAccount& gpu, const SeatAccount& seat) const {
  TimePoint next = refused_at(gpu, seat);
  if (accounts_.awaits_tenants()) next = std::min(next, *accounts_.awaited_until);
  if (may_have_left(gpu, seat)) next = std::min(next, looked_for_since(seat) + kForeignPatience);
  if (may_not_come(gpu, seat)) next = std::min(next, gpu.foreign.unseen->until);
  return next;
}

Wishes::Answer Wishes::answer(const GpuAccount& gpu, const SeatAccount& seat, std::uint64_t room,
                              std::uint64_t commitment) const {
  const Wish& wish = *seat.wish;
  const bool has_commitment = commitment >= wish.commitment;
  const bool has_all = has_commitment && room >= wish.room;
  const bool is_hopeless =
      !accounts_.awaits_tenants() && !is_possible(gpu, seat) && !may_have_left(gpu, seat) && !may_not_come(gpu, seat);
  const bool refused = is_hopeless || accounts_.now >= refused_at(gpu, seat);
  using enum Answer::Kind;
  if (has_all) return {.kind = kAll};
  if (refused)
    return {.kind = kRefused,
            .refusal = is_hopeless ? refusal_of(gpu, seat, gpu.foreign.bytes) : Refusal::kNothingMoves};
  // Without a lease its turn may never come.
  return {.kind = has_commitment && seat.turn != TurnKind::kHolding ? kCommitment : kNone};
}

}  // namespace gpumux::sched
