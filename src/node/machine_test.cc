// SPDX-License-Identifier: Apache-2.0
// The node machine. Goal: in any order of events and looks, no seat is told to have what another seat may have. Modes
// and turns follow memory within one rest. Method: events and the time are written down, and the commands are looked
// at.
#include "node/machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace gpumux::node {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kCapacity = 80 * kGiB;
constexpr std::uint64_t kContext = 768 * kMiB;
constexpr GpuIndex kGpu{0};

class MachineTest : public ::testing::Test {
 protected:
  MachineTest() {
    settings.reserve = 0;
    apply(GpuAdded{kGpu, settings, {1}, kCapacity});
    apply(HostBudget{400 * kGiB, 0, 0});
  }

  static SeatId seat(std::uint64_t tenant) { return {{tenant}, kGpu}; }
  void apply(const Event& event) {
    machine.apply(now, event, commands);
    for (const Command& command : commands) {
      if (const auto* bound = std::get_if<sched::RoomBound>(&command)) bounds[bound->seat.tenant.value] = *bound;
      log.push_back(to_string(command));
    }
    commands.clear();
  }
  void rest() { apply(Rest{}); }
  // A seat that says at once that it has nothing, and takes note of what it is told.
  void open(std::uint64_t tenant) {
    apply(sched::TenantConnected{{tenant}});
    apply(SeatOpened{.lease = {.seat = seat(tenant)}});
    reports[tenant] = {};
    settle();
  }
  // It was there before this machine was, and says what it has.
  void come_back(std::uint64_t tenant, std::uint64_t gib, std::uint64_t left = 0) {
    apply(sched::TenantConnected{{tenant}});
    apply(SeatOpened{.lease = {.seat = seat(tenant)}, .is_new = false, .left = left});
    rest();
    if (gib > 0) has(tenant, gib);
  }
  void close(std::uint64_t tenant) {
    apply(sched::TenantGone{{tenant}});
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
    apply(MemoryReported{seat(tenant), reports[tenant]});
    rest();
  }
  void want(std::uint64_t tenant, std::uint64_t commitment, std::uint64_t room = 0) {
    apply(RoomWanted{seat(tenant), 1, room, commitment});
    rest();
  }
  // All tenants take note of all that they are told.
  void settle() {
    rest();
    for (int i = 0; i < 3; ++i) {
      for (const auto& [tenant, report] : std::map(reports)) say(tenant);
    }
    EXPECT_EQ(machine.check_invariants(), "");
  }
  // The GPU is looked at, `after` later.
  void look(std::uint64_t used, base::Duration after = 1s) {
    now += after;
    const TimePoint asked_at = now;
    now += 1ms;
    apply(GpuSampled{kGpu, used, asked_at});
    rest();
  }
  std::uint64_t given() const {
    std::uint64_t sum = 0;
    for (const auto& [tenant, bound] : bounds) sum += bound.room;
    return sum;
  }
  std::uint64_t foreign() const { return machine.memory().view(kGpu).foreign; }
  bool was_done(const std::string& command) const { return std::find(log.begin(), log.end(), command) != log.end(); }

  TimePoint now = TimePoint() + 1h;
  settings::GpuSettings settings;
  Machine machine;
  Commands commands;
  std::vector<std::string> log;
  std::map<std::uint64_t, sched::MemoryReport> reports;
  std::map<std::uint64_t, sched::RoomBound> bounds;
};

TEST_F(MachineTest, AContextIsKeptFreeForEachSeatBeforeLooksShowIt) {
  open(1);
  EXPECT_EQ(foreign(), 2 * kContext) << "its own, and the mover's";
  EXPECT_EQ(given(), kCapacity - 2 * kContext);
  open(2);
  EXPECT_EQ(foreign(), 3 * kContext);
  EXPECT_LE(given(), kCapacity - 3 * kContext);
  close(1);
  EXPECT_EQ(foreign(), 2 * kContext);
}

TEST_F(MachineTest, WhatOthersUseIsNotGivenAndNewcomersContextsAreBesideIt) {
  look(20 * kGiB);
  open(1);
  EXPECT_EQ(foreign(), 20 * kGiB + 2 * kContext);
  EXPECT_EQ(given(), 60 * kGiB - 2 * kContext);
  look(20 * kGiB + 500 * kMiB);
  look(20 * kGiB + 500 * kMiB);
  EXPECT_EQ(foreign(), 20 * kGiB + 2 * kContext) << "it may be more in a moment";
  look(20 * kGiB + 500 * kMiB, sched::kContextPatience);
  EXPECT_EQ(foreign(), 20 * kGiB + 500 * kMiB);
}

