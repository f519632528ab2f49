// SPDX-License-Identifier: Apache-2.0
// The order of jobs: priorities, users in turn, backfill, time limits, preemption. Each rule of docs/jobs.md by its
// smallest example; the invariants are checked after every event.
#include "jobs/core/script.h"

namespace gpumux::jobs {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

JobSpec of(JobSpec spec, std::uint32_t uid, std::int32_t priority = 0) {
  spec.uid = uid;
  spec.priority = priority;
  return spec;
}
JobSpec limited(JobSpec spec, Duration limit, OnLimit on_limit = OnLimit::kSuspend) {
  spec.time_limit = limit;
  spec.on_limit = on_limit;
  return spec;
}

// ---- order --------------------------------------------------------------------------------------

TEST(Order, PriorityThenFirstCome) {
  Script s;
  s.run();
  s.submit(of(s.spec(), 1, 0));
  s.submit(of(s.spec(), 2, 0));
  s.submit(of(s.spec(), 3, 7));
  EXPECT_EQ(s.place(4), 1u);
  EXPECT_EQ(s.place(2), 2u);
  EXPECT_EQ(s.place(3), 3u);
  EXPECT_EQ(s.end(1), "Start job 4.1 on 0");
  s.tell(PriorityAsked{JobId{3}, 1});
  EXPECT_EQ(s.end(4), "Start job 3.1 on 0");
  EXPECT_EQ(s.end(3), "Start job 2.1 on 0");
}

QueueSettings capped_at(std::int32_t cap, Order order = Order::kFifo) {
  QueueSettings settings;
  settings.order = order;
  settings.limits.priority_cap = cap;
  return settings;
}

TEST(Order, APriorityAboveTheCapPassesOwnJobsOnly) {
  for (const Order order : {Order::kFifo, Order::kFair}) {
    Script s(1, capped_at(0, order));
    s.run(of(s.spec(), 9));
    s.submit(of(s.spec(), 1));      // 2
    s.submit(of(s.spec(), 2));      // 3
    s.submit(of(s.spec(), 1, 10));  // 4: before 2, and not before 3
    s.submit(of(s.spec(), 2, -1));  // 5: behind all
    EXPECT_EQ(s.end(1), "Start job 3.1 on 0");
    EXPECT_EQ(s.end(3), "Start job 4.1 on 0");
    EXPECT_EQ(s.end(4), "Start job 2.1 on 0");
    EXPECT_EQ(s.end(2), "Start job 5.1 on 0");
  }
}

// Many that go before one early job do not take its place before others', one after the other.
TEST(Order, AnEarlyJobLendsNoLaterOneItsPlace) {
  Script s(1, capped_at(0));
  s.run(of(s.spec(), 9));
  s.submit(of(s.spec(), 1));                                    // 2
  s.submit(of(s.spec(), 2));                                    // 3
  for (int i = 0; i < 3; ++i) s.submit(of(s.spec(), 1, 1000));  // 4 5 6
  EXPECT_EQ(s.end(1), "Start job 3.1 on 0");
  s.submit(of(s.spec(), 2));  // 7
  EXPECT_EQ(s.end(3), "Start job 4.1 on 0");
  EXPECT_EQ(s.end(4), "Start job 5.1 on 0");
  EXPECT_EQ(s.end(5), "Start job 6.1 on 0");
  EXPECT_EQ(s.end(6), "Start job 2.1 on 0");
  EXPECT_EQ(s.end(2), "Start job 7.1 on 0");
}

TEST(Order, AnAdministratorsPriorityHasNoCap) {
  Script s(1, capped_at(0));
  s.run(of(s.spec(), 9));
  s.submit(of(s.spec(), 1));
  s.tell(Submitted{of(s.spec(), 2, 5), true});
  EXPECT_EQ(s.place(3), 1u);
  EXPECT_EQ(s.end(1), "Start job 3.1 on 0");
}

TEST(Order, PlacesCountOwnPriorities) {
  Script s(1, capped_at(0, Order::kFair));
  s.run(of(s.spec(), 9));
  s.submit(of(s.spec(), 1, 1));  // 2
  s.submit(of(s.spec(), 1, 3));  // 3
  s.submit(of(s.spec(), 1, 2));  // 4
  EXPECT_EQ(s.place(3), 1u);
  EXPECT_EQ(s.place(4), 2u);
  EXPECT_EQ(s.place(2), 3u);
}

TEST(Preemption, CountsPrioritiesAboveTheCapAmongOwnJobsOnly) {
  QueueSettings settings = capped_at(0);
  settings.preempt = true;
  Script s(1, settings);
  s.run(of(s.spec(1, 40), 1, 1));  // 1
  s.run(of(s.spec(1, 40), 2));     // 2
  EXPECT_EQ(s.submit(of(s.spec(1, 40), 1, 5)), "Suspend job 1.1 priority");
  EXPECT_EQ(s.suspended(1), "Start job 3.1 on 0");
  EXPECT_EQ(s.submit(of(s.spec(1, 80), 3, 1000)), "") << "the GPU is others'";
}

// An administrator has raised the first one. It goes before the second in the queue, so it does not give way to it.
TEST(Preemption, GivesWayToNoJobThatGoesBehind) {
  QueueSettings settings = capped_at(0);
  settings.preempt = true;
  Script s(1, settings);
  s.run(limited(of(s.spec(), 1), seconds(100)));
  s.tell(PriorityAsked{JobId{1}, 5, true});
  EXPECT_EQ(s.submit(of(s.spec(), 1, 1000)), "") << "which counts as 0";
  EXPECT_EQ(s.tell(PriorityAsked{JobId{2}, 6, true}), "Suspend job 1.1 priority");
  EXPECT_EQ(s.suspended(1), "Start job 2.1 on 0");
  s.confirm(2);
  EXPECT_EQ(s.end(2), "Resume job 1.1 on 0");
  s.resumed(1);
  s.submit(of(s.spec(), 1, 1000));
  EXPECT_EQ(s.wait(seconds(200)), "") << "at its time limit, too";
}

// In the fair order a job whose time is over waits behind all of its capped priority.
TEST(Preemption, TakesNothingBackFromOwnJobsThatGoBeforeAfterATimeLimit) {
  QueueSettings settings = capped_at(0, Order::kFair);
  settings.preempt = true;
  Script s(1, settings);
  s.run(limited(of(s.spec(), 1, 5), seconds(100)));  // 1
  s.submit(of(s.spec(), 1, 1));                      // 2
  s.submit(of(s.spec(), 2));                         // 3
  EXPECT_EQ(s.wait(seconds(100)), "Suspend job 1.1 time");
  EXPECT_EQ(s.suspended(1), "Start job 3.1 on 0");
  s.confirm(3);
  EXPECT_EQ(s.end(3), "Start job 2.1 on 0");
  EXPECT_EQ(s.confirm(2), "");
  EXPECT_EQ(s.end(2), "Resume job 1.1 on 0");
}

TEST(Order, FairTakesUsersInTurn) {
  Script s(1, QueueSettings());
  s.run(of(s.spec(), 1));
  for (std::uint32_t i = 0; i < 3; ++i) s.submit(of(s.spec(), 1));  // 2 3 4
  for (std::uint32_t i = 0; i < 3; ++i) s.submit(of(s.spec(), 2));  // 5 6 7
  EXPECT_EQ(s.place(5), 1u);
  EXPECT_EQ(s.place(2), 2u);
  EXPECT_EQ(s.place(6), 3u);
  EXPECT_EQ(s.place(3), 4u);
  std::uint64_t running = 1;
  std::string order;
  for (int i = 0; i < 6; ++i) {
    s.wait(minutes(10));
    const std::string told = s.end(running);
    running = std::stoull(told.substr(10));
    s.confirm(running);
    order += std::to_string(running) + " ";
  }
  EXPECT_EQ(order, "5 2 6 3 7 4 ");
}

TEST(Order, FairTakesTurnsAlsoWhereAllStartAtOnce) {
  Script s(4, QueueSettings());
  s.tell(SchedulingHeld{});
  for (std::uint32_t i = 0; i < 8; ++i) s.submit(of(s.spec(), i < 6 ? 1 : 2));
  EXPECT_EQ(s.tell(SchedulingHeld{false}),
            "Start job 1.1 on 0; Start job 7.1 on 1; Start job 2.1 on 2; Start job 8.1 on 3");
}

TEST(Order, WhatWasUsedLongAgoCountsLess) {
  QueueSettings settings;
  settings.half_life = hours(1);
  Script s(2, settings);
  JobSpec forever = of(s.spec(), 3);
  forever.gpus = {1};
  s.run(forever);
  s.run(of(s.spec(), 1));
  s.wait(hours(4));
  s.end(2);
  // User 1 has had 4 hours, which have decayed for 2 when user 2 has had an hour and a half.
  s.wait(hours(2));
  s.run(of(s.spec(), 2));
  s.wait(minutes(90));
  s.submit(of(s.spec(), 1));
  s.submit(of(s.spec(), 2));
  EXPECT_EQ(s.place(4), 1u);
  const auto usage = s.core().usage(s.now());
  ASSERT_EQ(usage.size(), 3u);
  EXPECT_EQ(usage[0].uid, 1u);
  EXPECT_LT(usage[0].gpu_microseconds, usage[1].gpu_microseconds);
}

TEST(Order, UsageIsTheSameAfterARestart) {
  Script before(1, QueueSettings());
  before.run(of(before.spec(), 1));
  before.wait(hours(30));
  const auto usage = before.core().usage(before.now());
  Script after(1, QueueSettings());
  after.tell(UsageRestored{1, usage.at(0).gpu_microseconds});
  const std::uint64_t restored = after.core().usage(after.now()).at(0).gpu_microseconds;
  EXPECT_NEAR(static_cast<double>(restored), static_cast<double>(usage.at(0).gpu_microseconds), 1.0);
}

TEST(Order, OverManyHalfLivesNothingOverflows) {
  QueueSettings settings;
  settings.half_life = hours(24 * 365);
  Script s(4, settings);
  JobSpec all = of(s.spec(4), 1);
  s.run(all);
  for (int year = 0; year < 40; ++year) {
    s.wait(hours(24 * 365));
    s.tell(SchedulingHeld{false});
  }
  const auto usage = s.core().usage(s.now());
  const std::uint64_t year = 365ull * 24 * 3600 * 1'000'000 * 4;
  EXPECT_GT(usage.at(0).gpu_microseconds, year);          // of an endless sum of halves: two years at most,
  EXPECT_LT(usage.at(0).gpu_microseconds, 5 * year / 2);  // and a little for counting between them linearly
}

TEST(Order, ChangingItKeepsEverybodysPlaceByTheNewRule) {
  Script s(1, QueueSettings());
  s.run(of(s.spec(), 1));
  s.wait(hours(1));
  s.submit(of(s.spec(), 1));
  s.submit(of(s.spec(), 2));
  EXPECT_EQ(s.place(3), 1u);
  s.tell(SettingsChanged{Script::fifo()});
  EXPECT_EQ(s.place(2), 1u);
  s.tell(SettingsChanged{QueueSettings()});
  EXPECT_EQ(s.place(3), 1u);
}

// A place behind all others, after a time limit, is one of the fair order.
TEST(Order, ChangingItEndsAPlaceBehindAll) {
  Script s(1, capped_at(0, Order::kFair));
  s.run(limited(of(s.spec(), 1), minutes(10)));  // 1
  s.submit(of(s.spec(), 2));                     // 2
  EXPECT_EQ(s.wait(minutes(10)), "Suspend job 1.1 time");
  EXPECT_EQ(s.suspended(1), "Start job 2.1 on 0");
  s.confirm(2);
  s.submit(of(s.spec(), 1, 5));  // 3
  s.tell(SettingsChanged{capped_at(0, Order::kFifo)});
  EXPECT_EQ(s.place(3), 1u) << "its user has given it a higher priority";
  EXPECT_EQ(s.end(2), "Start job 3.1 on 0");
  s.confirm(3);
  EXPECT_EQ(s.end(3), "Resume job 1.1 on 0");
}

// ---- backfill -----------------------------------------------------------------------------------

TEST(Backfill, OnlyWhatIsGoneInTime) {
  Script s(2);
  s.run(limited(s.spec(1), minutes(60)));
  EXPECT_EQ(s.submit(2), "");
  EXPECT_EQ(s.submit(limited(s.spec(1), minutes(61))), "");
  EXPECT_EQ(s.submit(1), "");
  EXPECT_EQ(s.submit(limited(s.spec(1), minutes(60))), "Start job 5.1 on 1");
  s.confirm(5);
  s.end(5);
  s.wait(minutes(10));
  EXPECT_EQ(s.submit(limited(s.spec(1), minutes(55))), "");
  EXPECT_EQ(s.submit(limited(s.spec(1), minutes(50))), "Start job 7.1 on 1");
}

TEST(Backfill, OnGpusThatAreNotNeeded) {
  Script s(3);
  JobSpec first = s.spec();
  first.gpus = {0};
  s.run(first);
  JobSpec pair = s.spec();
  pair.gpus = {0, 1};
  EXPECT_EQ(s.submit(pair), "");
  EXPECT_EQ(s.submit(1), "Start job 3.1 on 2");
  EXPECT_EQ(s.submit(1), "");
  EXPECT_EQ(s.end(1), "Start job 2.1 on 0,1");
}

TEST(Backfill, BesideWhatIsNeededWhereThatIsCertain) {
  Script s;
  s.run(1, 60);
  EXPECT_EQ(s.submit(1, 50), "");
  EXPECT_EQ(s.submit(1, 20), "Start job 3.1 on 0");  // 50 and 20 will be there together
  EXPECT_EQ(s.end(1), "Start job 2.1 on 0");
}

TEST(Backfill, NotWhereSeveralSmallOnesTogetherWouldBeInTheWay) {
  Script s;
  s.run(1, 45);
  s.run(1, 15);
  EXPECT_EQ(s.submit(1, 50), "");
  EXPECT_EQ(s.submit(1, 20), "");  // when the 45 end: 15 + 20 + 50 is too much
  EXPECT_EQ(s.submit(1, 15), "Start job 5.1 on 0");
  EXPECT_EQ(s.end(1), "Start job 3.1 on 0");
}

TEST(Backfill, AStreamOfSmallOnesDoesNotStarveALargeOne) {
  Script s(4);
  for (int i = 0; i < 4; ++i) s.run(1);
  EXPECT_EQ(s.submit(4), "");
  for (std::uint64_t i = 1; i <= 3; ++i) {
    EXPECT_EQ(s.submit(1), "");
    EXPECT_EQ(s.end(i), "");
  }
  EXPECT_EQ(s.end(4), "Start job 5.1 on 0,1,2,3");
}

// ---- time limits --------------------------------------------------------------------------------

TEST(TimeLimit, WithNobodyWaitingItGoesOn) {
  Script s;
  s.run(limited(s.spec(), minutes(10)));
  EXPECT_EQ(s.wait(hours(5)), "");
  EXPECT_EQ(s.submit(1), "Suspend job 1.1 time");
  EXPECT_EQ(s.suspended(1), "Start job 2.1 on 0");
  EXPECT_EQ(s.reason(1), "gpu_memory");
  EXPECT_EQ(s.end(2), "Resume job 1.1 on 0");
  EXPECT_EQ(s.resumed(1), "");
  EXPECT_EQ(s.standing(1).limit_at, s.now() + minutes(10));  // a new turn, a whole one
}

TEST(TimeLimit, BehindAllOfEqualPriority) {
  for (const Order order : {Order::kFifo, Order::kFair}) {
    QueueSettings settings;
    settings.order = order;
    settings.max_time = minutes(10);
    Script s(1, settings);
    s.run(of(s.spec(), 1));
    s.submit(of(s.spec(), 2));
    s.submit(of(s.spec(), 3));
    EXPECT_EQ(s.wait(minutes(10)), "Suspend job 1.1 time");
    s.submit(of(s.spec(), 4, -1));
    EXPECT_EQ(s.suspended(1), "Start job 2.1 on 0");
    EXPECT_EQ(s.place(3), 1u);
    EXPECT_EQ(s.place(1), 2u);
    EXPECT_EQ(s.place(4), 3u);
    s.confirm(2);
    EXPECT_EQ(s.wait(minutes(10)), "Suspend job 2.1 time");
    EXPECT_EQ(s.suspended(2), "Start job 3.1 on 0");
    s.confirm(3);
    EXPECT_EQ(s.wait(minutes(10)), "Suspend job 3.1 time");
    EXPECT_EQ(s.suspended(3), "Resume job 1.1 on 0");
  }
}

TEST(TimeLimit, OnlyForSomebodyWhoCanUseIt) {
  Script s(2);
  JobSpec endless = s.spec();
  endless.gpus = {0};
  s.run(endless);
  JobSpec short_one = limited(s.spec(), minutes(10));
  short_one.gpus = {1};
  s.run(short_one);
  JobSpec both = s.spec(2);
  EXPECT_EQ(s.submit(both), "");
  EXPECT_EQ(s.wait(hours(1)), "");               // GPU 0 is not given up, so GPU 1 alone is of no use
  EXPECT_EQ(s.submit(of(s.spec(), 1, -5)), "");  // and lower priorities do not count
  EXPECT_EQ(s.end(1), "Suspend job 2.1 time");
  EXPECT_EQ(s.suspended(2), "Start job 3.1 on 0,1");
}

TEST(TimeLimit, CancelsWhereTheJobSaysSo) {
  Script s;
  s.run(limited(s.spec(), minutes(10), OnLimit::kCancel));
  s.submit(of(s.spec(), 1, -5));
  EXPECT_EQ(s.wait(minutes(10)), "Cancel job 1.1 time");
  EXPECT_EQ(s.end(1, End::kFailed), "Start job 2.1 on 0");
  EXPECT_EQ(s.outcome(1), "timed out");
}

TEST(TimeLimit, WhoCannotBeSuspendedRunsOnAndIsAskedAgain) {
  Script s;
  s.run(limited(s.spec(), minutes(10)));
  s.submit();
  EXPECT_EQ(s.wait(minutes(10)), "Suspend job 1.1 time");
  EXPECT_EQ(s.refused(1), "");
  EXPECT_TRUE(s.standing(1).suspend_refused);
  EXPECT_EQ(s.standing(1).state, JobState::kRunning);
  EXPECT_EQ(s.wait(seconds(30)), "Suspend job 1.1 time");
  EXPECT_EQ(s.suspended(1), "Start job 2.1 on 0");
}

TEST(TimeLimit, TheSmallerOfItsOwnAndTheGlobalOne) {
  QueueSettings settings = Script::fifo();
  settings.max_time = minutes(20);
  Script s(2, settings);
  s.run(limited(s.spec(), minutes(30)));
  s.run(limited(s.spec(), minutes(5)));
  EXPECT_EQ(s.standing(1).limit_at, s.now() + minutes(20));
  EXPECT_EQ(s.standing(2).limit_at, s.now() + minutes(5));
  settings.max_time = kNoLimit;
  s.tell(SettingsChanged{settings});
  EXPECT_EQ(s.standing(1).limit_at, s.now() + minutes(30));
}

TEST(TimeLimit, AGangIsSuspendedOnceForAllItsGpus) {
  Script s(2);
  s.run(limited(s.spec(2), minutes(10)));
  s.submit(2);
  EXPECT_EQ(s.wait(minutes(10)), "Suspend job 1.1 time");
  EXPECT_EQ(s.suspended(1), "Start job 2.1 on 0,1");
  EXPECT_EQ(s.end(2), "Resume job 1.1 on 0,1");
}

TEST(TimeLimit, CancelledWhileSuspended) {
  Script s;
  s.run(limited(s.spec(), minutes(10)));
  s.submit();
  s.wait(minutes(10));
  s.suspended(1);
  EXPECT_EQ(s.cancel(1), "Cancel job 1.1 asked");
  EXPECT_EQ(s.end(1), "");
  EXPECT_EQ(s.outcome(1), "cancelled");
}

// ---- preemption ---------------------------------------------------------------------------------

TEST(Preempt, OnlyIfSet) {
  Script s;
  s.run();
  EXPECT_EQ(s.submit(of(s.spec(), 1, 5)), "");
  QueueSettings settings = Script::fifo();
  settings.preempt = true;
  EXPECT_EQ(s.tell(SettingsChanged{settings}), "Suspend job 1.1 priority");
  EXPECT_EQ(s.suspended(1), "Start job 2.1 on 0");
  EXPECT_EQ(s.end(2), "Resume job 1.1 on 0");
}

TEST(Preempt, NoMoreThanNeeded) {
  QueueSettings settings = Script::fifo();
  settings.preempt = true;
  Script s(2, settings);
  s.run(1, 40);
  s.run(1, 40);
  s.run(1, 30);
  s.run(1, 50);
  EXPECT_EQ(s.submit(of(s.spec(1, 45), 1, 5)), "Suspend job 4.1 priority");  // one on GPU 1, not two on GPU 0
  EXPECT_EQ(s.suspended(4), "Start job 5.1 on 1");
}

TEST(Preempt, NotEqualsAndKeepsItsPlace) {
  QueueSettings settings = Script::fifo();
  settings.preempt = true;
  Script s(1, settings);
  s.run();
  s.submit();
  EXPECT_EQ(s.submit(of(s.spec(), 1, 5)), "Suspend job 1.1 priority");
  EXPECT_EQ(s.suspended(1), "Start job 3.1 on 0");
  EXPECT_EQ(s.place(1), 1u);
  EXPECT_EQ(s.end(3), "Resume job 1.1 on 0");
}

// Jobs that have made way do not come back while the job waits for the rest of them.
TEST(Preempt, AJobForWhichOthersMakeWayKeepsItsTurn) {
  QueueSettings settings;
  settings.preempt = true;
  Script s(1, settings);
  s.run(of(s.spec(1, 10), 1, -1));
  s.wait(seconds(5));
  s.run(of(s.spec(1, 30), 2, 5));
  s.run(of(s.spec(1, 10), 3, -1));
  EXPECT_EQ(s.submit(of(s.spec(1, 60), 1)), "");
  EXPECT_EQ(s.submit(of(s.spec(1, 50), 2)), "Suspend job 3.1 priority; Suspend job 1.1 priority");
  EXPECT_EQ(s.suspended(1), "");
  s.wait(seconds(10));  // only user 2 is charged, and is behind user 1 now
  EXPECT_EQ(s.suspended(3), "Start job 5.1 on 0");
}

// It keeps its GPUs, too. If it took others now, one job would have been suspended for nothing.
TEST(Preempt, AJobForWhichOthersMakeWayKeepsItsGpus) {
  QueueSettings settings = Script::fifo();
  settings.preempt = true;
  Script s(3, settings);
  s.tell(GpuAdded{GpuIndex{0}, 160 * kGiB});
  const auto on = [](JobSpec spec, const GpuSet& gpus) {
    spec.gpus = gpus;
    return spec;
  };
  s.run(on(of(s.spec(1, 85), 1, 5), {0}));
  s.run(on(of(s.spec(1, 50), 1, -1), {0}));
  s.run(on(of(s.spec(2, 50), 1), {1, 2}));
  EXPECT_EQ(s.submit(of(s.spec(2, 70), 1, 1)), "Suspend job 2.1 priority; Suspend job 3.1 priority");
  EXPECT_EQ(s.suspended(2), "");
  EXPECT_EQ(s.suspended(3), "Start job 4.1 on 0,1");
}

TEST(Preempt, MovesTheUserOfTheJobThatMakesWayToNoOtherPlace) {
  QueueSettings settings;
  settings.preempt = true;
  Script s(2, settings);
  const auto on = [](JobSpec spec, const GpuSet& gpus) {
    spec.gpus = gpus;
    return spec;
  };
  s.run(on(of(s.spec(), 2), {1}));
  s.wait(seconds(30));
  s.end(1);
  s.run(on(of(s.spec(), 3), {0}));
  s.run(on(of(s.spec(), 1, -1), {1}));
  EXPECT_EQ(s.submit(on(of(s.spec(), 1), {0, 1})), "");
  EXPECT_EQ(s.submit(on(of(s.spec(), 2), {0})), "");  // goes first: user 1 has a job that counts a minute
  EXPECT_EQ(s.submit(on(of(s.spec(), 2), {1})), "Suspend job 3.1 priority");
  // Job 3 counts as before. Otherwise both GPUs would be kept for job 4 now.
  EXPECT_EQ(s.suspended(3), "Start job 6.1 on 1");
}

// ---- places and limits --------------------------------------------------------------------------

// An array of three elements of which one may run at a time, of user `uid`, in the order of ids from `array` on.
void submit_array(Script& s, std::uint32_t uid) {
  JobSpec element = of(s.spec(), uid);
  element.array = element.id;
  element.array_limit = 1;
  for (std::uint32_t i = 0; i < 3; ++i) {
    s.submit(element);
    if (i == 0) s.confirm(element.id.value);
    if (i == 2) break;
    const JobId array = element.array;
    element = of(s.spec(), uid);
    element.array = array;
    element.array_limit = 1;
    element.array_index = i + 1;
  }
}

TEST(Places, AJobThatALimitKeepsWaitingHasNoneAndCountsForNoOther) {
  for (const Order order : {Order::kFifo, Order::kFair}) {
    QueueSettings settings;
    settings.order = order;
    Script s(1, settings);
    submit_array(s, 1);         // 1 runs; 2 and 3
    s.submit(of(s.spec(), 1));  // 4
    s.submit(of(s.spec(), 2));  // 5
    EXPECT_EQ(s.reason(2), "array_limit");
    EXPECT_EQ(s.place(2), 0u);
    EXPECT_EQ(s.place(3), 0u);
    EXPECT_EQ(s.place(4), order == Order::kFifo ? 1u : 2u);
    EXPECT_EQ(s.place(5), order == Order::kFifo ? 2u : 1u) << "user 1 has had the GPU";
    s.tell(UserLimitsChanged{1, UserLimits{1, kUnlimited, kUnlimited, kUnlimited}});
    EXPECT_EQ(s.reason(4), "user_limit");
    EXPECT_EQ(s.place(4), 0u);
    EXPECT_EQ(s.place(5), 1u);
  }
}

}  // namespace
}  // namespace gpumux::jobs
