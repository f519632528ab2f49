// SPDX-License-Identifier: Apache-2.0
// The foreign memory of a GPU. Goal: a look that shows too little gives no memory away, and a look that shows too much
// takes nothing from a seat. Method: looks and reports are written down one by one. The last tests have the planner as
// well, and look at the room that it gives.
#include "sched/memory/foreign_use.h"

#include <gtest/gtest.h>

#include "sched/testing/residency_desk.h"

namespace gpumux::sched {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// Looks a second apart, unless the script says otherwise.
class Looks {
 public:
  // Returns the use that was found.
  std::uint64_t look(std::uint64_t gib, std::uint64_t managed = 0, std::uint64_t returning = 0) {
    return look_at(gib * kGiB, managed * kGiB, returning * kGiB) / kGiB;
  }
  std::uint64_t look_at(std::uint64_t beyond, std::uint64_t managed = 0, std::uint64_t returning = 0) {
    now += pause;
    use.look({.asked_at = now, .beyond = beyond, .managed = managed, .returning = returning});
    return bytes();
  }
  // Memory moves while the look is taken.
  std::uint64_t look_in_between(std::uint64_t gib) {
    now += pause;
    use.heard(now + 1ms, true);
    use.look({.asked_at = now, .beyond = gib * kGiB});
    return bytes() / kGiB;
  }
  void heard() { use.heard(now, false); }
  std::uint64_t bytes() const { return use.expected(now, 80 * kGiB); }
  // Returns the tenant.
  base::TenantId open(std::uint64_t account) {
    use.opened(now, {++tenants_}, account);
    return {tenants_};
  }

  ForeignUse use;
  TimePoint now = TimePoint() + 1h;
  Duration pause = 1s;

 private:
  std::uint64_t tenants_ = 0;
};

TEST(ForeignUse, TheFirstQuietLookIsBelieved) {
  Looks s;
  EXPECT_EQ(s.look(5), 5u);
}

// A tenant that comes back may explain memory that the first look showed, but not memory that a later look confirmed.
TEST(ForeignUse, WhoComesBackWasSeenFirst) {
  Looks s;
  s.look(70);
  s.use.came_back(30 * kGiB);
  EXPECT_EQ(s.bytes(), 40 * kGiB);
  s.look(40);
  s.use.came_back(30 * kGiB);
  EXPECT_EQ(s.bytes(), 40 * kGiB) << "it was not there then, or is not seen to be";
}

// A newcomer's first report is late: the first look has shown its memory already.
TEST(ForeignUse, AFirstReportThatIsLateExplainsTheFirstLook) {
  Looks s;
  s.open(1);
  const std::uint64_t before = s.bytes();
  s.now += 100ms;
  s.use.look({.asked_at = s.now, .beyond = 9 * kGiB, .untold = 20 * kGiB});
  s.use.heard(s.now + 200ms, true, 8 * kGiB);
  EXPECT_LE(s.bytes(), 1 * kGiB + before);
  Looks other;
  other.open(1);
  other.now += 100ms;
  other.use.look({.asked_at = other.now, .beyond = 9 * kGiB, .untold = 2 * kGiB});
  other.use.heard(other.now + 200ms, true, 8 * kGiB);
  EXPECT_GE(other.bytes(), 7 * kGiB) << "it cannot have had more by then";
  Looks late;
  late.open(1);
  late.now += 100ms;
  late.use.look({.asked_at = late.now, .beyond = 9 * kGiB, .untold = 20 * kGiB});
  late.use.heard(late.now + 2s, true, 8 * kGiB);
  EXPECT_GE(late.bytes(), 9 * kGiB) << "it has come since";
}

// Tenants were allocating when the daemon looked first: what it saw is theirs, and they report it in a moment.
TEST(ForeignUse, AFirstLookWhileMemoryMovesCountsOnlyAsFarAsTheNextOneAgrees) {
  Looks s;
  EXPECT_EQ(s.look_in_between(60), 0u);
  EXPECT_EQ(s.look(2), 2u);
  Looks other;
  EXPECT_EQ(other.look_in_between(2), 0u);
  EXPECT_EQ(other.look(60), 2u) << "they allocate still";
}

TEST(ForeignUse, WhatTwoLooksAgreeOnIsCounted) {
  Looks s;
  s.look(1);
  EXPECT_EQ(s.look(9), 1u);
  EXPECT_EQ(s.look(6), 6u);
  EXPECT_EQ(s.look(3), 6u);
  EXPECT_EQ(s.look(4), 4u);
}

// A seat has freed 7 GiB and not said so: what looks show less is its own, and not another program that has ended.
TEST(ForeignUse, AFreeThatIsToldLateIsNotAnotherProgramsEnd) {
  Looks s;
  s.look(9);
  s.look(9);
  EXPECT_EQ(s.look(2), 9u);
  s.heard();
  EXPECT_EQ(s.look(9), 9u) << "it has said so by now";
}

// Seats free 7 GiB one after the other, and each says so late. So no look shows all of the other program's memory.
TEST(ForeignUse, FreesThatAreToldOneAfterTheOtherAreNoOtherProgramsEnd) {
  Looks s;
  s.look(9);
  s.look(9);
  s.heard();
  s.pause = 100ms;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(s.look(2), 9u);
    EXPECT_EQ(s.look(2), 9u);
    s.use.heard(s.now + 1ms, true, 0, 7 * kGiB);
  }
  for (int i = 0; i < 5; ++i) s.look(2);
  EXPECT_EQ(s.bytes(), 2 * kGiB) << "no report explains it any more";
}

