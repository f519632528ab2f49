// SPDX-License-Identifier: Apache-2.0
// Goal: a revoked seat's work is frozen when it has not drained in time, and goes on when it must; the daemon is told
// what is true, in the right order. Method: the real gate, seats, agent and drainer, on the simulated driver. The test
// plays the daemon and the kernel module: whether the module freezes, refuses or takes its time is the test's choice.
#include "shim/tenant/interrupter_test_support.h"

namespace gpumux::shim {

// In place of the real driver's, in this program.
constinit cuda::Driver g_driver;
constinit std::atomic<bool> g_driver_loaded{false};

void load_real_driver() {
  g_driver = sim::simulated_driver();
  g_driver_loaded.store(true, std::memory_order_release);
}

namespace {

TEST_F(InterrupterTest, FreezesWhatHasNotDrainedInTimeAndSaysSo) {
  make_channel();
  EXPECT_FALSE(interrupter->is_frozen(0));
  revoke(kEpoch, 30ms);
  expect_frozen(kEpoch);
  EXPECT_GE(module.frozen_at.load() - revoked_at_, 30ms);
  EXPECT_TRUE(is_in(Closing::Phase::kFrozen));
  EXPECT_TRUE(complaints.all().empty());
}

TEST_F(InterrupterTest, LeavesAloneWhatDrainsInTime) {
  make_channel();
  revoke(kEpoch, 1h);
  EXPECT_EQ(next(), "closed 7");
  finish();
  EXPECT_EQ(next(), "drained 7");
  {
    // Its time is over now.
    Seats::Locked locked(seats);
    locked[0].closing->freeze_after = 0ns;
  }
  interrupter->wake(0);
  expect_nothing_said();
  interrupter.reset();
  EXPECT_EQ(module.freezes, 0);
}

TEST_F(InterrupterTest, LeavesAloneWhatIsToDrainHoweverLongItTakes) {
  make_channel();
  revoke(kEpoch, std::nullopt);
  EXPECT_EQ(next(), "closed 7");
  interrupter->wake(0);
  finish();
  EXPECT_EQ(next(), "drained 7");
  interrupter.reset();
  EXPECT_EQ(module.freezes, 0);
}

TEST_F(InterrupterTest, ALeaseThatIsBackDuringTheFreezeThaws) {
  make_channel();
  module.is_slow = true;
  revoke(kEpoch, 0ns);
  EXPECT_EQ(next(), "closed 7");
  ASSERT_TRUE(sim::eventually([this] { return module.freezes == 1; }));
  grant(kEpoch + 1);  // as with a Reopen
  module.is_slow = false;
  EXPECT_TRUE(is_thawed());
  expect_nothing_said();
  submit();
}

TEST_F(InterrupterTest, WhatDrainsDuringTheFreezeIsThawed) {
  make_channel();
  module.is_slow = true;
  revoke(kEpoch, 0ns);
  EXPECT_EQ(next(), "closed 7");
  ASSERT_TRUE(sim::eventually([this] { return module.freezes == 1; }));
  finish();
  EXPECT_EQ(next(), "drained 7");
  module.is_slow = false;
  EXPECT_TRUE(is_thawed());
  expect_nothing_said();
}

TEST_F(InterrupterTest, ThawsWithTheNextGrant) {
  make_channel();
  for (std::uint64_t epoch = kEpoch; epoch < kEpoch + 3; ++epoch) {
    revoke(epoch, 1ms);
    expect_frozen(epoch);
    grant(epoch + 1);
    EXPECT_TRUE(is_thawed());
    submit();
  }
  EXPECT_EQ(module.freezes, 3);
  expect_nothing_said();
}

// A thread that holds one of our locks may wait for the frozen work itself. (Now and then the interrupter needs that
// lock, to ask for its lease again: if it is about to at that very moment, the test tries again.)
TEST_F(InterrupterTest, AGrantEnablesTheChannelsWhateverAThreadHolds) {
  make_channel();
  bool has_thawed = false;
  for (std::uint64_t epoch = kEpoch; epoch < kEpoch + 5 && !has_thawed; ++epoch) {
    revoke(epoch, 0ns);
    expect_frozen(epoch);
    {
      Seats::Locked held(seats);
      grant(epoch + 1);
      const base::TimePoint end = os::now() + 2s;
      while (module.is_frozen && os::now() < end) std::this_thread::yield();
      has_thawed = !module.is_frozen;
    }
    EXPECT_TRUE(is_thawed());
  }
  EXPECT_TRUE(has_thawed);
}

TEST_F(InterrupterTest, ThawsWhenTheSeatRunsUngated) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  gate.set_ungated(0);
  EXPECT_TRUE(is_thawed());
}

TEST_F(InterrupterTest, AsksForTheLeaseAgainAndAgain) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(next(), "request");
}

