// SPDX-License-Identifier: Apache-2.0
// What the daemon gives of a GPU beside other programs, contexts and the dead. Goal: whatever comes, goes and is looked
// at when, no seat is told to have what somebody else may have. Method: the planner's glue over a lease core and a
// clock of the test's own; what NVML says is written down.
#include "daemon/gpus/rooms.h"

#include <gtest/gtest.h>

#include <map>

#include "daemon/gpus/leases.h"
#include "daemon/loop/trace.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kCapacity = 80 * kGiB;
constexpr std::uint64_t kContext = 768 * kMiB;
constexpr base::GpuIndex kGpu{0};

class ScriptedClock : public base::Clock {
 public:
  base::TimePoint now() const override { return time; }
  base::TimePoint time = base::TimePoint() + 1h;
};

class RoomsTest : public ::testing::Test {
 protected:
  RoomsTest() {
    GpuInfo info;
    info.memory_total = kCapacity;
    GpuSettings settings;
    settings.reserve = 0;
    leases.add_gpu(info, settings, "");
    rooms.set_host_budget(400 * kGiB, 0, 0);
    rooms.on_bound([this](const sched::RoomBound& bound) { bounds[bound.seat.tenant.value] = bound; });
  }

  static base::SeatId seat(std::uint64_t tenant) { return {{tenant}, kGpu}; }
  // A seat that says at once that it has nothing, and takes note of what it is told.
  void open(std::uint64_t tenant) {
    leases.connected({tenant}, std::make_shared<TenantLabel>());
    leases.apply(sched::SeatOpened{seat(tenant)});
    rooms.opened(seat(tenant), {}, true);
    reports[tenant] = {};
    settle();
  }
  // It was there before this daemon was, and says what it has.
  void come_back(std::uint64_t tenant, std::uint64_t gib) {
    leases.connected({tenant}, std::make_shared<TenantLabel>());
    leases.apply(sched::SeatOpened{seat(tenant)});
    rooms.opened(seat(tenant), {}, false);
    rooms.settle();
    has(tenant, gib);
  }
  void close(std::uint64_t tenant) {
    rooms.closed(seat(tenant));
    leases.gone({tenant}, "test", leases.now());
    reports.erase(tenant);
    bounds.erase(tenant);
    settle();
  }
  void has(std::uint64_t tenant, std::uint64_t gib) {
    reports[tenant].resident = reports[tenant].allocated = gib * kGiB;
    say(tenant);
  }
  void say(std::uint64_t tenant) {
    reports[tenant].sequence = bounds[tenant].sequence;
    rooms.reported(seat(tenant), reports[tenant]);
    rooms.settle();
  }
  // Everybody takes note of everything.
  void settle() {
    rooms.settle();
    for (int i = 0; i < 3; ++i) {
      for (const auto& [tenant, report] : std::map(reports)) say(tenant);
    }
    EXPECT_EQ(rooms.check_invariants(), "");
  }
  // NVML is asked and answers, `after` later.
  void look(std::uint64_t used, base::Duration after = 1s) {
    clock.time += after;
    const base::TimePoint asked_at = clock.time;
    clock.time += 1ms;
    rooms.sampled(kGpu, used, asked_at);
    rooms.settle();
  }
  std::uint64_t given() const {
    std::uint64_t sum = 0;
    for (const auto& [tenant, bound] : bounds) sum += bound.room;
    return sum;
  }
  std::uint64_t foreign() const { return rooms.view(kGpu).foreign; }

  ScriptedClock clock;
  Trace trace{100};
  Leases leases{clock, trace};
  Rooms rooms{leases};
  std::map<std::uint64_t, sched::MemoryReport> reports;
  std::map<std::uint64_t, sched::RoomBound> bounds;
};

TEST_F(RoomsTest, AContextIsKeptFreeForEachSeatBeforeLooksShowIt) {
  open(1);
  EXPECT_EQ(foreign(), kContext);
  EXPECT_EQ(given(), kCapacity - kContext);
  open(2);
  EXPECT_EQ(foreign(), 2 * kContext);
  EXPECT_LE(given(), kCapacity - 2 * kContext);
  close(1);
  EXPECT_EQ(foreign(), kContext);
}