// Another program was seen once, and has ended. The next look shows an allocation that no tenant has reported yet. It
// is not the other program's, even if no look follows for a while.
TEST(ForeignUse, AnAllocationThatIsToldLateIsNotAnotherProgram) {
  Looks s;
  s.look(1);
  EXPECT_EQ(s.look(20), 1u);
  EXPECT_TRUE(s.use.look_again());
  s.now += 1s;
  s.heard();
  s.pause = 100ms;
  EXPECT_EQ(s.look(20), 1u);
  EXPECT_TRUE(s.use.look_again());
  s.now += 100ms;
  s.use.heard(s.now, true, 19 * kGiB);
  s.pause = 1s;
  EXPECT_EQ(s.look(1), 1u);
  EXPECT_EQ(s.look(20), 1u);
  EXPECT_EQ(s.look(20), 20u) << "nobody tells of it";
}

TEST(ForeignUse, AmongReportsAnotherProgramIsSeenAsSoonAsTheyCannotBeLate) {
  Looks s;
  s.look(1);
  s.pause = 100ms;
  const TimePoint came_at = s.now;
  while (s.bytes() != 20 * kGiB && s.now < came_at + 1s) {
    s.heard();
    s.look(20);
  }
  EXPECT_EQ(s.now - came_at, kLatestReport + 2 * s.pause) << "two looks are past that";
}

// Seats take and give up memory all the time. No report is of memory that a seat could not have had at the look.
TEST(ForeignUse, WhatSeatsCouldNotHaveIsAnotherProgramsEvenIfTheyAlwaysTellOfMore) {
  Looks s;
  s.look(1);
  for (int i = 0; i < 8; ++i) {
    s.now += 100ms;
    s.use.look({.asked_at = s.now, .beyond = 20 * kGiB, .untold = 4 * kGiB});
    s.use.heard(s.now + 1ms, true, 30 * kGiB);
  }
  EXPECT_EQ(s.bytes(), 16 * kGiB);
}

// Other programs gave up memory, and tenants took it: that looks like before until the tenants say so.
TEST(ForeignUse, WhatAReportExplainsWasNotSeen) {
  Looks s;
  s.look(9);
  s.look(9);
  const std::optional<TimePoint> seen_at = s.use.seen_at();
  s.heard();
  s.pause = 100ms;
  s.look(9);
  EXPECT_EQ(s.use.seen_at(), seen_at) << "somebody may tell more";
  s.use.heard(s.now, true, 7 * kGiB);
  s.pause = kLatestReport;
  s.look(2);
  EXPECT_EQ(s.use.seen_at(), seen_at);
}

