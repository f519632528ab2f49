// SPDX-License-Identifier: Apache-2.0
// Changes by users and administrators to waiting and running jobs: their wishes, and whether they run.
#include "jobs/core/script.h"
#include "jobs/core/state.h"

namespace gpumux::jobs {
namespace {

using std::chrono::hours;
using std::chrono::minutes;

class Changes : public ::testing::Test {
 protected:
  static std::string text(Refusal why) { return "refused: " + std::to_string(static_cast<int>(why)); }
  // The commands that follow, or why it is refused.
  std::string ask(std::uint64_t job, const Request& request, bool by_admin = false) {
    const RequestAsked asked{JobId{job}, request, by_admin};
    const auto refusal = s_.core().refusal(asked);
    const std::string told = s_.tell(asked);
    if (refusal) {
      EXPECT_EQ(told, "") << "what is refused changes nothing";
    }
    return refusal ? text(*refusal) : told;
  }
  Request request(std::uint64_t job) { return s_.core().request(JobId{job}).value_or(Request()); }

  Script s_{2};
};

TEST_F(Changes, AJobThatAsksForLessStarts) {
  s_.run(s_.spec(1, 50));
  s_.run(s_.spec(1, 50));
  EXPECT_EQ(s_.submit(1, 40), "");
  Request less = request(3);
  less.memory = 30 * kGiB;
  EXPECT_EQ(ask(3, less), "RecordRequest job 3 any 1 memory 32212254720; Start job 3.1 on 0");
  EXPECT_EQ(request(3), less);
}

TEST_F(Changes, AJobThatAsksForMoreKeepsItsPlace) {
  s_.run(s_.spec(2));
  s_.submit(1, 10);
  s_.submit(1, 10);
  Request more = request(2);
  more.gpus = {1};
  more.time_limit = hours(2);
  EXPECT_EQ(ask(2, more), "RecordRequest job 2 on 1 memory 10737418240 limit 7200000000000");
  EXPECT_EQ(s_.place(2), 1u);
  EXPECT_EQ(s_.end(1), "Start job 2.1 on 1; Start job 3.1 on 1");
}

TEST_F(Changes, WhatCanNeverBeIsRefusedAsInASubmission) {
  s_.run(s_.spec(2));
  s_.submit();
  const Request before = request(2);
  for (const auto& [count, gib, why] :
       {std::tuple(3u, 1ull, Refusal::kTooManyGpus), std::tuple(0u, 1ull, Refusal::kNoGpus),
        std::tuple(1u, 81ull, Refusal::kTooMuchMemory)}) {
    Request wanted = before;
    wanted.gpu_count = count;
    wanted.memory = gib * kGiB;
    EXPECT_EQ(ask(2, wanted), text(why));
  }
  EXPECT_EQ(request(2), before);
  EXPECT_EQ(ask(2, before), "") << "nothing changes";
}

TEST_F(Changes, AJobThatHasStartedKeepsItsMemoryAndGpus) {
  s_.run(s_.spec(1, 10));
  for (const bool by_admin : {false, true}) {
    Request wanted = request(1);
    wanted.memory = 5 * kGiB;
    EXPECT_EQ(ask(1, wanted, by_admin), text(Refusal::kStarted));
  }
}

TEST_F(Changes, ATimeLimitThatRunsIsShortenedByItsOwnerAndLengthenedByAnAdministrator) {
  JobSpec spec = s_.spec(2);
  spec.time_limit = hours(2);
  s_.run(spec);
  s_.submit(2);
  Request wanted = request(1);
  for (const Duration longer : {Duration(hours(3)), kNoLimit}) {
    wanted.time_limit = longer;
    EXPECT_EQ(ask(1, wanted), text(Refusal::kLonger));
  }
  wanted.time_limit = hours(1);
  EXPECT_EQ(ask(1, wanted), "RecordRequest job 1 any 2 memory 0 limit 3600000000000");
  EXPECT_EQ(s_.standing(1).limit_at, s_.now() + hours(1));
  wanted.time_limit = hours(4);
  EXPECT_EQ(ask(1, wanted, true), "RecordRequest job 1 any 2 memory 0 limit 14400000000000");
  EXPECT_EQ(s_.wait(hours(4) - minutes(1)), "");
  EXPECT_EQ(s_.wait(minutes(1)), "Suspend job 1.1 time");
}

TEST_F(Changes, ATimeLimitShorterThanTheTimeThatHasRunIsOverAtOnce) {
  s_.run(s_.spec(2));
  s_.submit(2);
  EXPECT_EQ(s_.wait(hours(1)), "");
  Request wanted = request(1);
  wanted.time_limit = minutes(30);
  EXPECT_EQ(ask(1, wanted), "RecordRequest job 1 any 2 memory 0 limit 1800000000000; Suspend job 1.1 time");
}

TEST_F(Changes, AHeldJobAndOneThatWaitsForAnotherAreChangedToo) {
  s_.run(s_.spec(2));
  JobSpec held = s_.spec();
  held.held = true;
  s_.submit(held);
  JobSpec after = s_.spec();
  after.after = {{JobId{1}}};
  s_.submit(after);
  for (const std::uint64_t job : {2u, 3u}) {
    Request wanted = request(job);
    wanted.gpu_count = 2;
    EXPECT_NE(ask(job, wanted), "");
    EXPECT_EQ(request(job), wanted);
  }
  EXPECT_EQ(s_.end(1), "Start job 3.1 on 0,1");
}

// ---- jobs that begin later ----------------------------------------------------------------------

TEST(Begin, AJobIsNotConsideredBefore) {
  Script s;
  JobSpec later = s.spec();
  later.begin = s.now() + hours(1);
  EXPECT_EQ(s.submit(later), "");
  EXPECT_EQ(s.reason(1), "begin");
  EXPECT_EQ(s.place(1), 0u);
  EXPECT_EQ(s.submit(1, 10), "Start job 2.1 on 0") << "it is in no other job's way";
  EXPECT_EQ(s.end(2), "");
  EXPECT_EQ(s.wait(minutes(59)), "");
  EXPECT_EQ(s.wait(minutes(1)), "Start job 1.1 on 0");
}

TEST(Begin, OneThatIsPastIsNone) {
  Script s;
  JobSpec spec = s.spec();
  spec.begin = s.now();
  EXPECT_EQ(s.submit(spec), "Start job 1.1 on 0");
}

TEST(Begin, MayBeHeldCancelledAndComeBack) {
  Script s;
  JobSpec later = s.spec();
  later.begin = s.now() + hours(1);
  s.submit(later);
  s.tell(HoldAsked{JobId{1}});
  EXPECT_EQ(s.wait(hours(2)), "");
  EXPECT_EQ(s.tell(ReleaseAsked{JobId{1}}), "Start job 1.1 on 0");
  JobSpec another = s.spec();
  another.begin = s.now() + hours(1);
  s.submit(another);
  s.cancel(2);
  EXPECT_EQ(s.outcome(2), "cancelled");
  JobSpec restored = s.spec();
  restored.order = 9;
  restored.begin = s.now() + hours(1);
  s.tell(Restored{restored, JobState::kQueued, 0, {}, {}});
  EXPECT_EQ(s.reason(3), "begin");
  s.end(1);
  EXPECT_EQ(s.wait(hours(1)), "Start job 3.1 on 0");
}

// The clock was set back while the daemon was away.
TEST(Begin, AJobThatHasBegunDoesNotWaitForIt) {
  Script s;
  JobSpec restored = s.spec();
  restored.begin = s.now() + hours(1);
  s.tell(SchedulingHeld{true});
  s.tell(Restored{restored, JobState::kSuspended, 1, {0}, minutes(5)});
  EXPECT_EQ(s.tell(SchedulingHeld{false}), "Resume job 1.1 on 0");
}

// ---- suspended by hand --------------------------------------------------------------------------

TEST(SuspendedByHand, StaysSoUntilItIsReleased) {
  Script s;
  s.run(s.spec(1, 50));
  EXPECT_EQ(s.submit(1, 50), "");
  EXPECT_EQ(s.tell(SuspendAsked{JobId{1}}), "Suspend job 1.1 asked");
  EXPECT_EQ(s.tell(SuspendAsked{JobId{1}}), "") << "it is told already";
  EXPECT_EQ(s.suspended(1), "Start job 2.1 on 0");
  EXPECT_EQ(s.reason(1), "held");
  s.confirm(2);
  EXPECT_EQ(s.end(2), "") << "there is room, and it is held";
  EXPECT_TRUE(s.record(1).held);
  EXPECT_EQ(s.tell(ReleaseAsked{JobId{1}}), "Resume job 1.1 on 0");
  s.resumed(1);
  EXPECT_EQ(s.standing(1).state, JobState::kRunning);
}

TEST(SuspendedByHand, IsSoAfterARestart) {
  Script s;
  JobSpec held = s.spec();
  held.held = true;
  held.order = 1;
  s.tell(Restored{held, JobState::kSuspended, 1, {0}, minutes(5)});
  EXPECT_EQ(s.reason(1), "held");
  EXPECT_EQ(s.tell(ReleaseAsked{JobId{1}}), "Resume job 1.1 on 0");
}

TEST(SuspendedByHand, AfterARestartAJobThatWasBeingSuspendedIsAskedAgain) {
  Script s;
  JobSpec held = s.spec();
  held.held = true;
  held.order = 1;
  s.tell(Restored{held, JobState::kSuspending, 1, {0}, minutes(5)});
  EXPECT_EQ(s.standing(1).state, JobState::kRunning);
  EXPECT_EQ(s.wait(kSuspendRetry), "Suspend job 1.1 asked");
}

TEST(SuspendedByHand, IsAskedAgainWhenItCouldNotBe) {
  Script s;
  s.run();
  s.tell(SuspendAsked{JobId{1}});
  EXPECT_EQ(s.refused(1), "");
  EXPECT_EQ(s.standing(1).state, JobState::kRunning);
  EXPECT_TRUE(s.standing(1).suspend_refused);
  EXPECT_EQ(s.wait(kSuspendRetry), "Suspend job 1.1 asked");
  s.refused(1);
  s.tell(ReleaseAsked{JobId{1}});
  EXPECT_EQ(s.wait(hours(1)), "") << "it is not to be suspended any more";
}

TEST(SuspendedByHand, AJobThatStartsIsSuspendedWhenItRuns) {
  Script s;
  s.submit();
  EXPECT_EQ(s.tell(SuspendAsked{JobId{1}}), "");
  EXPECT_EQ(s.confirm(1), "Suspend job 1.1 asked");
}

TEST(SuspendedByHand, OneThatItsTimeLimitHasSuspendedIsHeldThere) {
  Script s;
  JobSpec spec = s.spec();
  spec.time_limit = hours(1);
  s.run(spec);
  s.submit();
  EXPECT_EQ(s.wait(hours(1)), "Suspend job 1.1 time");
  s.suspended(1);
  s.confirm(2);
  s.tell(SuspendAsked{JobId{1}});
  EXPECT_EQ(s.end(2), "");
  EXPECT_EQ(s.tell(ReleaseAsked{JobId{1}}), "Resume job 1.1 on 0");
}

TEST(SuspendedByHand, WhatDoesNotRunIsNotSuspended) {
  Script s;
  s.run();
  s.submit();
  s.tell(SuspendAsked{JobId{2}});
  EXPECT_EQ(s.standing(2).state, JobState::kQueued);
  s.cancel(1);
  EXPECT_EQ(s.tell(SuspendAsked{JobId{1}}), "");
}

// ---- requeued by hand ---------------------------------------------------------------------------

TEST(RequeuedByHand, RunsOnceMoreInItsPlace) {
  Script s;
  s.run();
  s.submit();
  EXPECT_EQ(s.tell(RequeueAsked{JobId{1}}), "Cancel job 1.1 requeue");
  EXPECT_EQ(s.standing(1).state, JobState::kEnding);
  EXPECT_EQ(s.end(1, End::kOk), "Start job 1.2 on 0") << "however it has ended";
  EXPECT_EQ(s.confirm(1), "");
  EXPECT_EQ(s.end(1), "Start job 2.1 on 0");
  EXPECT_EQ(s.outcome(1), "ok");
}

TEST(RequeuedByHand, MayBeCancelledInstead) {
  Script s;
  s.run();
  s.tell(RequeueAsked{JobId{1}});
  EXPECT_EQ(s.cancel(1), "") << "it is told to end already";
  EXPECT_EQ(s.end(1), "");
  EXPECT_EQ(s.outcome(1), "cancelled");
}

TEST(RequeuedByHand, RunsOnceMoreAfterARestartToo) {
  Script s;
  JobSpec spec = s.spec();
  spec.order = 1;
  s.tell(Restored{spec, JobState::kEnding, 3, {0}, {}, Outcome::kNone});
  EXPECT_EQ(s.end(1, End::kFailed), "Start job 1.4 on 0");
}

TEST(RequeuedByHand, OneThatIsSuspendedStartsFromTheBeginning) {
  Script s;
  s.run();
  s.tell(SuspendAsked{JobId{1}});
  s.suspended(1);
  EXPECT_EQ(s.tell(RequeueAsked{JobId{1}}), "Cancel job 1.1 requeue");
  EXPECT_EQ(s.end(1), "Start job 1.2 on 0");
}

TEST(RequeuedByHand, WhatWaitsOrHasItsStartRefusedIsNotDone) {
  Script s;
  s.submit();
  s.submit();
  EXPECT_EQ(s.tell(RequeueAsked{JobId{2}}), "");
  EXPECT_EQ(s.tell(RequeueAsked{JobId{1}}), "Cancel job 1.1 requeue");
  EXPECT_EQ(s.tell(StartFailed{JobId{1}, 1}), "Start job 1.2 on 0");
}

}  // namespace
}  // namespace gpumux::jobs