TEST_F(RoomsTest, WhatOthersUseIsNotGivenAndNewcomersContextsAreBesideIt) {
  look(20 * kGiB);
  open(1);
  EXPECT_EQ(foreign(), 20 * kGiB + kContext);
  EXPECT_EQ(given(), 60 * kGiB - kContext);
  look(20 * kGiB + 500 * kMiB);
  look(20 * kGiB + 500 * kMiB);
  EXPECT_EQ(foreign(), 20 * kGiB + kContext) << "it may be more in a moment";
  look(20 * kGiB + 500 * kMiB, sched::kContextPatience);
  EXPECT_EQ(foreign(), 20 * kGiB + 500 * kMiB);
}

TEST_F(RoomsTest, WhatOthersGiveBackAndTakeIsGivenAndTakenAtOnce) {
  look(20 * kGiB);
  open(1);
  clock.time += sched::kContextPatience;
  for (int i = 0; i < 2; ++i) look(kContext);
  say(1);
  EXPECT_EQ(given(), kCapacity - kContext);
  for (int i = 0; i < 2; ++i) look(30 * kGiB);
  EXPECT_EQ(given(), 50 * kGiB);
}

TEST_F(RoomsTest, AContextOfWhoeverIsSuspendedIsThereStill) {
  open(1);
  open(2);
  rooms.set_suspended(seat(1), true);
  clock.time += sched::kContextPatience;
  look(0);
  EXPECT_EQ(foreign(), 2 * kContext);
}

TEST_F(RoomsTest, NobodyIsRefusedForWhatOthersHadBeforeHeAsked) {
  look(60 * kGiB);
  open(1);
  clock.time += 1ms;
  rooms.wanted(seat(1), 1, 0, 40 * kGiB, 0);
  rooms.settle();
  EXPECT_NE(bounds[1].ticket, 1u);
  EXPECT_TRUE(rooms.awaits_return()) << "somebody is to look";
  look(60 * kGiB, 20ms);
  for (int i = 0; i < 2 && bounds[1].ticket != 1; ++i) look(60 * kGiB, sched::kLatestReport);
  EXPECT_EQ(bounds[1].ticket, 1u);
  EXPECT_TRUE(bounds[1].refused());
}

// Another program has ended between two looks, and a tenant has allocated as much and says so after the second.
TEST_F(RoomsTest, WhatATenantSaysLateWasNotAnotherPrograms) {
  open(1);
  has(1, 1);
  clock.time += sched::kContextPatience;
  look(kGiB + kContext);
  look(41 * kGiB + kContext);
  ASSERT_EQ(foreign(), kContext);
  clock.time += 1s;
  has(1, 1);
  look(41 * kGiB + kContext, 100ms);
  clock.time += 100ms;
  has(1, 41);
  for (int i = 0; i < 3; ++i) {
    look(41 * kGiB + kContext);
    EXPECT_EQ(foreign(), kContext);
  }
}

// Its context was there, and was looked at, before the seat was: it is counted twice for a moment, and the allocation
// that would be too much beside two of them waits until it is not.
TEST_F(RoomsTest, NobodyIsRefusedForAContextThatIsOnlyExpected) {
  look(kContext);
  open(1);
  ASSERT_EQ(foreign(), 2 * kContext);
  const std::uint64_t all = kCapacity - kContext;
  rooms.wanted(seat(1), 1, 0, all, 0);
  rooms.settle();
  look(kContext);
  look(kContext);
  EXPECT_NE(bounds[1].ticket, 1u) << "it is answered, and " << (bounds[1].refused() ? "refused" : "not refused");
  ASSERT_TRUE(rooms.next_deadline());
  clock.time = *rooms.next_deadline();
  rooms.settle();
  EXPECT_EQ(bounds[1].ticket, 1u);
  EXPECT_FALSE(bounds[1].refused());
  EXPECT_GE(bounds[1].commitment, all);
}

// What a new daemon sees first is its tenants' own, who have not come back yet: none of them is to evict anything for
// the sake of that.
TEST_F(RoomsTest, WhoComesBackKeepsWhatItHas) {
  look(71 * kGiB);
  come_back(1, 30);
  EXPECT_GE(bounds[1].room, 30 * kGiB);
  come_back(2, 40);
  EXPECT_GE(bounds[1].room, 30 * kGiB);
  look(71 * kGiB);
  settle();
  EXPECT_GE(bounds[1].room, 30 * kGiB);
  EXPECT_GE(bounds[2].room, 40 * kGiB);
}

