// SPDX-License-Identifier: Apache-2.0
// The residency planner. It decides how much memory each seat may have on its GPU, its room. It also decides how much
// the seat may have allocated in all, its commitment. docs/memory.md is the protocol that it speaks.
//
// Pure, as the lease core is. Reports, turns and the time go in, bounds come out. No clock, no I/O, no floating point.
// All GPUs of a machine are in one planner, because they share the host memory that evicted data goes to. It knows
// nothing of how leases are decided: its caller hands it each GPU's turns (LeaseCore::turns) when it plans.
//
// A bound is in force only when the seat has confirmed it. Until the seat confirms a lower bound, it may still take
// what the higher one before allowed. So a seat *counts* for the most that any bound under way allows it, or for what
// it has, if that is more. A seat that confirms nothing for kAnswerPatience (stopped, frozen, in a debugger) takes
// nothing in that time. It counts for what it has or was last told, whichever is more. If it wakes up and takes what it
// was told before, the driver refuses it, and that allocation asks for room. Invariants after every step (checked by
// check_invariants):
//   1. On each GPU, what all seats count for fits together with the reserve and foreign memory. If a seat has, or was
//      left with, more than its bound, this may fail, and no bound is raised.
//   2. The promises to all seats fit on the GPUs and in the host memory budget. A seat counts for what it is promised.
//      If it says that it has allocated more, the excess is promised to it as far as memory is left, and otherwise
//      counts for nothing. (Exception: memory that tenants bring back after a restart, until all are back.)
//   3. A seat that wants room gets the room, or a refusal. It is refused if no event could make it fit, if nothing has
//      moved for kRoomPatience, or after kLongestRoomWait. A seat that holds no lease is answered at once with what
//      there is. No seat is refused while the daemon awaits tenants of an earlier one (await_tenants).
//   4. A holder is never told to have less than it has.
//
// A suspended seat (set_suspended) keeps on the GPU only what cannot leave it, even if no other seat needs the room.
// Its wishes wait until it is resumed. When the planner decides which programs fit together, it counts only what cannot
// leave of a suspended seat. The rest is in host memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sched/memory/accounts.h"
#include "sched/memory/memory_types.h"
#include "sched/turns.h"

namespace gpumux::sched {

class Residency {
 public:
  // Evicted data lies in chunks that belong to one seat, of `chunk` bytes each. `reserved`: more bytes, only for
  // accounts that are promised no more than that in all. So an account that comes last can begin.
  void set_host_budget(std::uint64_t bytes, std::uint64_t chunk, std::uint64_t reserved) {
    accounts_.host = {.bytes = bytes, .chunk = chunk, .reserved = reserved};
  }
  // Tenants of an earlier daemon may still come back, until then. Before their first reports, their memory looks like
  // other programs'. So no wish is hopeless.
  void await_tenants(TimePoint until) { accounts_.awaited_until = until; }
  // For a known GPU: changes its capacity and reserve.
  void add_gpu(GpuIndex gpu, std::uint64_t capacity, std::uint64_t reserve);
  // Returns whether it has changed.
  bool set_foreign(TimePoint now, GpuIndex gpu, const Foreign& foreign);
  // Whether programs that are no tenants are on the GPU. Otherwise all memory that seats do not report is tenants'
  // contexts.
  void set_other_programs(GpuIndex gpu, bool any);
  // Whether a seat's answer depends on a new look at the GPU's memory: look at once.
  bool awaits_look(GpuIndex gpu) const;
  // No seat is evicted for another one: allocations beyond what is free are refused.
  void set_free_only(GpuIndex gpu, bool free_only);

