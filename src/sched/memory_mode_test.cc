// SPDX-License-Identifier: Apache-2.0
// What is not ours of a GPU, and whether its programs run at once. Goal: neither follows a look or a report that may be
// wrong. Method: looks and reports are written down one by one.
#include "sched/memory_mode.h"

#include <gtest/gtest.h>

#include "sched/foreign_use.h"

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr GpuIndex kGpu{0};

TEST(ForeignUse, TheFirstQuietLookIsBelieved) {
  ForeignUse use;
  EXPECT_TRUE(use.look(5 * kGiB, true));
  EXPECT_EQ(use.bytes(), 5 * kGiB);
}

// Tenants were allocating when the daemon looked first: what it saw is theirs, and they report it in a moment.
TEST(ForeignUse, AFirstLookWhileMemoryMovesCountsOnlyAsFarAsTheNextOneAgrees) {
  ForeignUse use;
  EXPECT_FALSE(use.look(60 * kGiB, false));
  EXPECT_EQ(use.bytes(), 0u);
  EXPECT_TRUE(use.look(2 * kGiB, true));
  EXPECT_EQ(use.bytes(), 2 * kGiB);

  ForeignUse other;
  EXPECT_FALSE(other.look(2 * kGiB, false));
  EXPECT_TRUE(other.look(60 * kGiB, true));  // they allocate still
  EXPECT_EQ(other.bytes(), 2 * kGiB);
}

TEST(ForeignUse, MoreIsCountedWhenTwoLooksAgreeAndLessAtOnce) {
  ForeignUse use;
  use.look(kGiB, true);
  EXPECT_FALSE(use.look(9 * kGiB, true));
  EXPECT_EQ(use.bytes(), kGiB);
  EXPECT_TRUE(use.look(6 * kGiB, true));
  EXPECT_EQ(use.bytes(), 6 * kGiB);
  EXPECT_TRUE(use.look(3 * kGiB, true));
  EXPECT_EQ(use.bytes(), 3 * kGiB);
}

TEST(ForeignUse, ALookWhileMemoryMovesSaysNothing) {
  ForeignUse use;
  use.look(kGiB, true);
  EXPECT_FALSE(use.look(50 * kGiB, false));
  EXPECT_FALSE(use.look(50 * kGiB, true));  // the first of two that agree
  EXPECT_EQ(use.bytes(), kGiB);
  EXPECT_FALSE(use.look(0, false));
  EXPECT_EQ(use.bytes(), kGiB);
}

TEST(ForeignUse, NoiseChangesNothing) {
  ForeignUse use;
  use.look(kGiB, true);
  EXPECT_FALSE(use.look(kGiB - 15 * kMiB, true));
  EXPECT_EQ(use.bytes(), kGiB);
}

TEST(ForeignUse, WhatIsBeyondItTheDeadHaveLeft) {
  ForeignUse use;
  use.look(kGiB, true);
  EXPECT_EQ(use.left_behind(31 * kGiB), 30 * kGiB);
  EXPECT_EQ(use.left_behind(kGiB / 2), 0u);
}

TEST(ForeignUse, ContextsAreExpectedInProportionToTheGpu) {
  EXPECT_EQ(expected_contexts(80 * kGiB, 2), 2 * 768 * kMiB);
  EXPECT_EQ(expected_contexts(8 * kGiB, 3), 3 * 128 * kMiB);
  EXPECT_EQ(expected_contexts(8 * kGiB, 0), 0u);
}

// Two seats on a GPU of 80 GiB.
class Mode : public ::testing::Test {
 protected:
  Mode() {
    planner_.add_gpu(kGpu, 80 * kGiB, 0);
    planner_.set_host_budget(400 * kGiB);
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
  MemoryMode::Setting setting_;
  sched::Mode current_ = sched::Mode::kSerial;
  bool wants_turns_ = false;
};

TEST_F(Mode, IsAsItWasUntilEverybodyHasSpoken) {
  has(1, 10, 0);
  EXPECT_EQ(resolve(), sched::Mode::kSerial);
  has(2, 10, 0);
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
  EXPECT_FALSE(mode_.takes_turns_for_memory());
}

TEST_F(Mode, IsSerialWhereSomebodyNeverSpeaks) {
  has(1, 10, 0);
  has(2, 10, 0);
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
  open(3);
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
  now_ += kFirstReportPatience;
  plan();
  EXPECT_EQ(resolve(), sched::Mode::kSerial);
}

// What goes up and down around what fits does not change the mode each time.
TEST_F(Mode, FollowsWhatFitsWithAMarginAndADwell) {
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
  EXPECT_EQ(mode_.look_again(), TimePoint::max());
  has(2, 30, 9);  // now it only has to fit
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
}

TEST_F(Mode, ThatIsSetIsKept) {
  has(1, 10, 0);
  has(2, 10, 0);
  setting_ = {.is_auto = false, .mode = sched::Mode::kSerial};
  EXPECT_EQ(resolve(), sched::Mode::kSerial);
  setting_.mode = sched::Mode::kConcurrent;
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
}

// Concurrent is had by turns until what is there already fits; what comes later and does not fit is refused.
TEST_F(Mode, ThatCannotBeYetComesWhenItFits) {
  has(1, 60, 0);
  has(2, 20, 40);
  EXPECT_EQ(resolve(), sched::Mode::kSerial);
  setting_ = {.is_auto = false, .mode = sched::Mode::kConcurrent};
  EXPECT_EQ(resolve(), sched::Mode::kSerial);
  has(2, 20, 0);
  has(1, 50, 0);
  now_ += kFitDwell;
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
  has(1, 70, 0);
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
}

// What differs in priority, share or cap can have it only by turns; whoever set concurrent has set that aside.
TEST_F(Mode, ThoseWhoDoNotStandAlikeTakeTurns) {
  has(1, 3, 0);
  has(2, 3, 0);
  ASSERT_EQ(resolve(), sched::Mode::kConcurrent);
  wants_turns_ = true;
  EXPECT_EQ(resolve(), sched::Mode::kSerial);
  setting_ = {false, sched::Mode::kConcurrent};
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
  setting_ = {};
  wants_turns_ = false;
  EXPECT_EQ(resolve(), sched::Mode::kConcurrent);
}

}  // namespace
}  // namespace gpumux::sched