// The first one back was given all the room there was. Until it has taken note of less, the second one is told to have
// what it has, and not to evict it.
TEST_F(RoomsTest, WhoComesBackSecondKeepsWhatItHas) {
  come_back(1, 30);
  ASSERT_GT(bounds[1].room, 40 * kGiB);
  come_back(2, 40);
  EXPECT_EQ(bounds[2].sequence, 1u);
  EXPECT_GE(bounds[2].room, 40 * kGiB);
  EXPECT_GE(bounds[2].commitment, 40 * kGiB);
  settle();
  EXPECT_GE(bounds[1].room, 30 * kGiB);
  EXPECT_GE(bounds[2].room, 40 * kGiB);
  EXPECT_LE(given(), kCapacity - 2 * kContext);
}

// A connection has ended, and its process has not: what it has is not on its way back.
TEST_F(RoomsTest, WhoConnectsAgainIsNotCountedTwice) {
  open(1);
  has(1, 40);
  open(2);
  has(2, 10);
  settle();
  look(50 * kGiB + 2 * kContext, sched::kContextPatience);
  const std::uint64_t left = rooms.closed(seat(1));
  leases.gone({1}, "test", leases.now());
  reports.erase(1);
  bounds.erase(1);
  settle();
  EXPECT_GE(left, 40 * kGiB);
  EXPECT_TRUE(rooms.awaits_return());
  leases.connected({3}, std::make_shared<TenantLabel>());
  leases.apply(sched::SeatOpened{seat(3)});
  rooms.opened(seat(3), {}, false, left);
  rooms.settle();
  EXPECT_GE(rooms.view(kGpu).returning, 40 * kGiB) << "until it has said what it has";
  has(3, 40);
  EXPECT_LT(rooms.view(kGpu).returning, left);
  EXPECT_GE(bounds[3].room, 40 * kGiB) << "it is not to evict anything";
  settle();
  EXPECT_GE(bounds[2].room, 10 * kGiB);
}

// The other program has not ended: the tenant has freed something and not said so.
TEST_F(RoomsTest, ALateReportDoesNotMakeAnotherProgramSmaller) {
  look(20 * kGiB);
  open(1);
  has(1, 30);
  look(50 * kGiB + kContext);
  look(50 * kGiB + kContext);
  ASSERT_EQ(foreign(), 20 * kGiB + kContext);
  look(30 * kGiB + kContext);
  EXPECT_EQ(foreign(), 20 * kGiB + kContext);
  has(1, 10);
  look(30 * kGiB + kContext);
  EXPECT_EQ(foreign(), 20 * kGiB + kContext);
}

TEST_F(RoomsTest, TheDeadsMemoryIsGivenAsItComesBack) {
  open(1);
  has(1, 60);
  open(2);
  look(60 * kGiB, sched::kContextPatience);
  close(1);
  EXPECT_TRUE(rooms.awaits_return());
  EXPECT_LE(given(), 20 * kGiB);
  clock.time += sched::kLatestReport;  // nobody says anything
  for (int i = 0; i < 3; ++i) look(60 * kGiB, 20ms);
  EXPECT_LE(given(), 20 * kGiB);
  for (int i = 0; i < 2; ++i) look(0, 20ms);
  EXPECT_FALSE(rooms.awaits_return());
  settle();
  EXPECT_GT(given(), 70 * kGiB);
}

TEST_F(RoomsTest, WhatTheDeadDoNotGiveBackInTimeIsNobodys) {
  open(1);
  has(1, 60);
  open(2);
  look(60 * kGiB, sched::kContextPatience);
  close(1);
  for (int i = 0; i < 3; ++i) look(60 * kGiB, 20ms);
  ASSERT_TRUE(rooms.next_deadline());
  clock.time += sched::kReturnPatience;
  settle();
  EXPECT_FALSE(rooms.awaits_return());
  EXPECT_LE(given(), 20 * kGiB) << "the driver has it still";
  for (int i = 0; i < 3; ++i) look(0);
  settle();
  EXPECT_GT(given(), 70 * kGiB);
}

}  // namespace
}  // namespace gpumux::daemon