  // `gets_bound`: it gets a first bound now. Otherwise it says first what it has: it may be back after a restart.
  // `left`: what its process left as a seat that was closed. The part of that which this seat then reports will not be
  // returned.
  void opened(TimePoint now, SeatId seat, const SeatOwner& owner, bool gets_bound, std::uint64_t left = 0);
  // Its memory, left_by() of it, is taken until the driver has returned it (returned()).
  void closed(TimePoint now, SeatId seat);
  // Bytes that the seat would leave on its GPU if it were closed now.
  std::uint64_t left_by(SeatId seat) const;
  // Until it is told otherwise. The seat is open.
  void set_suspended(TimePoint now, SeatId seat, bool is_suspended);
  void reported(TimePoint now, SeatId seat, const MemoryReport& report);
  // A thread of the seat waits for this much in all; zero: unchanged. `managed`: this much of that commitment need not
  // fit on the GPU.
  void wanted(TimePoint now, SeatId seat, std::uint32_t ticket, std::uint64_t room, std::uint64_t commitment,
              std::uint64_t managed = 0);
  // `left`: the most that has not come back of the memory of tenants that are gone. True: that is less than before.
  bool returned(TimePoint now, GpuIndex gpu, std::uint64_t left);
  // At `asked_at` the GPU had `used` bytes in use: tenants that were gone by then have left no more. As returned.
  bool looked(TimePoint now, TimePoint asked_at, GpuIndex gpu, std::uint64_t used);

  // Whether turns matter for this GPU's memory: something is evicted, or a seat waits for room. Otherwise plan() need
  // be called after the events above only.
  bool is_tight(GpuIndex gpu) const;
  // Whether a suspended seat has memory there that must leave. Then the caller calls plan() whenever a seat drains, on
  // any GPU.
  bool is_clearing(GpuIndex gpu) const;
  // Moves the GPU's bounds towards where they belong. `turns`: as the lease core sees them now.
  void plan(TimePoint now, GpuIndex gpu, std::span<const Turn> turns, ResidencyCommands& commands);
  // When plan() is wanted although nothing has happened.
  std::optional<TimePoint> next_deadline(GpuIndex gpu) const;

  // Whether all seats' memory, allocations that they wait for included, fits at once and leaves `margin`.
  bool fits_together(GpuIndex gpu, std::uint64_t margin) const;
  Togetherness together(GpuIndex gpu) const;
  HostDemand host_demand(GpuIndex gpu) const;
  // Sum of what its seats report as being on it. Room that the driver has refused is no memory.
  std::uint64_t on_gpu(GpuIndex gpu) const;
  // Sum of what its seats count for: the most that they have.
  std::uint64_t charged(GpuIndex gpu) const { return accounts_.charged(accounts_.at(gpu)); }
  // Sum of what its seats report, evicted memory included.
  std::uint64_t on_gpu_and_evicted(GpuIndex gpu) const;
  // Sum of their managed memory: some of it is on the GPU, too.
  std::uint64_t managed(GpuIndex gpu) const;
  std::uint64_t returning(GpuIndex gpu) const { return accounts_.at(gpu).returning; }
  // The part of that which has not come back in time. The next plan counts it no longer. So the caller must count it as
  // foreign before (set_foreign).
  std::uint64_t overdue(TimePoint now, GpuIndex gpu) const {
    return now < accounts_.at(gpu).returning_until ? 0 : accounts_.at(gpu).returning;
  }
  std::uint64_t capacity(GpuIndex gpu) const { return accounts_.at(gpu).capacity; }
  bool has(SeatId seat) const { return accounts_.find(seat) != nullptr; }
  // It may be older than this daemon, and has not yet said what it has.
  bool may_be_back(SeatId seat) const;
  GpuMemory view(GpuIndex gpu) const;
  // None: there is no such seat.
  std::optional<SeatMemoryView> view(SeatId seat) const;
  std::string check_invariants() const;

 private:
  SeatMemoryView view_of(const SeatAccount& seat) const;
  // residency_plan.cc
  struct Telling {
    std::uint64_t room = 0;
    std::uint64_t commitment = 0;
    std::uint64_t most = 0;
  };
  std::vector<SeatAccount*> take_turns(GpuAccount& gpu, std::span<const Turn> turns) const;
  void believe_reports(const GpuAccount& gpu, std::span<SeatAccount* const> order) const;
  void tell(const GpuAccount& gpu, SeatAccount& seat, Telling telling, ResidencyCommands& commands) const;
  Given also_given(const std::optional<Given>& before, std::uint64_t bytes) const;

  Accounts accounts_;
  std::string broken_;  // the first invariant that a plan has broken
};

}  // namespace gpumux::sched
