// SPDX-License-Identifier: Apache-2.0
// The agenda by itself: which GPUs settle() has to look at, and when.
#include "sched/lease/agenda.h"

#include <gtest/gtest.h>

namespace gpumux::sched {
namespace {

class AgendaTest : public ::testing::Test {
 protected:
  AgendaTest() {
    a_.index = GpuIndex{3};
    b_.index = GpuIndex{70};
  }

  // Whether this is the only GPU left to look at.
  bool takes_only(const Gpu& gpu) {
    return !agenda_.is_at_rest() && agenda_.take_changed() == gpu.index.value && agenda_.is_at_rest();
  }

  Gpu a_, b_;
  Agenda agenda_;
};

TEST_F(AgendaTest, GivesEachChangedGpuOnce) {
  EXPECT_TRUE(agenda_.is_at_rest());
  agenda_.touch(b_);
  agenda_.touch(a_);
  agenda_.touch(b_);
  EXPECT_EQ(agenda_.take_changed(), 3u);
  EXPECT_TRUE(takes_only(b_));
  GpuSet looked_at = agenda_.take_looked_at();
  EXPECT_EQ(looked_at.take_first(), 3u);
  EXPECT_EQ(looked_at.take_first(), 70u);
  EXPECT_TRUE(agenda_.take_looked_at().empty());
}

TEST_F(AgendaTest, LooksAgainWhenADrainIsOver) {
  agenda_.wait_for_drain(a_);
  EXPECT_TRUE(agenda_.is_at_rest());
  agenda_.drain_is_over();
  EXPECT_TRUE(takes_only(a_));
  agenda_.drain_is_over();
  EXPECT_TRUE(agenda_.is_at_rest());
}

TEST_F(AgendaTest, AGangThatGivesWayTwiceWaits) {
  const Unit single{};
  agenda_.give_way(a_, single, b_);
  EXPECT_TRUE(takes_only(b_));
  agenda_.give_way(a_, single, b_);
  EXPECT_TRUE(agenda_.is_at_rest()) << "two GPUs would look at each other for ever";
  agenda_.look_again();
  agenda_.give_way(a_, single, b_);
  EXPECT_TRUE(takes_only(b_));
  agenda_.drain_is_over();
  EXPECT_TRUE(takes_only(a_));
}

}  // namespace
}  // namespace gpumux::sched