TEST_F(MachineTest, WhatOthersGiveBackAndTakeIsGivenAndTakenAtOnce) {
  look(20 * kGiB);
  open(1);
  now += sched::kContextPatience;
  for (int i = 0; i < 2; ++i) look(kContext);
  say(1);
  EXPECT_EQ(given(), kCapacity - kContext);
  for (int i = 0; i < 2; ++i) look(30 * kGiB);
  EXPECT_EQ(given(), 50 * kGiB);
}

TEST_F(MachineTest, AContextOfWhoeverIsSuspendedIsThereStill) {
  open(1);
  open(2);
  apply(sched::SeatsSuspended{{seat(1)}});
  now += sched::kContextPatience;
  look(2 * kContext);
  look(2 * kContext);
  EXPECT_EQ(foreign(), 2 * kContext);
}

TEST_F(MachineTest, NobodyIsRefusedForWhatOthersHadBeforeHeAsked) {
  look(60 * kGiB);
  open(1);
  now += 1ms;
  want(1, 40 * kGiB);
  EXPECT_NE(bounds[1].ticket, 1u);
  EXPECT_TRUE(machine.awaits_look()) << "somebody is to look";
  look(60 * kGiB, 20ms);
  for (int i = 0; i < 2 && bounds[1].ticket != 1; ++i) look(60 * kGiB, sched::kLatestReport);
  EXPECT_EQ(bounds[1].ticket, 1u);
  EXPECT_TRUE(bounds[1].refused());
}

// Another program has ended between two looks. A tenant has allocated the same amount, and reports it after the second
// look.
TEST_F(MachineTest, WhatATenantSaysLateWasNotAnotherPrograms) {
  open(1);
  has(1, 1);
  now += sched::kContextPatience;
  look(kGiB + kContext);
  look(41 * kGiB + kContext);
  ASSERT_EQ(foreign(), kContext);
  now += 1s;
  has(1, 1);
  look(41 * kGiB + kContext, 100ms);
  now += 100ms;
  has(1, 41);
  for (int i = 0; i < 3; ++i) {
    look(41 * kGiB + kContext);
    EXPECT_EQ(foreign(), kContext);
  }
}

// Its context was there, and was looked at, before the seat was. So it is counted twice for a moment. An allocation
// that would not fit with two of them waits until it is counted once.
TEST_F(MachineTest, NobodyIsRefusedForAContextThatIsOnlyExpected) {
  look(kContext);
  open(1);
  ASSERT_EQ(foreign(), 3 * kContext);
  const std::uint64_t all = kCapacity - kContext;
  want(1, all);
  look(kContext);
  look(kContext);
  EXPECT_NE(bounds[1].ticket, 1u) << "it is answered, and " << (bounds[1].refused() ? "refused" : "not refused");
  ASSERT_TRUE(machine.next_deadline());
  now = *machine.next_deadline();
  rest();
  EXPECT_EQ(bounds[1].ticket, 1u);
  EXPECT_FALSE(bounds[1].refused());
  EXPECT_GE(bounds[1].commitment, all);
}

