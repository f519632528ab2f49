// SPDX-License-Identifier: Apache-2.0
#include "sched/memory/commitments.h"

#include <algorithm>
#include <limits>
#include <set>

namespace gpumux::sched {

std::uint64_t Commitments::left_of(std::uint64_t capacity, const GpuAccount& gpu) const {
  std::uint64_t left = capacity;
  for (const auto& [id, seat] : gpu.seats) left = minus(left, seat.counts() ? accounts_.commitment_charge(seat) : 0);
  return left;
}

// A program has more than it was promised if the driver made it, or if there was no daemon. While seats of other
// accounts wait its account is promised no more than its share that way. So a seat that lies gets no more than by
// asking.
std::uint64_t Commitments::believed(const GpuAccount& gpu, const SeatAccount& seat, std::uint64_t capacity,
                                    std::uint64_t left) const {
  const std::uint64_t promise = seat.promise();
  if (seat.report.allocated <= promise) return 0;
  std::set<std::uint64_t> accounts;
  std::uint64_t own = 0;
  bool others_wait = false;
  for (const auto& [id, other] : gpu.seats) {
    if (!other.counts()) continue;
    accounts.insert(other.account);
    if (other.account == seat.account) {
      own += accounts_.commitment_charge(other);
    } else {
      others_wait = others_wait || other.wish;
    }
  }
  if (others_wait) left = std::min(left, minus(capacity / accounts.size(), own));
  return std::min(seat.report.allocated - promise, left);
}

// The host memory that can be promised. Each seat may have a chunk that is not full, which no other seat can use.
// (Where there are many seats and little host memory, half of it can be promised.)
std::uint64_t Commitments::usable_host(For whom) const {
  std::uint64_t seats = 0;
  for (const auto& [index, gpu] : accounts_.gpus) {
    for (const auto& [id, seat] : gpu.seats) seats += seat.counts() ? 1u : 0u;
  }
  const HostBudget& host = accounts_.host;
  const std::uint64_t budget = host.bytes + (whom == For::kThoseThatBegin ? host.reserved : 0);
  return budget - std::min(budget / 2, seats * host.chunk);
}

// The host memory that the other GPUs' seats do not need, by the measure `needs`.
std::uint64_t Commitments::in_host_memory(const GpuAccount& gpu, Needs needs, For whom) const {
  std::uint64_t elsewhere = 0;
  for (const auto& [index, other] : accounts_.gpus) {
    if (&other == &gpu) continue;
    std::uint64_t sum = 0;
    for (const auto& [id, seat] : other.seats) {
      if (!seat.counts()) continue;
      const std::uint64_t allocated = needs == Needs::kAllocated ? seat.allocated() : accounts_.commitment_charge(seat);
      const std::uint64_t leaves = seat.suspended ? std::min(seat.pageable(), allocated) : 0;
      elsewhere += leaves;
      sum += allocated - leaves;
    }
    elsewhere += minus(sum, other.available());
  }
  return minus(usable_host(whom), elsewhere);
}

std::uint64_t Commitments::capacity(const GpuAccount& gpu, std::uint64_t on_gpu, Needs needs, For whom) const {
  const std::uint64_t in_host = in_host_memory(gpu, needs, whom);
  if (!gpu.free_only) return on_gpu + in_host;
  // Only suspended memory is evicted, and only managed memory may exceed what fits.
  std::uint64_t beside = 0;
  for (const auto& [id, seat] : gpu.seats) {
    if (seat.counts()) beside += seat.managed() + (seat.suspended ? seat.pageable() : 0);
  }
  return on_gpu + std::min(beside, in_host);
}

Commitments::For Commitments::begins_with(const SeatAccount& seat, std::uint64_t commitment, Needs needs) const {
  std::uint64_t sum = commitment;
  for (const auto& [index, gpu] : accounts_.gpus) {
    for (const auto& [id, other] : gpu.seats) {
      if (&other == &seat || other.account != seat.account || !other.counts()) continue;
      sum += needs == Needs::kAllocated ? other.allocated() : accounts_.commitment_charge(other);
    }
  }
  return sum <= accounts_.host.reserved ? For::kThoseThatBegin : For::kAll;
}

std::uint64_t Commitments::most_room(std::uint64_t on_gpu, const GpuAccount& gpu, const SeatAccount& seat,
                                     std::uint64_t kept) {
  const std::uint64_t own = seat.counts() ? gpu.kept_by(seat) : 0;
  const std::uint64_t most = minus(on_gpu, kept - own);
  // A quota bounds what is allocated. Memory beyond it that the seat had before the quota was known has its place, too.
  return seat.quota.group != 0 ? std::min(most, std::max(seat.quota.bytes, seat.all())) : most;
}

std::uint64_t Commitments::left_of_quota(const GpuAccount& gpu, const SeatAccount& seat) {
  if (seat.quota.group == 0) return std::numeric_limits<std::uint64_t>::max();
  std::uint64_t others = 0;
  for (const auto& [id, other] : gpu.seats) {
    if (&other != &seat && other.quota.group == seat.quota.group) others += other.report.allocated;
  }
  return minus(seat.quota.bytes, others);
}

std::uint64_t Commitments::most(std::uint64_t on_gpu, const GpuAccount& gpu, const SeatAccount& seat,
                                std::uint64_t kept) {
  return std::min(most_room(on_gpu, gpu, seat, kept) + seat.managed(), left_of_quota(gpu, seat));
}

}  // namespace gpumux::sched
