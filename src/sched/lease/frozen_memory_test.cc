// SPDX-License-Identifier: Apache-2.0
// Goal: where memory can leave beside frozen work, work is frozen whatever its memory has to do. Method: small scripts.
#include <gtest/gtest.h>

#include "sched/testing/freezing_script.h"

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

TEST(FrozenAndLeaving, IsASeatWhoseMemoryTheNextOneNeeds) {
  TwoSeats s;
  s.tell(MemoryNeed{kB, true});
  EXPECT_EQ(s.wait(10ms), "revoke 1@0 e1 quantum drains_for=1000000ns");
}

TEST(FrozenAndLeaving, IsAGangWhereMemoryIsShort) {
  FreezingGang s;
  s.tell(MemoryNeed{kS0, true});
  EXPECT_EQ(s.wait(10ms), "revoke 1@0 e1 quantum drains_for=1000000ns; revoke 2@1 e1 quantum drains_for=1000000ns");
}

TEST(FrozenAndLeaving, IsASeatThatIsSuspended) {
  TwoSeats s;
  EXPECT_TRUE(says(s.tell(SeatsSuspended{{kA}, true}) + ";", "revoke 1@0 e1 suspended drains_for=1000000ns;"));
  EXPECT_TRUE(says(s.frozen(kA), "grant 2@0 e2 exclusive"));
  EXPECT_EQ(s.phase(kA), SeatPhase::kSuspended);
  s.tell(SeatsSuspended{{kA}, false});
  EXPECT_EQ(s.phase(kA), SeatPhase::kWaiting) << "its work waits to go on";
}

TEST(FrozenAndLeaving, GivesUpItsMemoryBeforeItsNextTurn) {
  FreezingGang s;
  s.wait(10ms);
  s.frozen(kX0);
  s.frozen(kX1);
  EXPECT_EQ(s.turn_of(kX0), TurnKind::kNext);
}

TEST(FrozenAndLeaving, NeedsNoTurnToBeSuspended) {
  FreezingGang s;
  s.wait(10ms);
  s.frozen(kX0);
  EXPECT_TRUE(says(s.frozen(kX1), "grant 5@0 e2 exclusive"));
  s.tell(SeatsSuspended{{kX0, kX1}, true});
  EXPECT_EQ(s.drained(kS0), "");
  EXPECT_EQ(s.wait(50ms), "");
  for (const SeatId one : {kX0, kX1}) EXPECT_EQ(s.phase(one), SeatPhase::kSuspended);
  EXPECT_TRUE(says(s.tell(SeatsSuspended{{kX0, kX1}, false}), "grant 1@0 e3 exclusive; grant 2@1 e2 exclusive"));
}

// One member's driver refuses: its work runs on, and waits for that of the other one.
TEST(FrozenAndLeaving, NeedsATurnToBeSuspendedIfAMemberRunsOn) {
  FreezingGang s;
  s.wait(10ms);
  s.frozen(kX0);
  EXPECT_EQ(s.cannot_freeze(kX1), "");
  EXPECT_EQ(s.closed(kX1), "");
  EXPECT_EQ(s.wait(2ms), "grant 5@0 e2 exclusive contended");
  s.tell(SeatsSuspended{{kX0, kX1}, true});
  EXPECT_TRUE(says(s.drained(kS0),
                   "grant 1@0 e3 exclusive; grant 2@1 e2 exclusive; revoke 1@0 e3 suspended; revoke 2@1 e2 suspended"));
  for (const SeatId one : {kX0, kX1}) {
    s.closed(one);
    s.drained(one);
  }
  for (const SeatId one : {kX0, kX1}) EXPECT_EQ(s.phase(one), SeatPhase::kSuspended);
}

TEST(FrozenAndLeaving, IsNotBoundInWhatItQueues) {
  GpuSettings settings = fifo();
  settings.in_flight = 5ms;
  FreezingScript s(1, settings);
  s.open(kA);
  s.open(kB);
  s.request(kA);
  EXPECT_EQ(s.tell(MemoryNeed{kB, true}), "");
}

}  // namespace
}  // namespace gpumux::sched