// The same where looks follow each other closely: a report may be later than several of them.
TEST(ForeignUse, LooksThatFollowEachOtherCloselySayNoMoreThanOne) {
  Looks s;
  s.look(9);
  s.look(9);
  s.heard();
  s.pause = 20ms;
  for (Duration past{}; past < 250ms; past += s.pause) EXPECT_EQ(s.look(2), 9u);
  EXPECT_TRUE(s.use.look_again());
  s.pause = 100ms;
  EXPECT_EQ(s.look(2), 9u) << "the first of these was at a time when more was shown";
  for (int i = 0; i < 4; ++i) s.look(2);
  EXPECT_EQ(s.bytes(), 2 * kGiB) << "reports are not as late as that";
  EXPECT_FALSE(s.use.look_again());
}

// No seat has reported for long: a seat that had freed something would have said so at once.
TEST(ForeignUse, WhereNobodySpeaksTwoLooksAreEnough) {
  Looks s;
  s.look(9);
  s.look(9);
  s.pause = 20ms;
  EXPECT_EQ(s.look(2), 9u);
  EXPECT_EQ(s.look(2), 2u);
}

TEST(ForeignUse, ALookWhileMemoryMovesSaysNothing) {
  Looks s;
  s.look(1);
  EXPECT_EQ(s.look_in_between(50), 1u);
  EXPECT_TRUE(s.use.look_again());
  EXPECT_EQ(s.look(50), 1u) << "the first of two that agree";
  EXPECT_EQ(s.look_in_between(0), 1u);
}

TEST(ForeignUse, WhatIsLessThanIsCountedWasNotSeen) {
  Looks s;
  s.look(9);
  s.look(9);
  EXPECT_EQ(s.use.seen_at(), s.now);
  const TimePoint seen_at = s.now;
  EXPECT_EQ(s.look(2), 9u);
  EXPECT_EQ(s.use.seen_at(), seen_at);
  EXPECT_TRUE(s.use.look_again());
  EXPECT_EQ(s.look(2), 2u);
  EXPECT_EQ(s.use.seen_at(), s.now);
}

