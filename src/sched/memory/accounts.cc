// SPDX-License-Identifier: Apache-2.0
#include "sched/memory/accounts.h"

namespace gpumux::sched {

// Memory of a stuck seat is not kept: mostly it waits for host memory, which comes. If it does not come, nothing moves,
// and every wait for it has a limit.
std::uint64_t GpuAccount::kept_by(const SeatAccount& seat) const {
  return free_only && !seat.suspended ? seat.all() : seat.report.unpageable;
}

std::uint64_t GpuAccount::kept() const {
  std::uint64_t sum = 0;
  for (const auto& [id, seat] : seats) sum += seat.counts() ? kept_by(seat) : 0;
  return sum;
}

GpuAccount* Accounts::find(GpuIndex index) {
  const auto found = gpus.find(index.value);
  return found == gpus.end() ? nullptr : &found->second;
}

const GpuAccount& Accounts::at(GpuIndex index) const {
  static const GpuAccount kNone;
  const auto found = gpus.find(index.value);
  return found == gpus.end() ? kNone : found->second;
}

SeatAccount* Accounts::find(SeatId seat) {
  GpuAccount* const gpu = find(seat.gpu);
  if (gpu == nullptr) return nullptr;
  const auto found = gpu->seats.find(seat);
  return found == gpu->seats.end() ? nullptr : &found->second;
}

std::uint64_t Accounts::charge(const SeatAccount& seat) const {
  std::uint64_t most = seat.has();
  if (!answers(seat)) return std::max(most, seat.told_room());
  for (const ToldBound& bound : seat.bounds) most = std::max(most, bound.room);
  return most;
}

std::uint64_t Accounts::charged(const GpuAccount& gpu) const {
  std::uint64_t sum = 0;
  for (const auto& [id, seat] : gpu.seats) sum += seat.counts() ? charge(seat) : 0;
  return sum;
}

std::uint64_t Accounts::commitment_charge(const SeatAccount& seat) const {
  return answers(seat) ? seat.promise() : std::max(seat.allocated(), seat.told_commitment());
}

}  // namespace gpumux::sched
