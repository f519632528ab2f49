// SPDX-License-Identifier: Apache-2.0
// How much each seat may have allocated: its commitment, which is a promise.
//
// A seat counts for what it is promised. So all promises together fit on the GPUs and in host memory, even if tenants
// lie. No seat takes what another one was promised.
//
// Commitments are shared out as rooms are (residency_plan.cc), over the GPU and the host memory together. But only the
// GPU's own memory is dealt out as spare. Host memory is for the seats of all GPUs, and must be left for a seat that
// asks for some.
#include <algorithm>
#include <map>
#include <set>

#include "sched/memory/residency.h"

namespace gpumux::sched {

std::uint64_t Residency::commitment_charge(const Seat& seat) const {
  return answers(seat) ? seat.promise() : std::max(seat.allocated(), seat.told_commitment());
}

std::uint64_t Residency::uncommitted(const Gpu& gpu, std::uint64_t capacity) const {
  std::uint64_t left = capacity;
  for (const auto& [id, seat] : gpu.seats) left = minus(left, counts(seat) ? commitment_charge(seat) : 0);
  return left;
}

// Promises to the seat what it reports beyond its promise, as far as memory is left; returns how much. A program has
// more if the driver made it, or if there was no daemon. While seats of other accounts wait its account is promised no
// more than its share that way. So a seat that lies gets no more than by asking.
std::uint64_t Residency::believe(const Gpu& gpu, Seat& seat, std::uint64_t capacity, std::uint64_t left) const {
  const std::uint64_t promise = seat.promise();
  if (seat.report.allocated <= promise) return 0;
  std::set<std::uint64_t> accounts;
  std::uint64_t own = 0;
  bool others_wait = false;
  for (const auto& [id, other] : gpu.seats) {
    if (!counts(other)) continue;
    accounts.insert(other.account);
    if (other.account == seat.account) {
      own += commitment_charge(other);
    } else {
      others_wait = others_wait || other.wish;
    }
  }
  if (others_wait) left = std::min(left, minus(capacity / accounts.size(), own));
  const std::uint64_t more = std::min(seat.report.allocated - promise, left);
  if (more != 0) seat.promised = promise + more;
  return more;
}

// The host memory that can be promised. Each seat may have a chunk that is not full, which no other seat can use.
// (Where there are many seats and little host memory, half of it can be promised.)
std::uint64_t Residency::usable_host(For whom) const {
  std::uint64_t seats = 0;
  for (const auto& [index, gpu] : gpus_) {
    for (const auto& [id, seat] : gpu.seats) seats += counts(seat) ? 1u : 0u;
  }
  const std::uint64_t budget = host_budget_ + (whom == For::kThoseThatBegin ? host_reserved_ : 0);
  return budget - std::min(budget / 2, seats * host_chunk_);
}

// The host memory that the other GPUs' seats do not need, by the measure `needs`.
std::uint64_t Residency::in_host_memory(const Gpu& gpu, Needs needs, For whom) const {
  std::uint64_t elsewhere = 0;
  for (const auto& [index, other] : gpus_) {
    if (&other == &gpu) continue;
    std::uint64_t sum = 0;
    for (const auto& [id, seat] : other.seats) {
      if (!counts(seat)) continue;
      const std::uint64_t allocated = needs == Needs::kAllocated ? seat.allocated() : commitment_charge(seat);
      const std::uint64_t leaves = seat.suspended ? std::min(seat.pageable(), allocated) : 0;
      elsewhere += leaves;
      sum += allocated - leaves;
    }
    elsewhere += minus(sum, available(other));
  }
  return minus(usable_host(whom), elsewhere);
}

// How much all seats of this GPU together may have allocated: what fits on it (`on_gpu`), and what there is of host
// memory.
std::uint64_t Residency::commitment_capacity(const Gpu& gpu, std::uint64_t on_gpu, Needs needs, For whom) const {
  const std::uint64_t in_host = in_host_memory(gpu, needs, whom);
  if (!gpu.free_only) return on_gpu + in_host;
  // Only suspended memory is evicted, and only managed memory may exceed what fits.
  std::uint64_t beside = 0;
  for (const auto& [id, seat] : gpu.seats) {
    if (counts(seat)) beside += seat.managed() + (seat.suspended ? seat.pageable() : 0);
  }
  return on_gpu + std::min(beside, in_host);
}

// The accounts whose reserve the seat may use for this commitment. Its account begins if all of its seats together,
// this one with `commitment`, are promised no more than is reserved.
Residency::For Residency::begins_with(const Seat& seat, std::uint64_t commitment, Needs needs) const {
  std::uint64_t sum = commitment;
  for (const auto& [index, gpu] : gpus_) {
    for (const auto& [id, other] : gpu.seats) {
      if (&other == &seat || other.account != seat.account || !counts(other)) continue;
      sum += needs == Needs::kAllocated ? other.allocated() : commitment_charge(other);
    }
  }
  return sum <= host_reserved_ ? For::kThoseThatBegin : For::kAll;
}

// Seats of accounts that have less than an even part of `capacity` come first.
std::vector<Residency::Share*> Residency::fairest_first(std::vector<Share>& shares, std::uint64_t capacity) {
  std::map<std::uint64_t, std::uint64_t> bytes;  // by account
  for (const Share& share : shares) bytes[share.seat->account] += share.base;
  std::vector<Share*> order;
  order.reserve(shares.size());
  for (Share& share : shares) order.push_back(&share);
  std::stable_partition(order.begin(), order.end(),
                        [&](const Share* share) { return bytes[share->seat->account] < capacity / bytes.size(); });
  return order;
}

// Sets each seat's `most`: a wish for more than that is refused, as things are (refusal_of).
void Residency::find_most(const Gpu& gpu, const std::vector<Seat*>& order) const {
  const std::uint64_t kept_by_all = kept(gpu);
  const std::uint64_t capacity = commitment_capacity(gpu, eventual(gpu), Needs::kAllocated);
  std::uint64_t allocated = 0;
  for (const Seat* seat : order) allocated += counts(*seat) ? seat->allocated() : 0;
  for (Seat* seat : order) {
    // A seat that does not count yet is told so with its first bound.
    const std::uint64_t own = counts(*seat) ? seat->allocated() : 0;
    const std::uint64_t beside_others = minus(capacity, allocated - own);
    seat->most = std::min(most_commitment(eventual(gpu), gpu, *seat, kept_by_all), beside_others);
  }
}

// Sets each seat's `commitment`.
void Residency::plan_commitments(Gpu& gpu, const std::vector<Seat*>& order) const {
  const std::uint64_t kept_by_all = kept(gpu);
  const std::uint64_t capacity = commitment_capacity(gpu, available(gpu), Needs::kCharged, For::kThoseThatBegin);
  // Of that, what only accounts that begin may have.
  const std::uint64_t reserved = capacity - commitment_capacity(gpu, available(gpu), Needs::kCharged, For::kAll);
  const auto may_take = [&](std::uint64_t more, std::uint64_t all, const Seat& seat, std::uint64_t commitment) {
    if (more <= minus(all, reserved)) return more;
    const bool begins = begins_with(seat, commitment, Needs::kCharged) == For::kThoseThatBegin;
    return std::min(more, begins ? all : minus(all, reserved));
  };
  std::uint64_t left = capacity;
  std::uint64_t free = uncommitted(gpu, capacity);
  std::vector<Share> shares;
  std::vector<Share> out;
  for (Seat* seat : order) {
    if (!counts(*seat)) continue;
    free -= believe(gpu, *seat, capacity, minus(free, reserved));
    const std::uint64_t given = seat->is_out() ? 0 : taken(seat->given_commitment);
    Share share{seat, std::max(seat->allocated(), given), seat->told_commitment(),
                most_commitment(eventual(gpu), gpu, *seat, kept_by_all), 0};
    left = minus(left, share.base);
    if (!answers(*seat)) share.most = share.base;
    if (seat->is_out()) share.told = std::min(share.told, share.base);
    (seat->is_out() ? out : shares).push_back(share);
  }
  // A wish comes before spare commitment, and the nearest turn first. If not every seat can have what it wants, one
  // can.
  for (Share* const share : fairest_first(shares, capacity)) {
    const Seat& seat = *share->seat;
    if (!seat.wish || seat.wish->commitment <= share->base || !is_possible(gpu, seat)) continue;
    const std::uint64_t wanted = seat.wish->commitment;
    const std::uint64_t more = wanted - share->base;
    if (may_take(more, left, seat, wanted) < more && wanted > share->told) continue;
    left = minus(left, more);
    share->base = wanted;
    share->most = std::max(share->most, share->base);
  }
  std::uint64_t needed = 0;
  for (const Share& share : shares) needed += share.base;
  for (const Share& share : out) needed += share.seat->report.unpageable;
  left = std::min(minus(left, reserved), minus(available(gpu), needed));
  // Each seat of a quota may use what the quota's other seats leave, and no more is spared for it.
  for (Share& share : shares) {
    const Quota& quota = share.seat->quota;
    if (quota.group == 0) continue;
    std::uint64_t others = 0;
    for (const Share& other : shares) {
      if (&other != &share && other.seat->quota.group == quota.group) others += std::max(other.base, other.told);
    }
    for (const Share& other : out) {
      if (other.seat->quota.group == quota.group) others += other.base;
    }
    share.most = std::min(share.most, std::max(share.base, minus(quota.bytes, others)));
  }
  deal(shares, left);
  for (Share& share : shares) {
    if (share.target < share.told) {
      share.told = share.target;
      continue;
    }
    const std::uint64_t counted = commitment_charge(*share.seat);
    const std::uint64_t more = may_take(minus(share.target, counted), free, *share.seat, share.target);
    const std::uint64_t commitment = std::min(share.target, counted + more);
    if (commitment <= share.told) continue;
    free -= minus(commitment, counted);
    share.told = commitment;
  }
  for (const Share& share : shares) share.seat->commitment = share.told;
  for (const Share& share : out) share.seat->commitment = share.told;
}

}  // namespace gpumux::sched
