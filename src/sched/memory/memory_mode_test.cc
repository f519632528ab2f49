// SPDX-License-Identifier: Apache-2.0
// Whether a GPU's programs run at once. Goal: that does not follow a report that may be wrong. Method: reports are
// written down one by one.
#include "sched/memory/memory_mode.h"

#include "sched/testing/residency_desk.h"

namespace gpumux::sched {
namespace {

// Two seats on a GPU of 80 GiB.
class ModeTest : public ::testing::Test {
 protected:
  ModeTest() {
    planner_.add_gpu(kGpu, 80 * kGiB, 0);
    planner_.set_host_budget(400 * kGiB, 0, 0);
    open(1);
    open(2);
  }
  void open(std::uint64_t tenant) {
    planner_.opened(now_, {TenantId{tenant}, kGpu}, {}, true);
    plan();
  }
  void has(std::uint64_t tenant, std::uint64_t resident, std::uint64_t evicted) {
    planner_.reported(
        now_, {TenantId{tenant}, kGpu},
        {.allocated = (resident + evicted) * kGiB, .resident = resident * kGiB, .evicted = evicted * kGiB});
    plan();
  }
  void plan() {
    ResidencyCommands commands;
    planner_.plan(now_, kGpu, {}, commands);
  }
  sched::Mode resolve() { return current_ = mode_.resolve(now_, planner_, kGpu, setting_, wants_turns_, current_); }

  TimePoint now_ = TimePoint() + 1h;
  Residency planner_;
  MemoryMode mode_;
  settings::Mode setting_ = settings::Mode::kAuto;
  sched::Mode current_ = sched::Mode::kSerial;
  bool wants_turns_ = false;
};

TEST_F(ModeTest, IsAsItWasUntilEverybodyHasSpoken) {
  has(1, 10, 0);
  EXPECT_EQ(resolve(), sched::Mode::kSerial);
  has(2, 10, 0);
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
  EXPECT_FALSE(mode_.takes_turns_for_memory());
}

TEST_F(ModeTest, IsSerialWhereSomebodyNeverSpeaks) {
  has(1, 10, 0);
  has(2, 10, 0);
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
  open(3);
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
  now_ += kFirstReportPatience;
  plan();
  EXPECT_EQ(resolve(), sched::Mode::kSerial);
}

// Memory that goes up and down around the amount that fits does not change the mode each time.
TEST_F(ModeTest, FollowsWhatFitsWithAMarginAndADwell) {
  has(1, 40, 0);
  has(2, 30, 11);
  EXPECT_EQ(resolve(), sched::Mode::kSerial);
  EXPECT_TRUE(mode_.takes_turns_for_memory());
  now_ += 1min;
  has(2, 30, 9);  // fits, but not with a sixteenth to spare
  EXPECT_EQ(resolve(), sched::Mode::kSerial);
  has(2, 30, 5);
  now_ += kFitDwell / 2;
  EXPECT_EQ(resolve(), sched::Mode::kSerial);
  EXPECT_EQ(mode_.look_again(), now_ + kFitDwell / 2);
  now_ += kFitDwell / 2;
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
  EXPECT_EQ(mode_.look_again(), std::nullopt);
  has(2, 30, 9);  // now it only has to fit
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
}

TEST_F(ModeTest, ThatIsSetIsKept) {
  has(1, 10, 0);
  has(2, 10, 0);
  setting_ = settings::Mode::kSerial;
  EXPECT_EQ(resolve(), sched::Mode::kSerial);
  setting_ = settings::Mode::kConcurrent;
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
}

// Concurrent is had by turns until what is there already fits; what comes later and does not fit is refused.
TEST_F(ModeTest, ThatCannotBeYetComesWhenItFits) {
  has(1, 60, 0);
  has(2, 20, 40);
  EXPECT_EQ(resolve(), sched::Mode::kSerial);
  EXPECT_EQ(mode_.reason(), MemoryMode::Reason::kTooMuch);
  setting_ = settings::Mode::kConcurrent;
  EXPECT_EQ(resolve(), sched::Mode::kSerial);
  has(2, 20, 0);
  has(1, 50, 0);
  now_ += kFitDwell;
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
  has(1, 70, 0);
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
}

// Seats that differ in priority, share or cap get their due only by turns. The setting `concurrent` waives that.
TEST_F(ModeTest, ThoseWhoDoNotStandAlikeTakeTurns) {
  has(1, 3, 0);
  has(2, 3, 0);
  ASSERT_EQ(resolve(), sched::Mode::kConcurrent);
  EXPECT_EQ(mode_.reason(), MemoryMode::Reason::kFits);
  wants_turns_ = true;
  EXPECT_EQ(resolve(), sched::Mode::kSerial);
  EXPECT_EQ(mode_.reason(), MemoryMode::Reason::kStanding);
  setting_ = settings::Mode::kConcurrent;
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
  setting_ = settings::Mode::kAuto;
  wants_turns_ = false;
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
}

}  // namespace
}  // namespace gpumux::sched
