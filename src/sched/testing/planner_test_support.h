// SPDX-License-Identifier: Apache-2.0
// Accounts of one GPU of 80 GiB, for tests of what is made from them.
#pragma once

#include <vector>

#include "sched/memory/accounts.h"
#include "sched/testing/residency_desk.h"

namespace gpumux::sched {

struct OneGpuAccounts {
  OneGpuAccounts() {
    accounts.now = TimePoint() + 1h;
    accounts.host.bytes = 100 * kGiB;
    gpu.capacity = 80 * kGiB;
  }
  // A seat that has spoken, with these GiB, and was told no more than what it has.
  SeatAccount& add(std::uint64_t tenant, TurnKind turn, std::uint64_t resident, std::uint64_t evicted = 0,
                   std::uint64_t unpageable = 0) {
    const SeatId id{TenantId{tenant}, GpuIndex{0}};
    SeatAccount& seat = gpu.seats[id];
    seat.id = id;
    seat.voice = Voice::kSpeaks;
    seat.turn = turn;
    seat.report = {.allocated = (resident + evicted + unpageable) * kGiB,
                   .resident = resident * kGiB,
                   .evicted = evicted * kGiB,
                   .unpageable = unpageable * kGiB};
    seat.promised = seat.report.allocated;
    seat.bounds.push_back({.sequence = 1, .room = seat.has(), .commitment = seat.promised, .told_at = accounts.now});
    order.push_back(&seat);
    return seat;
  }
  // A thread of the seat waits for so many GiB since `before` now.
  static void wish(SeatAccount& seat, std::uint64_t room, std::uint64_t commitment, TimePoint since) {
    seat.wish = {.ticket = 1, .since = since, .room = room * kGiB, .commitment = commitment * kGiB};
  }

  Accounts accounts;
  GpuAccount& gpu = accounts.gpus[0];
  std::vector<SeatAccount*> order;
};

}  // namespace gpumux::sched
