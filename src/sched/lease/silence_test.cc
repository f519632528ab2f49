// SPDX-License-Identifier: Apache-2.0
// Goal: a seat that gives no sign of life holds no other up. A seat that comes back after a restart is believed as far
// as it can be true. Method: small scripts.
#include <gtest/gtest.h>

#include "sched/testing/two_gangs.h"

namespace gpumux::sched {
namespace {

// ---- silence ------------------------------------------------------------------------------------

// Stopped just after it has answered: the others go on as soon as if it had never answered.
TEST(Silence, CountsFromTheLastSignOfLife) {
  Script s(1, fifo());
  s.tenant(1, {0});
  s.tenant(2, {0});
  s.request(seat(1, 0));
  s.request(seat(2, 0));
  s.wait(10ms);
  s.wait(20ms);
  s.seen(seat(1, 0));
  const TimePoint stopped = s.now();
  EXPECT_EQ(s.wait(499ms), "revoke 1@0 e1 quantum") << "asked whether it is there";
  EXPECT_EQ(s.wait(1ms), "silent 1@0 waited 500000000ns; grant 2@0 e2 exclusive");
  EXPECT_EQ(s.now() - stopped, 500ms);
}

TEST(Silence, IsNotThatOfAnAgentThatAnswers) {
  Script s(1, fifo());
  s.tenant(1, {0});
  s.tenant(2, {0});
  s.request(seat(1, 0));
  s.request(seat(2, 0));
  s.wait(10ms);
  std::string text;
  for (int i = 0; i < 20; ++i) {
    s.seen(seat(1, 0));
    text += s.wait(300ms);
  }
  EXPECT_FALSE(says(text, "silent"));
  EXPECT_TRUE(says(text, "revoke 1@0 e1 quantum"));
}

TEST(Silence, IsPassedOver) {
  Script s(1, fifo());
  for (const std::uint64_t id : {1u, 2u, 3u}) s.tenant(id, {0});
  s.request(seat(1, 0));
  s.request(seat(2, 0));
  EXPECT_EQ(s.wait(10ms), "revoke 1@0 e1 quantum");
  EXPECT_EQ(s.wait(500ms), "silent 1@0 waited 500000000ns; grant 2@0 e2 exclusive");
  EXPECT_EQ(s.phase(seat(1, 0)), SeatPhase::kSilent);
  s.request(seat(3, 0));
  s.wait(10ms);
  EXPECT_EQ(s.drained(seat(2, 0)), "grant 3@0 e3 exclusive") << "and goes on being passed over";
  EXPECT_EQ(s.seen(seat(1, 0)), "answering 1@0");
  EXPECT_EQ(s.phase(seat(1, 0)), SeatPhase::kRevoked);
  s.closed(seat(1, 0));
  s.request(seat(1, 0));
  s.wait(10ms);
  EXPECT_EQ(s.drained(seat(1, 0)), "revoke 3@0 e3 quantum") << "an ordinary waiter again";
  EXPECT_EQ(s.drained(seat(3, 0)), "grant 1@0 e4 exclusive");
}

TEST(Silence, WhileDrainingIsNoticed) {
  Script s(1, fifo());
  for (const std::uint64_t id : {1u, 2u, 3u}) s.tenant(id, {0});
  s.request(seat(1, 0));
  s.request(seat(2, 0));
  s.request(seat(3, 0));
  s.wait(10ms);
  s.closed(seat(1, 0));  // 2 starts; and then 1 is stopped
  s.wait(10ms);
  s.closed(seat(2, 0));
  s.drained(seat(2, 0));
  EXPECT_EQ(s.phase(seat(3, 0)), SeatPhase::kHolding);
  s.request(seat(2, 0));
  s.wait(10ms);
  s.closed(seat(3, 0));  // 1 and 3 are undrained: no unit starts
  EXPECT_EQ(s.phase(seat(2, 0)), SeatPhase::kWaiting);
  std::string text;
  for (int i = 0; i < 10; ++i) {
    text += s.wait(100ms) + " ";
    s.seen(seat(3, 0));
  }
  EXPECT_TRUE(says(text, "revoke 1@0 e1 quantum")) << "asked whether it is there";
  EXPECT_TRUE(says(text, "silent 1@0 waited 500000000ns; grant 2@0"));
}

TEST(Silence, IsEndedByKillingIfSoConfigured) {
  GpuSettings settings = fifo();
  settings.kill_silent_after = 2s;
  Script s(1, settings);
  s.tenant(1, {0});
  s.tenant(2, {0});
  s.request(seat(1, 0));
  s.request(seat(2, 0));
  EXPECT_EQ(s.wait(1s), "revoke 1@0 e1 quantum; silent 1@0 waited 500000000ns; grant 2@0 e2 exclusive");
  EXPECT_EQ(s.wait(100s), "kill 1 silent");
  EXPECT_EQ(s.tell(TenantGone{TenantId{1}}), "");
}

TEST(Silence, OfOneMemberPassesOverItsGang) {
  TwoGangs s;
  s.request(kX0);
  s.wait(10ms);
  s.request(kS0);
  s.seen(kX0);
  s.closed(kX0);  // spins for 2, which is stopped
  std::string text = s.wait(490ms);
  s.seen(kX0);
  text += s.wait(20ms);
  EXPECT_TRUE(says(text, "silent 2@1 waited 500000000ns; grant 5@0"));
  EXPECT_EQ(s.phase(kX0), SeatPhase::kDraining);
  EXPECT_EQ(s.closed(kX1), "answering 2@1");
  s.drained(kX0);
  s.request(kX1);
  s.drained(kX1);
  EXPECT_EQ(s.drained(kS0), "grant 1@0 e3 exclusive; grant 2@1 e2 exclusive");
}

// ---- after a restart ----------------------------------------------------------------------------

struct Restarted : Script {
  Restarted() : Script(2, fifo()) { tell(GrantsHeld{now() + 1s}); }
  std::string claim(SeatId s, Claim claim, std::uint64_t epoch, LeaseKind kind = LeaseKind::kExclusive) {
    return tell(SeatClaimed{s, claim, kind, LeaseEpoch{epoch}});
  }
};

TEST(Claim, OfAHolderIsBelieved) {
  Restarted s;
  s.tenant(1, {0});
  s.tenant(2, {0});
  EXPECT_EQ(s.claim(seat(2, 0), Claim::kWaiting, 0), "") << "the holder may not have come back yet";
  EXPECT_EQ(s.claim(seat(1, 0), Claim::kHolding, 41), "contention 1@0 yes 200000ns");
  EXPECT_EQ(s.tell(GrantsAllowed{}), "");
  EXPECT_EQ(s.wait(10ms), "revoke 1@0 e41 quantum");
  EXPECT_EQ(s.drained(seat(1, 0)), "grant 2@0 e42 exclusive") << "epochs go on above what was claimed";
}

TEST(Claim, OfASecondExclusiveHolderIsRefused) {
  Restarted s;
  s.tenant(1, {0});
  s.tenant(2, {0});
  EXPECT_EQ(s.claim(seat(1, 0), Claim::kHolding, 41), "contention 1@0 no 200000ns");
  EXPECT_EQ(s.claim(seat(2, 0), Claim::kHolding, 40), "revoke 2@0 e40 bad_claim");
  EXPECT_EQ(s.drained(seat(2, 0)), "");
  EXPECT_EQ(s.phase(seat(1, 0)), SeatPhase::kHolding);
}

TEST(Claim, OfADrainingSeatIsItsPredecessors) {
  Restarted s;
  s.tenant(1, {0});
  s.tenant(2, {0});
  s.tenant(3, {0});
  s.claim(seat(1, 0), Claim::kDraining, 7);
  s.claim(seat(2, 0), Claim::kHolding, 8);
  s.claim(seat(3, 0), Claim::kWaiting, 0);
  s.tell(GrantsAllowed{});
  s.wait(10ms);
  EXPECT_EQ(s.closed(seat(2, 0)), "");
  EXPECT_EQ(s.drained(seat(1, 0)), "grant 3@0 e9 exclusive");
}

// Its page says that it holds nothing any more, but threads may be inside still.
TEST(Claim, OfADrainingSeatIsWaitedForUntilItsGateIsClosed) {
  Restarted s;
  s.tenant(1, {0});
  s.tenant(2, {0});
  s.claim(seat(1, 0), Claim::kDraining, 7);
  s.claim(seat(2, 0), Claim::kWaiting, 0);
  EXPECT_EQ(s.tell(GrantsAllowed{}), "");
  EXPECT_EQ(s.closed(seat(1, 0)), "grant 2@0 e8 exclusive");
}

TEST(Claim, GrantsGoOnWhenTheTimeIsOver) {
  Restarted s;
  s.tenant(1, {0});
  EXPECT_EQ(s.request(seat(1, 0)), "");
  EXPECT_EQ(s.view(seat(1, 0)).waits_for, "tenants to come back after a restart");
  EXPECT_EQ(s.wait(999ms), "");
  EXPECT_EQ(s.wait(1ms), "grant 1@0 e1 exclusive");
}

TEST(Claim, OfAGangComesBackMemberByMember) {
  Restarted s;
  s.tenant(1, {0});
  s.tell(GangJoined{TenantId{1}, "x", 2});
  s.claim(seat(1, 0), Claim::kHolding, 5);
  s.tell(TenantConnected{TenantId{2}, 0});
  s.tell(GangJoined{TenantId{2}, "x", 2});
  EXPECT_EQ(s.tell(SeatOpened{seat(2, 1)}), "contention 2@1 no 200000ns") << "half a gang, for the moment";
  s.claim(seat(2, 1), Claim::kHolding, 6);
  EXPECT_EQ(s.tell(GrantsAllowed{}), "");
  EXPECT_EQ(s.phase(seat(1, 0)), SeatPhase::kHolding);
  EXPECT_EQ(s.phase(seat(2, 1)), SeatPhase::kHolding);
}

TEST(Claim, OnAConcurrentGpuBecomesShared) {
  Restarted s;
  GpuSettings settings = plain();
  settings.mode = Mode::kConcurrent;
  s.settings(GpuIndex{0}, settings);
  s.tenant(1, {0});
  s.claim(seat(1, 0), Claim::kHolding, 5);
  EXPECT_EQ(s.tell(GrantsAllowed{}), "grant 1@0 e6 shared");
}

}  // namespace
}  // namespace gpumux::sched