// A thread inside the gate, in a launch that finds no room in the queue, until it is ended.
class Launch {
 public:
  explicit Launch(gate::Gate& gate)
      : thread_([this, &gate] {
          gate::ThreadRecord* const thread = gate::this_thread();
          ASSERT_EQ(gate.pass(*thread, 0), gate::Passed::kHolding);
          is_inside_ = true;
          while (!may_leave_) std::this_thread::yield();
          gate.leave(*thread, 0);
        }) {
    while (!is_inside_) std::this_thread::yield();
  }
  ~Launch() { end(); }
  void end() {
    may_leave_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> is_inside_{false};
  std::atomic<bool> may_leave_{false};
  std::thread thread_;
};

TEST_F(InterrupterTest, AThreadInsideTheGateDoesNotKeepItFromBeingFrozen) {
  make_channel();
  Launch launch(gate);
  revoke(kEpoch, 1ms);
  expect_frozen(kEpoch);
  launch.end();
  expect_nothing_said();
  grant(kEpoch + 1);
  EXPECT_TRUE(is_thawed());
}

// Others need not wait for the call, once it has worked: the gate counts as closed when it begins.
TEST_F(InterrupterTest, FromTheSecondTimeOnTheGateIsClosedWhenTheCallBegins) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  grant(kEpoch + 1);
  ASSERT_TRUE(is_thawed());
  Launch launch(gate);
  module.is_slow = true;
  revoke(kEpoch + 1, 0ns);
  EXPECT_EQ(next(), "closed 8");
  EXPECT_FALSE(module.is_frozen);
  module.is_slow = false;
  EXPECT_EQ(next(), "frozen 8");
  EXPECT_EQ(next(), "request");
  launch.end();
  grant(kEpoch + 2);
  EXPECT_TRUE(is_thawed());
}

// A grant came and went before the interrupter's thread saw it.
TEST_F(InterrupterTest, ARevocationWhileFrozenIsAnswered) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  revoke(kEpoch + 1, 1h);
  expect_frozen(kEpoch + 1);
  // The daemon asks once more whether it is alive.
  revoke(kEpoch + 1, 1h);
  expect_frozen(kEpoch + 1);
  EXPECT_EQ(module.freezes, 1);
  EXPECT_EQ(module.thaws, 0);
}

TEST_F(InterrupterTest, ARevocationThatIsADrainThaws) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  revoke(kEpoch, std::nullopt);
  EXPECT_EQ(next_answer(), "closed 7");
  EXPECT_TRUE(is_thawed());
  expect_nothing_said();
  finish();
  EXPECT_EQ(next_answer(), "drained 7");
}

// ---- refusals

TEST_F(InterrupterTest, ARefusalIsReportedAndTheWorkDrains) {
  make_channel();
  module.refuses_to_freeze = true;
  revoke(kEpoch, 0ns);
  EXPECT_EQ(next(), "closed 7");
  ASSERT_TRUE(sim::eventually([this] { return !complaints.all().empty(); }));
  EXPECT_FALSE(interrupter->is_frozen(0));
  interrupter->wake(0);
  finish();
  EXPECT_EQ(next(), "drained 7");
  grant(kEpoch + 1);
  interrupter.reset();
  EXPECT_EQ(complaints.all(), std::vector<std::string>{"the driver refuses to disable its channels"});
  EXPECT_EQ(module.freezes, 1) << "once for a closing";
}

TEST_F(InterrupterTest, WithoutChannelsTheWorkDrains) {
  revoke(kEpoch, 0ns);
  EXPECT_EQ(next(), "closed 7");
  ASSERT_TRUE(sim::eventually([this] { return !complaints.all().empty(); }));
  finish();
  EXPECT_EQ(next(), "drained 7");
  make_channel();
  EXPECT_EQ(module.freezes, 0);
  EXPECT_EQ(complaints.all(), std::vector<std::string>{"none of its channels were seen"});
}

TEST_F(InterrupterTest, WithAProfilerTheWorkDrains) {
  ::setenv("CUDA_INJECTION64_PATH", "/nowhere/libprofiler.so", 1);
  interrupter.reset();
  interrupter.emplace(complaints, gate, seats, agent, drainer, channels);
  ::unsetenv("CUDA_INJECTION64_PATH");
  make_channel();
  revoke(kEpoch, 0ns);
  EXPECT_EQ(next(), "closed 7");
  ASSERT_TRUE(sim::eventually([this] { return !complaints.all().empty(); }));
  EXPECT_EQ(complaints.all().front(), "a profiler is loaded (CUDA_INJECTION64_PATH)");
  EXPECT_EQ(module.freezes, 0);
}

TEST_F(InterrupterTest, WithUnifiedMemoryTheWorkDrains) {
  make_channel();
  complaints.uses_unified_memory = true;
  revoke(kEpoch, 0ns);
  EXPECT_EQ(next(), "closed 7");
  ASSERT_TRUE(sim::eventually([this] { return !complaints.all().empty(); }));
  EXPECT_EQ(complaints.all().front(), "it uses unified memory");
  EXPECT_EQ(module.freezes, 0);
}

TEST_F(InterrupterTest, AThawThatIsRefusedIsTriedUntilItIsDone) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  module.refuses_to_thaw = true;
  grant(kEpoch + 1);
  ASSERT_TRUE(sim::eventually([this] { return complaints.all().size() == 1; }));
  EXPECT_TRUE(interrupter->is_frozen(0));
  EXPECT_EQ(complaints.all().front(), "the driver refuses to enable its channels again");
  module.refuses_to_thaw = false;
  EXPECT_TRUE(is_thawed());
}

TEST_F(InterrupterTest, WhatIsStillFrozenIsThawedAtTheEnd) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  interrupter.reset();
  EXPECT_FALSE(module.is_frozen);
}

}  // namespace
}  // namespace gpumux::shim