// A new daemon's first look shows its tenants' own memory, before they have come back. None of them is to evict
// anything for the sake of that.
TEST_F(MachineTest, WhoComesBackKeepsWhatItHas) {
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
TEST_F(MachineTest, WhoComesBackSecondKeepsWhatItHas) {
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
TEST_F(MachineTest, WhoConnectsAgainIsNotCountedTwice) {
  open(1);
  has(1, 40);
  open(2);
  has(2, 10);
  settle();
  look(50 * kGiB + 2 * kContext, sched::kContextPatience);
  const std::uint64_t left = machine.memory().left_by(seat(1));
  close(1);
  EXPECT_GE(left, 40 * kGiB);
  EXPECT_TRUE(machine.awaits_look());
  come_back(3, 0, left);
  EXPECT_GE(machine.memory().view(kGpu).returning, 40 * kGiB) << "until it has said what it has";
  has(3, 40);
  EXPECT_LT(machine.memory().view(kGpu).returning, left);
  EXPECT_GE(bounds[3].room, 40 * kGiB) << "it is not to evict anything";
  settle();
  EXPECT_GE(bounds[2].room, 10 * kGiB);
}

// The other program has not ended: the tenant has freed something and not said so.
TEST_F(MachineTest, ALateReportDoesNotMakeAnotherProgramSmaller) {
  look(20 * kGiB);
  open(1);
  has(1, 30);
  now += sched::kContextPatience;
  look(50 * kGiB + kContext);
  look(50 * kGiB + kContext);
  ASSERT_EQ(foreign(), 20 * kGiB + kContext);
  look(30 * kGiB + kContext);
  EXPECT_EQ(foreign(), 20 * kGiB + kContext);
  has(1, 10);
  look(30 * kGiB + kContext);
  EXPECT_EQ(foreign(), 20 * kGiB + kContext);
}

// The other program has not ended: the tenant frees something time and again, and says so late each time.
TEST_F(MachineTest, LateReportsInARowDoNotMakeAnotherProgramSmaller) {
  look(20 * kGiB);
  open(1);
  has(1, 30);
  now += sched::kContextPatience;
  for (int i = 0; i < 2; ++i) look(50 * kGiB);
  ASSERT_EQ(foreign(), 20 * kGiB);
  say(1);
  for (int i = 0; i < 6; ++i) {
    for (int looks = 0; looks < 2; ++looks) {
      look(40 * kGiB, 100ms);
      EXPECT_EQ(foreign(), 20 * kGiB);
    }
    has(1, 20);
    has(1, 30);
  }
}

// A tenant's memory leaves and comes back, which it says at once: that hides no other program's end.
TEST_F(MachineTest, AnotherProgramsEndIsSeenWhileMemoryMoves) {
  look(20 * kGiB);
  open(1);
  has(1, 30);
  now += sched::kContextPatience;
  for (int i = 0; i < 2; ++i) look(50 * kGiB);
  ASSERT_EQ(foreign(), 20 * kGiB);
  for (int i = 0; i < 5; ++i) {
    reports[1].resident = 20 * kGiB;
    reports[1].evicted = 10 * kGiB;
    say(1);
    look(20 * kGiB, 100ms);
    reports[1].resident = 30 * kGiB;
    reports[1].evicted = 0;
    say(1);
    look(30 * kGiB, 100ms);
  }
  EXPECT_EQ(foreign(), 0u);
}

TEST_F(MachineTest, TheDeadsMemoryIsGivenAsItComesBack) {
  open(1);
  has(1, 60);
  open(2);
  look(60 * kGiB, sched::kContextPatience);
  close(1);
  EXPECT_TRUE(machine.awaits_look());
  EXPECT_LE(given(), 20 * kGiB);
  now += sched::kLatestReport;  // no seat reports
  for (int i = 0; i < 3; ++i) look(60 * kGiB, 20ms);
  EXPECT_LE(given(), 20 * kGiB);
  for (int i = 0; i < 2; ++i) look(0, 20ms);
  EXPECT_FALSE(machine.awaits_look());
  settle();
  EXPECT_GT(given(), 70 * kGiB);
}

TEST_F(MachineTest, WhatTheDeadDoNotGiveBackInTimeIsNobodys) {
  open(1);
  has(1, 60);
  open(2);
  look(60 * kGiB, sched::kContextPatience);
  close(1);
  for (int i = 0; i < 3; ++i) look(60 * kGiB, 20ms);
  ASSERT_TRUE(machine.next_deadline());
  now += sched::kReturnPatience;
  settle();
  EXPECT_FALSE(machine.awaits_look());
  EXPECT_LE(given(), 20 * kGiB) << "the driver has it still";
  for (int i = 0; i < 3; ++i) look(0);
  settle();
  EXPECT_GT(given(), 70 * kGiB);
}

// A GPU's mode follows from its programs' memory, in the same rest.
TEST_F(MachineTest, ProgramsThatFitTogetherRunAtOnceAndTakeTurnsWhenTheyNoLongerDo) {
  open(1);
  open(2);
  EXPECT_EQ(machine.mode(kGpu), sched::Mode::kConcurrent);
  EXPECT_TRUE(machine.is_open(kGpu));
  has(1, 60);
  want(2, 60 * kGiB, 60 * kGiB);
  EXPECT_EQ(machine.mode(kGpu), sched::Mode::kSerial);
  EXPECT_FALSE(machine.is_open(kGpu));
  EXPECT_TRUE(was_done("turns_for_memory gpu 0 yes"));
  EXPECT_TRUE(was_done("mode gpu 0 serial"));
}

TEST_F(MachineTest, TheChosenWayCountsOnlyWhereMemoryLeavesItOpen) {
  apply(WayChosen{kGpu, sched::Way::kByTurns});
  open(1);
  open(2);
  EXPECT_TRUE(machine.is_open(kGpu)) << "turns that were chosen for what they give say nothing of memory";
  EXPECT_EQ(machine.mode(kGpu), sched::Mode::kSerial);
  apply(WayChosen{kGpu, sched::Way::kAtOnce});
  rest();
  EXPECT_EQ(machine.mode(kGpu), sched::Mode::kConcurrent);
  settings.mode = settings::Mode::kSerial;
  apply(SettingsChanged{kGpu, settings});
  rest();
  EXPECT_FALSE(machine.is_open(kGpu));
  EXPECT_EQ(machine.mode(kGpu), sched::Mode::kSerial);
}

// A program answers each revocation, and never drains. Programs that fit beside it run.
TEST_F(MachineTest, ProgramsRunBesideOneThatCannotBeDrained) {
  open(1);
  open(2);
  apply(sched::StandingChanged{.seat = seat(2), .weight = 2});
  rest();
  ASSERT_EQ(machine.mode(kGpu), sched::Mode::kSerial);
  log.clear();
  apply(sched::Requested{seat(1)});
  apply(sched::Requested{seat(2)});
  rest();
  for (int i = 0; i < 1000 && !was_done("mode gpu 0 concurrent"); ++i) {
    now = std::max(now, machine.next_deadline().value_or(now + 1ms));
    apply(sched::TimePassed{});
    apply(sched::RevokeSeen{seat(1), sched::LeaseEpoch{1}});
    rest();
  }
  EXPECT_TRUE(was_done("revoke 1@0 e1 quantum"));
  EXPECT_EQ(machine.leases().phase(seat(1)), sched::SeatPhase::kDraining);
  EXPECT_EQ(machine.leases().phase(seat(2)), sched::SeatPhase::kHolding);
  // It may drain sooner or later. Turns are taken again then.
  log.clear();
  apply(sched::Drained{seat(1), sched::LeaseEpoch{1}});
  rest();
  EXPECT_TRUE(was_done("mode gpu 0 serial"));
}

// The GPU keeps the mode in force when settings change that say nothing of it.
TEST_F(MachineTest, OtherSettingsLeaveTheModeAsItIs) {
  open(1);
  open(2);
  ASSERT_EQ(machine.mode(kGpu), sched::Mode::kConcurrent);
  log.clear();
  settings.max_runtime = 1s;
  apply(SettingsChanged{kGpu, settings});
  EXPECT_EQ(machine.mode(kGpu), sched::Mode::kConcurrent);
  EXPECT_FALSE(was_done("mode gpu 0 serial"));
}

// A look may come while a program is just connecting.
TEST_F(MachineTest, OtherProgramsCountWhenTwoLooksShowThem) {
  open(1);
  apply(sched::Requested{seat(1)});
  reports[1] = {.allocated = kCapacity, .evicted = kCapacity};
  say(1);
  now += sched::kContextPatience;
  rest();
  now += sched::kHolderPatience;
  for (const std::string expected : {"memory that the contexts of programs use: they do not fit on the GPU",
                                     "memory that programs outside gpumux and contexts use"}) {
    now += 1s;
    apply(GpuSampled{kGpu, kGiB, now, true});
    say(1);
    EXPECT_EQ(machine.leases().view(now).at(0).seats.at(0).waits_for, expected);
  }
}

// Counts the plans of each GPU.
class PlanCounter final : public Probe {
 public:
  void told(const sched::Event&) override {}
  void planning(GpuIndex gpu, const std::vector<sched::Turn>&) override { ++plans[gpu.value]; }
  void planned(GpuIndex, const std::vector<sched::Turn>&) override {}
  std::map<std::uint32_t, int> plans;
};

// A gang's member on GPU 1 may be let through again until the one on GPU 0 has drained. After that its memory may
// leave. No event and no command names GPU 1.
TEST(MachinePlans, ATightGpuIsPlannedWhenADrainElsewhereChangesItsTurns) {
  PlanCounter counter;
  Machine machine(&counter);
  TimePoint now = TimePoint() + 1h;
  std::map<SeatId, LeaseEpoch> epochs;
  const auto tell = [&](const Event& event) {
    Commands commands;
    machine.apply(now, event, commands);
    for (const Command& command : commands) {
      const auto* lease = std::get_if<sched::Command>(&command);
      const auto* grant = lease == nullptr ? nullptr : std::get_if<sched::Grant>(lease);
      if (grant != nullptr) epochs[grant->seat] = grant->epoch;
    }
    if (!std::holds_alternative<Rest>(event)) machine.apply(now, Rest{}, commands);
  };
  settings::GpuSettings settings;
  settings.mode = settings::Mode::kSerial;
  settings.quantum = 10ms;
  for (const std::uint32_t gpu : {0u, 1u}) tell(GpuAdded{{gpu}, settings, {1}, kCapacity});
  tell(HostBudget{400 * kGiB, 0, 0});
  const SeatId gang0{{1}, {0}}, gang1{{1}, {1}}, evicted{{2}, {1}}, waiter{{3}, {0}};
  for (const std::uint64_t tenant : {1u, 2u, 3u}) tell(sched::TenantConnected{{tenant}});
  tell(sched::GangJoined{{1}, "", 1});
  for (const SeatId seat : {gang0, gang1, evicted, waiter}) tell(SeatOpened{.lease = {.seat = seat}});
  tell(MemoryReported{gang1, {.allocated = 70 * kGiB, .resident = 70 * kGiB}});
  tell(MemoryReported{evicted, {.allocated = 30 * kGiB, .evicted = 30 * kGiB}});
  for (const SeatId seat : {gang0, gang1, waiter}) tell(sched::Requested{seat});
  ASSERT_TRUE(epochs.contains(gang0) && epochs.contains(gang1));
  now += 1s;
  tell(sched::TimePassed{});
  for (const SeatId seat : {gang0, gang1}) tell(sched::RevokeSeen{seat, epochs[seat]});
  tell(sched::GateClosed{gang1, epochs[gang1]});
  tell(sched::Drained{gang1, epochs[gang1]});
  tell(sched::GateClosed{gang0, epochs[gang0]});
  const int before = counter.plans[1];
  tell(sched::Drained{gang0, epochs[gang0]});
  EXPECT_EQ(machine.leases().phase(waiter), sched::SeatPhase::kHolding);
  EXPECT_GT(counter.plans[1], before);
}

// Tenants are hostile, and messages cross.
TEST_F(MachineTest, EventsThatMakeNoSenseChangeNothing) {
  apply(MemoryReported{seat(7), {.resident = kGiB}});
  apply(MemoryReported{{{7}, {99}}, {.resident = kGiB}});
  apply(RoomWanted{{{7}, {99}}, 1, kGiB, kGiB});
  apply(GpuSampled{{99}, kGiB, now});
  apply(WayChosen{{99}, sched::Way::kByTurns});
  apply(SettingsChanged{{99}, settings});
  apply(sched::SeatClosed{seat(7)});
  apply(sched::TenantGone{{7}});
  apply(sched::TimePassed{});
  rest();
  EXPECT_TRUE(log.empty()) << log.front();
  EXPECT_EQ(machine.check_invariants(), "");
}

// Where the driver does not say how much memory a GPU has, the machine gives leases on it, and no rooms.
TEST_F(MachineTest, AGpuOfUnknownMemoryHasLeasesOnly) {
  apply(GpuAdded{{1}, settings, {1}, 0});
  apply(sched::TenantConnected{{1}});
  const SeatId other{{1}, {1}};
  apply(SeatOpened{.lease = {.seat = other}});
  apply(sched::Requested{other});
  apply(MemoryReported{other, {.resident = kGiB}});
  rest();
  EXPECT_EQ(machine.leases().phase(other), sched::SeatPhase::kHolding);
  EXPECT_TRUE(bounds.empty());
}

// Its memory is never planned, so it must not count as a GPU whose plan is stale.
TEST_F(MachineTest, AGpuOfUnknownMemoryHasNoOthersPlannedAgain) {
  apply(GpuAdded{{1}, settings, {1}, 0});
  for (const std::uint64_t tenant : {1u, 2u}) open(tenant);
  has(1, 60);
  reports[2] = {.allocated = 60 * kGiB, .evicted = 60 * kGiB};
  settle();
  ASSERT_TRUE(machine.memory().is_tight(kGpu));
  machine.take_planned();
  rest();
  EXPECT_TRUE(machine.take_planned().none()) << "nothing has happened";
}

}  // namespace
}  // namespace gpumux::node