TEST(ForeignUse, NoiseChangesNothing) {
  Looks s;
  s.look(1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(s.look_at(kGiB - 15 * kMiB), kGiB);
  EXPECT_FALSE(s.use.look_again());
}

TEST(ForeignUse, WhatManagedMemoryMayExplainIsNobodyElses) {
  Looks s;
  s.look(1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(s.look(30, 40), 1u);
  for (int i = 0; i < 3; ++i) s.look(45, 40);
  EXPECT_EQ(s.bytes(), 5 * kGiB);
}

TEST(ForeignUse, WhatIsBeyondItTheDeadHaveLeft) {
  Looks s;
  s.look(1);
  s.use.closed(s.now, {});
  EXPECT_GT(s.use.left_behind(), 80 * kGiB) << "not known yet";
  s.pause = 20ms;
  s.look(31, 0, 30);
  s.look(31, 0, 30);
  EXPECT_EQ(s.use.left_behind(), 30 * kGiB);
  EXPECT_EQ(s.bytes(), kGiB);
  s.look(1, 0, 30);
  EXPECT_EQ(s.use.left_behind(), 30 * kGiB) << "somebody may have freed so much and not said so";
  s.look(1, 0, 30);
  s.look(1, 0, 30);
  EXPECT_EQ(s.use.left_behind(), 0u);
}

TEST(ForeignUse, OtherProgramsComeWhileTheDeadAreWaitedFor) {
  Looks s;
  s.look(1);
  s.use.closed(s.now, {});
  for (int i = 0; i < 3; ++i) s.look(41, 0, 30);
  EXPECT_EQ(s.bytes(), 11 * kGiB) << "the dead cannot have left more than they had";
}

TEST(ForeignUse, ContextsAreExpectedInProportionToTheGpu) {
  Looks s;
  for (int i = 0; i < 2; ++i) s.open(7);
  EXPECT_EQ(s.use.expected(s.now, 80 * kGiB), 3 * (768 * kMiB)) << "theirs, and the mover's";
  EXPECT_EQ(s.use.expected(s.now, 8 * kGiB), 3 * (128 * kMiB));
}

// It may end when it has no seat on any GPU. So it is expected again.
TEST(ForeignUse, TheMoverComesWithTheFirstTenant) {
  Looks s;
  const base::TenantId one = s.open(1);
  EXPECT_EQ(s.bytes(), 2 * (768 * kMiB));
  s.use.closed(s.now, one);
  EXPECT_EQ(s.bytes(), 768 * kMiB);
  s.now += kContextPatience;
  const base::TenantId other = s.open(1);
  s.open(2);
  EXPECT_EQ(s.bytes(), 3 * (768 * kMiB));
  s.use.closed(s.now, other);
  s.open(3);
  EXPECT_EQ(s.bytes(), 3 * (768 * kMiB)) << "the GPU was never without a tenant";
}

// While another program has 20 GiB, the contexts of newcomers are not seen yet either.
TEST(ForeignUse, ContextsOfNewcomersAreExpectedBesideWhatIsThere) {
  Looks s;
  s.look(20);
  const TimePoint opened_at = s.now;
  base::TenantId last;
  for (int i = 0; i < 5; ++i) last = s.open(static_cast<std::uint64_t>(i));
  EXPECT_EQ(s.bytes(), 24 * kGiB + 512 * kMiB) << "five, and the mover's";
  s.use.closed(s.now, last);
  EXPECT_EQ(s.bytes(), 23 * kGiB + 768 * kMiB);
  for (int i = 0; i < 2; ++i) s.look_at(22 * kGiB);
  EXPECT_EQ(s.bytes(), 23 * kGiB + 768 * kMiB) << "they are not counted twice";
  EXPECT_EQ(s.use.unseen(s.now, 80 * kGiB)->bytes, kGiB + 768 * kMiB);
  EXPECT_EQ(s.use.unseen(s.now, 80 * kGiB)->until, opened_at + kContextPatience);
  s.now += kContextPatience;
  EXPECT_EQ(s.bytes(), 22 * kGiB) << "they take no more than that";
  EXPECT_FALSE(s.use.unseen(s.now, 80 * kGiB));
  for (int i = 0; i < 3; ++i) s.look(2);
  EXPECT_EQ(s.bytes(), 2 * kGiB) << "they are what looks show of them";
}

// A tenant that has memory has made its context, and looks that agree from then on show it.
TEST(ForeignUse, AContextThatLooksShowIsNotExpectedAnyMore) {
  Looks s;
  s.look(0);
  s.open(0);
  s.now += kContextPatience;
  const base::TenantId one = s.open(1);
  const base::TenantId other = s.open(2);
  s.pause = 100ms;
  s.use.has_context(s.now, one);
  EXPECT_FALSE(s.use.unseen(s.now, 80 * kGiB)->looks_tell);
  for (int i = 0; i < 6; ++i) s.look_at(300 * kMiB);
  EXPECT_EQ(s.bytes(), 1068 * kMiB) << "the other's is still to come";
  s.use.has_context(s.now, other);
  EXPECT_TRUE(s.use.unseen(s.now, 80 * kGiB)->looks_tell);
  for (int i = 0; i < 6; ++i) s.look_at(600 * kMiB);
  EXPECT_EQ(s.bytes(), 600 * kMiB);
  EXPECT_FALSE(s.use.unseen(s.now, 80 * kGiB));
}

// One after the other: the last newcomer is charged beside those that looks have shown by now.
TEST(ForeignUse, ANewcomerIsExpectedBesideThoseBeforeIt) {
  Looks s;
  s.look(0);
  for (std::uint64_t i = 1; i <= 20; ++i) {
    s.open(i);
    for (int look = 0; look < 2; ++look) s.look_at(i * (300 * kMiB));
    EXPECT_GE(s.bytes(), i * (300 * kMiB));
    EXPECT_LE(s.bytes(), i * (300 * kMiB) + 2 * (768 * kMiB));
  }
}

// A user may have 4,096 connections that never use the GPU.
TEST(ForeignUse, FewNewcomersOfAnAccountCountAndOnlyForAWhile) {
  Looks s;
  s.open(7);
  s.now += kContextPatience;
  s.look(1);
  for (int round = 0; round < 16; ++round) {
    for (int i = 0; i < 256; ++i) s.open(7);
    EXPECT_EQ(s.bytes(), kGiB + kMostNewcomers * 768 * kMiB);
    s.look(1);
  }
  s.open(8);
  EXPECT_EQ(s.bytes(), kGiB + (kMostNewcomers + 1) * 768 * kMiB) << "another user's count";
  s.now += kContextPatience;
  EXPECT_EQ(s.bytes(), kGiB);
}

// A newcomer may never need the memory that is kept free for it. As long as that is open, the planner refuses no seat
// for its sake.
TEST(ForeignUse, NobodyIsRefusedForWhatIsOnlyExpected) {
  Desk desk;
  desk.open(1);
  desk.turn({{1, kHolding}});
  const TimePoint until = desk.now + 3s;
  const auto expect = [&](std::uint64_t gib) {
    desk.planner.set_foreign(desk.now, kGpu,
                             {.bytes = 20 * kGiB + gib * kGiB,
                              .seen_at = TimePoint::max(),
                              .unseen = ForeignUse::Unseen{gib * kGiB, until}});
  };
  expect(2);
  desk.say(1);
  ASSERT_TRUE(desk.want(1, 61, 61));
  EXPECT_TRUE(desk.answer(1)->refused()) << "so much there will not be";
  EXPECT_FALSE(desk.want(1, 60, 60));
  EXPECT_FALSE(desk.planner.awaits_look(kGpu)) << "a look would not tell";
  while (desk.now < until) {
    EXPECT_FALSE(desk.answer(1));
    ASSERT_TRUE(desk.planner.next_deadline(kGpu));
    desk.now = *desk.planner.next_deadline(kGpu);
    if (desk.now < until) desk.plan();
  }
  EXPECT_EQ(desk.now, until);
  expect(0);
  desk.plan();
  ASSERT_TRUE(desk.answer(1));
  EXPECT_FALSE(desk.answer(1)->refused());
  // It has come.
  expect(2);
  EXPECT_TRUE(desk.want(1, 60, 60));
  desk.settle();
  desk.has(1, 50);
  desk.set_foreign(22 * kGiB);
  desk.say(1);
  ASSERT_TRUE(desk.want(1, 60, 60));
  EXPECT_TRUE(desk.answer(1)->refused());
}

// A dead tenant's memory that the driver has not returned in time is not free. It counts as other programs' memory
// until looks show that it is free.
TEST(ForeignUse, WhatTheDeadDoNotGiveBackIsKept) {
  Desk desk;
  ForeignUse use;
  const auto tell = [&] { desk.set_foreign(use.expected(desk.now, 80 * kGiB)); };
  const auto look = [&](std::uint64_t gib) {
    use.look({.asked_at = desk.now, .beyond = gib * kGiB, .returning = desk.planner.returning(kGpu)});
    desk.planner.returned(desk.now, kGpu, use.left_behind());
    tell();
  };
  look(0);
  desk.open(1);
  desk.has(1, 80);
  desk.planner.closed(desk.now, seat(1));
  use.closed(desk.now, {1});
  desk.open(2);
  for (int i = 0; i < 3; ++i) {
    desk.now += 20ms;
    look(70);  // 10 have come back
  }
  desk.say(2);
  desk.say(2);
  EXPECT_EQ(desk.room(2), 10u);
  desk.now += kReturnPatience;
  ASSERT_EQ(desk.planner.overdue(desk.now, kGpu), 70 * kGiB);
  use.keep(desk.planner.overdue(desk.now, kGpu));
  tell();
  desk.plan();
  EXPECT_EQ(desk.planner.returning(kGpu), 0u);
  EXPECT_EQ(desk.room(2), 10u) << "it is still taken, whosever it is";
  for (int i = 0; i < 3; ++i) {
    desk.now += 1s;
    look(0);
  }
  desk.say(2);
  desk.say(2);
  EXPECT_EQ(desk.room(2), 80u);
}

}  // namespace
}  // namespace gpumux::sched
