// SPDX-License-Identifier: Apache-2.0
// Goal: frozen work drains for memory that must leave. Where memory leaves without that, work goes on when all of it is
// back. Method: as in interrupter_test.cc; the test says where memory is.
#include "shim/tenant/interrupter_test_support.h"

namespace gpumux::shim {
namespace {

TEST_F(InterrupterTest, FrozenWorkDrainsWhenMemoryMustLeave) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  interrupter->let_drain(0);
  EXPECT_TRUE(is_thawed());
  EXPECT_TRUE(is_in(Closing::Phase::kDraining));
  expect_nothing_said();
  finish();
  EXPECT_EQ(next_answer(), "drained 7");
  EXPECT_EQ(module.freezes, 1);
}

TEST_F(InterrupterTest, WhatMustDrainIsNotFrozen) {
  make_channel();
  interrupter->let_drain(0);  // nothing is revoked
  revoke(kEpoch, 1h);
  EXPECT_EQ(next(), "closed 7");
  interrupter->let_drain(0);
  EXPECT_EQ(closing()->freeze_after, std::nullopt);
  finish();
  EXPECT_EQ(next(), "drained 7");
}

TEST_F(InterrupterTest, AWishToDrainDuringTheFreezeIsNotOverlooked) {
  make_channel();
  module.is_slow = true;
  revoke(kEpoch, 0ns);
  EXPECT_EQ(next(), "closed 7");
  ASSERT_TRUE(sim::eventually([this] { return module.freezes == 1; }));
  interrupter->let_drain(0);
  module.is_slow = false;
  EXPECT_TRUE(is_thawed());
  expect_nothing_said();
  finish();
  EXPECT_EQ(next(), "drained 7");
}

TEST_F(InterrupterTest, FrozenWorkWaitsForItsMemoryWhenItIsGranted) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  EXPECT_TRUE(interrupter->stands_still(0));
  complaints.memory_is_away = true;
  grant(kEpoch + 1);
  interrupter->wake(0);
  EXPECT_TRUE(stays_frozen());
  complaints.memory_is_away = false;
  interrupter->memory_came(0);
  EXPECT_TRUE(is_thawed());
  EXPECT_FALSE(interrupter->stands_still(0));
}

// An eviction begins just when the work is about to be thawed.
TEST_F(InterrupterTest, WorkIsNotThawedWhenItsMemoryIsAboutToLeave) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  complaints.memory_leaves_at_look = 2;
  grant(kEpoch + 1);
  interrupter->wake(0);
  EXPECT_TRUE(sim::eventually([this] { return complaints.memory_is_away.load(); }));
  EXPECT_TRUE(sim::eventually([this] { return interrupter->stands_still(0); }));
  EXPECT_TRUE(stays_frozen());
  EXPECT_EQ(module.thaws, 0);
  complaints.memory_is_away = false;
  interrupter->memory_came(0);
  EXPECT_TRUE(is_thawed());
}

TEST_F(InterrupterTest, WorkThatLosesItsLeaseBeforeItsMemoryCameIsFrozenStill) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  complaints.memory_is_away = true;
  grant(kEpoch + 1);
  interrupter->wake(0);
  EXPECT_TRUE(stays_frozen());
  revoke(kEpoch + 1, 1h);
  expect_frozen(kEpoch + 1);
  EXPECT_EQ(module.thaws, 0);
  // Not even to drain. The daemon gets an answer all the same.
  revoke(kEpoch + 1, std::nullopt);
  expect_frozen(kEpoch + 1);
  complaints.memory_is_away = false;
  interrupter->memory_came(0);
  EXPECT_TRUE(stays_frozen()) << "it waits for its turn";
  grant(kEpoch + 2);
  interrupter->wake(0);
  EXPECT_TRUE(is_thawed());
}

TEST_F(InterrupterTest, NothingIsFrozenWhileFreezingIsHeldOff) {
  make_channel();
  revoke(kEpoch, 0ns);
  expect_frozen(kEpoch);
  std::atomic<bool> held{false};
  std::thread waiting([&] {
    interrupter->hold_off(0);
    held = true;
  });
  EXPECT_TRUE(stays_frozen()) << "it waits for its turn";
  EXPECT_FALSE(held);
  complaints.memory_is_away = true;
  grant(kEpoch + 1);
  interrupter->wake(0);
  EXPECT_TRUE(stays_frozen()) << "and for its memory";
  EXPECT_FALSE(held);
  complaints.memory_is_away = false;
  interrupter->memory_came(0);
  waiting.join();
  EXPECT_FALSE(module.is_frozen);
  revoke(kEpoch + 1, 0ns);
  EXPECT_EQ(next_answer(), "closed 8");
  finish();
  EXPECT_EQ(next_answer(), "drained 8");
  EXPECT_EQ(module.freezes, 1);
  interrupter->let(0);
}

}  // namespace
}  // namespace gpumux::shim
