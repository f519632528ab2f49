// SPDX-License-Identifier: Apache-2.0
// Goal: gangs are granted and revoked whole, get their turn, and always drain or get their GPUs back.
// Method: small scripts, and a few programs with collectives whose kernels spin until all ranks have submitted them.
#include <gtest/gtest.h>

#include <algorithm>

#include "sched/testing/two_gangs.h"

namespace gpumux::sched {
namespace {

using namespace std::chrono_literals;

TEST(Gang, IsGrantedWholeWhenOneMemberAsks) {
  TwoGangs s;
  EXPECT_EQ(s.request(kX0), "grant 1@0 e1 exclusive; grant 2@1 e1 exclusive");
}

TEST(Gang, IsNotGrantedInPart) {
  TwoGangs s;
  s.request(kS1);
  EXPECT_EQ(s.request(kX0), "contention 6@1 yes 200000ns") << "GPU 0 is free, GPU 1 is not";
  EXPECT_EQ(s.view(kX0).waits_for, "gang needs GPU 1: quantum of tenant 6");
  EXPECT_EQ(s.drained(kS1), "grant 1@0 e1 exclusive; grant 2@1 e2 exclusive");
}

TEST(Gang, LetsOthersUseAGpuThatItCannotUseYet) {
  TwoGangs s;
  s.request(kS1);
  s.request(kX0);
  EXPECT_EQ(s.request(kS0), "grant 5@0 e1 exclusive contended");
}

TEST(Gang, IsRevokedWholeAndReleasesWhole) {
  TwoGangs s;
  s.request(kX0);
  s.wait(10ms);
  EXPECT_EQ(s.request(kS0), "revoke 1@0 e1 quantum; revoke 2@1 e1 quantum");
  s.closed(kX0);
  EXPECT_EQ(s.closed(kX1), "") << "no overlap: members may have to be let through";
  EXPECT_EQ(s.drained(kX0), "");
  EXPECT_EQ(s.drained(kX1), "grant 5@0 e2 exclusive");
}

TEST(Gang, KeepsAMemberThatIdlesWhileOthersHold) {
  TwoGangs s;
  s.request(kX0);
  EXPECT_EQ(s.request(kS0), "contention 1@0 yes 200000ns; contention 2@1 yes 200000ns") << "on all its GPUs";
  EXPECT_EQ(s.drained(kX0), "") << "its gang goes on";
  EXPECT_EQ(s.request(kX0), "grant 1@0 e2 exclusive contended") << "answered at once";
  EXPECT_EQ(s.drained(kX0), "");
  EXPECT_EQ(s.drained(kX1), "grant 5@0 e3 exclusive") << "all have drained of their own accord";
}

TEST(Gang, DoesNotAskRestingMembersToClose) {
  TwoGangs s;
  s.request(kX0);
  s.drained(kX0);
  s.wait(10ms);
  EXPECT_EQ(s.request(kS0), "revoke 2@1 e1 quantum");
  EXPECT_EQ(s.drained(kX1), "grant 5@0 e2 exclusive");
}

TEST(Gang, TakesTwoGpusWhoseHoldersHadTheirTime) {
  TwoGangs s;
  s.request(kS0);
  s.wait(5ms);
  s.request(kS1);
  s.request(kX1);
  EXPECT_EQ(s.wait(5ms), "") << "6 has time left: revoking 5 alone would help nobody";
  EXPECT_EQ(s.wait(5ms), "revoke 5@0 e1 quantum; revoke 6@1 e1 quantum");
  s.request(kS0);
  EXPECT_EQ(s.drained(kS0), "") << "what was given up for the gang goes to it";
  EXPECT_EQ(s.closed(kS1), "grant 1@0 e2 exclusive contended; grant 2@1 e2 exclusive contended");
}

// Something happens on one GPU of a gang when its quantum is over already and the core has not been woken for that yet.
TEST(Gang, GoesWhenItsQuantumIsOverWhateverElseHappensThen) {
  GpuSettings settings = plain();
  settings.quantum = 10ms;
  Script script(2, settings);
  script.tenant(1, {0, 1});
  script.tell(GangJoined{TenantId{1}, "", 0});
  script.tenant(2, {0});
  script.tenant(3, {1});
  script.request(seat(1, 0));
  script.request(seat(2, 0));
  script.skip(11ms);
  script.tell(MemoryNeed{seat(3, 1), true});
  EXPECT_TRUE(says(script.wait(1ms), "revoke 1@0 e1 quantum"));
}

void expect_reserved_after_15ms(bool other_gpu_allows_more) {
  GpuSettings settings = fifo();
  settings.gang_ageing = 15ms;
  TwoGangs s(settings);
  s.tenant(7, {0});
  s.request(kS0);
  s.wait(6ms);
  s.request(kS1);
  s.wait(1ms);
  s.request(kX0);  // at 7 ms
  if (other_gpu_allows_more) {
    settings.gang_ageing = 10s;
    s.tell(SettingsChanged{GpuIndex{1}, settings});
  }
  s.wait(1ms);
  s.request(seat(7, 0));
  EXPECT_EQ(s.wait(2ms), "revoke 5@0 e1 quantum");  // at 10 ms, for 7: the gang cannot use it yet
  EXPECT_EQ(s.drained(kS0), "grant 7@0 e2 exclusive contended");
  s.request(kS0);
  EXPECT_EQ(s.wait(8ms), "") << "at 16 ms 6 has had its time, but 7 has some left";
  EXPECT_EQ(s.wait(2ms), "revoke 7@0 e2 quantum; revoke 6@1 e1 quantum");  // at 20 ms both have
  s.request(kS1);
  EXPECT_EQ(s.drained(seat(7, 0)), "") << "5 asked after the gang";
  EXPECT_EQ(s.drained(kS1), "grant 1@0 e3 exclusive contended; grant 2@1 e2 exclusive contended");
}

TEST(Gang, ThatHasWaitedLongHasItsGpusReserved) { expect_reserved_after_15ms(false); }

TEST(Gang, GoesByTheLeastAgeingOfItsGpusAlsoWhenOneIsChanged) { expect_reserved_after_15ms(true); }

// The gang's GPUs never have their holders' quanta over together: only the reservation brings them together.
TEST(Gang, IsNotStarvedByAStreamOfSingleSeats) {
  GpuSettings settings = fixed();
  settings.gang_ageing = 50ms;
  TwoGangs s(settings);
  s.tenant(7, {0});
  s.tenant(8, {1});
  const SeatId singles[] = {kS0, seat(7, 0), kS1, seat(8, 1)};
  s.request(kS0);
  s.request(seat(7, 0));
  s.wait(5ms);
  s.request(kS1);
  s.request(seat(8, 1));
  s.request(kX0);
  bool granted = false;
  for (int i = 0; i < 2000 && !granted; ++i) {
    s.wait(100us);
    for (const SeatId one : singles) {
      if (s.phase(one) != SeatPhase::kRevoked) continue;
      s.closed(one);
      s.drained(one);
      s.request(one);
    }
    granted = s.phase(kX0) == SeatPhase::kHolding;
  }
  EXPECT_TRUE(granted);
  EXPECT_LT(s.now().time_since_epoch(), 120ms);
}

TEST(Gang, ReservesAllItsGpusOrNone) {
  GpuSettings settings = fifo(50ms);
  settings.gang_ageing = 5ms;
  Script s(3, settings);
  s.tenant(1, {0, 1});
  s.tell(GangJoined{TenantId{1}, "", 0});
  s.tenant(2, {1, 2});
  s.tell(GangJoined{TenantId{2}, "", 0});
  s.tenant(3, {1});
  s.tenant(4, {2});
  s.request(seat(3, 1));
  s.wait(1ms);
  s.request(seat(1, 0));
  s.wait(1ms);
  s.request(seat(2, 2));
  s.wait(20ms);  // both gangs are aged; 1 is older and has GPU 0 and 1
  EXPECT_EQ(s.request(seat(4, 2)), "grant 4@2 e1 exclusive contended") << "2 keeps nothing while it cannot have all";
  EXPECT_EQ(s.drained(seat(3, 1)), "grant 1@0 e1 exclusive contended; grant 1@1 e2 exclusive contended");
}

TEST(Gang, LosesADeadMemberAndGoesOn) {
  TwoGangs s;
  s.request(kX0);
  s.request(kS0);
  EXPECT_EQ(s.tell(TenantGone{TenantId{2}}), "");
  EXPECT_EQ(s.phase(kX0), SeatPhase::kHolding);
  EXPECT_EQ(s.request(kS1), "grant 6@1 e2 exclusive") << "the dead one's GPU is free";
  EXPECT_EQ(s.drained(kX0), "grant 5@0 e2 exclusive");
}

TEST(Gang, WhoseUndrainedMemberDiesIsDone) {
  TwoGangs s;
  s.request(kX0);
  s.wait(10ms);
  s.request(kS0);
  s.drained(kX0);
  EXPECT_EQ(s.tell(TenantGone{TenantId{2}}), "grant 5@0 e2 exclusive");
}

TEST(Gang, OfAnotherUserIsAnotherGang) {
  Script s(2, fifo());
  s.tenant(1, {0}, 1, 1000);
  s.tenant(2, {1}, 1, 2000);
  s.tell(GangJoined{TenantId{1}, "x", 2});
  s.tell(GangJoined{TenantId{2}, "x", 2});
  EXPECT_EQ(s.request(seat(1, 0)), "grant 1@0 e1 exclusive");
}

TEST(Gang, OfOneTenantIsItsOwnSeats) {
  Script s(2, fifo());
  s.tenant(1, {0, 1});
  EXPECT_EQ(s.request(seat(1, 0)), "grant 1@0 e1 exclusive") << "not a gang yet";
  EXPECT_EQ(s.tell(GangJoined{TenantId{1}, "", 0}), "contention 1@0 no 200000ns; grant 1@1 e1 exclusive")
      << "the other GPU is free: whole at once";
}

TEST(Gang, JoinedWhileAMemberHoldsAndTheOtherCannotIsRevokedWhole) {
  Script s(2, fifo());
  s.tenant(1, {0, 1});
  s.tenant(2, {1});
  s.request(seat(1, 0));
  s.request(seat(2, 1));
  EXPECT_EQ(s.tell(GangJoined{TenantId{1}, "", 0}), "contention 1@0 no 200000ns; revoke 1@0 e1 gang");
  s.request(seat(1, 0));
  EXPECT_EQ(s.drained(seat(1, 0)), "contention 2@1 yes 200000ns");
  EXPECT_EQ(s.drained(seat(2, 1)), "grant 1@0 e2 exclusive; grant 1@1 e2 exclusive");
}

TEST(Gang, JoinedByACommonMemberBecomesOne) {
  TwoGangs s;
  s.tell(GangJoined{TenantId{1}, "y", 2});
  EXPECT_EQ(s.request(kY1),
            "grant 1@0 e1 exclusive; grant 2@1 e1 exclusive; grant 3@0 e2 exclusive; grant 4@1 e2 exclusive");
}

TEST(Gang, MembersShareAGpu) {
  Script s(1, fifo());
  for (const std::uint64_t id : {1u, 2u, 3u}) s.tenant(id, {0});
  for (const std::uint64_t id : {1u, 2u}) s.tell(GangJoined{TenantId{id}, "x", 2});
  EXPECT_EQ(s.request(seat(1, 0)), "grant 1@0 e1 exclusive; grant 2@0 e2 exclusive");
  s.request(seat(3, 0));
  s.drained(seat(1, 0));
  EXPECT_EQ(s.drained(seat(2, 0)), "grant 3@0 e3 exclusive");
}

}  // namespace
}  // namespace gpumux::sched
