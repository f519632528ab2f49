// SPDX-License-Identifier: Apache-2.0
// The residency planner and a few seats for tests: they say what a test says, and take note of their bounds at once.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "sched/memory/residency.h"

namespace gpumux::sched {

using namespace std::chrono_literals;

inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
inline constexpr GpuIndex kGpu{0};

inline SeatId seat(std::uint64_t tenant) { return {TenantId{tenant}, kGpu}; }

class Desk {
 public:
  explicit Desk(std::uint64_t capacity = 80, std::uint64_t host = 400) {
    planner.add_gpu(kGpu, capacity * kGiB, 0);
    planner.set_host_budget(host * kGiB, 0, 0);
  }

  // The GPU's use beyond what seats report. A look shows it at any moment, unless the test says when one did.
  bool set_foreign(std::uint64_t bytes, TimePoint seen_at = TimePoint::max()) {
    return planner.set_foreign(now, kGpu, {.bytes = bytes, .seen_at = seen_at});
  }
  void open(std::uint64_t tenant, Quota quota = {}, std::uint64_t account = 0) {
    planner.opened(now, seat(tenant), {quota, account}, true);
    turns.push_back({seat(tenant), TurnKind::kIdle, TimePoint::max()});
    plan();
    say(tenant);
  }
  // Opens two seats. The first one has these GiB, and each has confirmed what that changes.
  void open_two(std::uint64_t resident = 0, std::uint64_t evicted = 0, std::uint64_t unpageable = 0) {
    for (const std::uint64_t tenant : {1u, 2u}) open(tenant);
    say(1);
    has(1, resident, evicted, unpageable);
    say(2);
  }
  // The seat has this much now, and says so.
  void has(std::uint64_t tenant, std::uint64_t resident, std::uint64_t evicted = 0, std::uint64_t unpageable = 0) {
    MemoryReport& report = reports[tenant];
    report.resident = resident * kGiB;
    report.evicted = evicted * kGiB;
    report.unpageable = unpageable * kGiB;
    report.allocated = report.resident + report.evicted + report.unpageable;
    report.moving = false;
    say(tenant);
  }
  // The seat is being restored: `on_its_way` has its place on the GPU, and still counts as evicted.
  void restores(std::uint64_t tenant, std::uint64_t on_its_way) {
    MemoryReport& report = reports[tenant];
    report.resident += on_its_way * kGiB;
    report.moving = true;
    say(tenant);
  }
  // The same for managed memory.
  void has_managed(std::uint64_t tenant, std::uint64_t managed) {
    MemoryReport& report = reports[tenant];
    report.managed = managed * kGiB;
    report.allocated = report.resident + report.evicted + report.unpageable + report.managed;
    say(tenant);
  }
  void say(std::uint64_t tenant) {
    if (bounds.contains(tenant)) reports[tenant].sequence = bounds[tenant].sequence;
    planner.reported(now, seat(tenant), reports[tenant]);
    plan();
  }
  void turn(std::vector<std::pair<std::uint64_t, TurnKind>> order, Duration left = 10s) {
    turns.clear();
    for (const auto& [tenant, kind] : order) {
      turns.push_back({seat(tenant), kind, kind == TurnKind::kHolding ? now + left : TimePoint::max()});
    }
    plan();
  }
  // The answer to a want, if there is one.
  std::optional<RoomBound> want(std::uint64_t tenant, std::uint64_t room, std::uint64_t commitment = 0,
                                std::uint64_t managed = 0) {
    ++ticket;
    planner.wanted(now, seat(tenant), ticket, room * kGiB, commitment * kGiB, managed * kGiB);
    plan();
    return answer(tenant);
  }
  std::optional<RoomBound> answer(std::uint64_t tenant) {
    const auto found = bounds.find(tenant);
    if (found == bounds.end() || found->second.ticket != ticket) return std::nullopt;
    return found->second;
  }
  void plan() {
    commands = {};
    planner.plan(now, kGpu, turns, commands);
    for (const RoomBound& bound : commands.bounds) bounds[bound.seat.tenant.value] = bound;
    for (const MemoryExpected& one : commands.expected) outlooks[one.seat.tenant.value] = one.outlook;
    sent += commands.bounds.size();
    EXPECT_EQ(planner.check_invariants(), "");
  }
  // Every seat confirms every bound.
  void settle() {
    for (int i = 0; i < 4; ++i) {
      for (const auto& [tenant, bound] : std::map(bounds)) say(tenant);
    }
  }
  std::uint64_t room(std::uint64_t tenant) { return bounds[tenant].room / kGiB; }
  std::uint64_t commitment(std::uint64_t tenant) { return bounds[tenant].commitment / kGiB; }

  Residency planner;
  TimePoint now = TimePoint() + 1h;
  std::vector<Turn> turns;
  std::map<std::uint64_t, MemoryReport> reports;
  std::map<std::uint64_t, RoomBound> bounds;
  std::map<std::uint64_t, MemoryOutlook> outlooks;
  ResidencyCommands commands;
  std::uint32_t ticket = 0;
  std::size_t sent = 0;
};

using enum TurnKind;

}  // namespace gpumux::sched
