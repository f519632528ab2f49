// SPDX-License-Identifier: Apache-2.0
// Admission, placing, the life of a job, dependencies, arrays, limits: each rule of docs/jobs.md by its smallest
// example. The invariants are checked after every event.
#include <numeric>

#include "jobs/core/script.h"

namespace gpumux::jobs {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

std::uint64_t unfinished(Script& s) {
  const JobCounts& counts = s.core().counts();
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

// ---- admission ----------------------------------------------------------------------------------

TEST(Admission, RequestsOfRunningJobsFitInCapacity) {
  Script s;
  EXPECT_EQ(s.submit(1, 50), "Start job 1.1 on 0");
  EXPECT_EQ(s.submit(1, 40), "");  // 90 of 80
  EXPECT_EQ(s.reason(2), "gpu_memory");
  EXPECT_EQ(s.submit(1, 31), "");
  EXPECT_EQ(s.reason(3), "priority");
  EXPECT_EQ(s.end(1), "Start job 2.1 on 0; Start job 3.1 on 0");
}

TEST(Admission, FillsAGpuToTheLastByte) {
  Script s;
  EXPECT_EQ(s.submit(1, 50), "Start job 1.1 on 0");
  EXPECT_EQ(s.submit(1, 30), "Start job 2.1 on 0");
  JobSpec one_byte = s.spec();
  one_byte.memory = 1;
  EXPECT_EQ(s.submit(one_byte), "");
  EXPECT_EQ(s.end(2), "Start job 3.1 on 0");
}

TEST(Admission, ForeignUseCounts) {
  Script s;
  s.tell(ForeignUse{GpuIndex{0}, 31 * kGiB});
  EXPECT_EQ(s.submit(1, 50), "");
  EXPECT_EQ(s.tell(ForeignUse{GpuIndex{0}, 30 * kGiB}), "Start job 1.1 on 0");
}

TEST(Admission, OversubscribePromisesMore) {
  QueueSettings settings = Script::fifo();
  settings.oversubscribe = 1500;
  Script s(1, settings);
  EXPECT_EQ(s.submit(), "Start job 1.1 on 0");
  EXPECT_EQ(s.submit(1, 41), "");
  EXPECT_EQ(s.cancel(2), "");
  EXPECT_EQ(s.submit(1, 40), "Start job 3.1 on 0");
}

TEST(Admission, DefaultMemoryIsTheWholeGpuUnlessSet) {
  QueueSettings settings = Script::fifo();
  settings.default_memory = 40 * kGiB;
  Script s(1, settings);
  EXPECT_EQ(s.submit(), "Start job 1.1 on 0");
  EXPECT_EQ(s.submit(), "Start job 2.1 on 0");
  EXPECT_EQ(s.submit(), "");
}

TEST(Admission, ExclusiveSharesWithNobody) {
  Script s;
  JobSpec exclusive = s.spec(1, 10);
  exclusive.exclusive = true;
  EXPECT_EQ(s.submit(exclusive), "Start job 1.1 on 0");
  EXPECT_EQ(s.submit(1, 10), "");
  JobSpec another = s.spec(1, 10);
  another.exclusive = true;
  EXPECT_EQ(s.submit(another), "");
  EXPECT_EQ(s.end(1), "Start job 2.1 on 0");  // and the exclusive one not with it
  EXPECT_EQ(s.end(2), "Start job 3.1 on 0");
}

TEST(Admission, RefusesWhatNeverFits) {
  Script s(2);
  EXPECT_EQ(s.core().refusal(s.spec(3)), Refusal::kTooManyGpus);
  EXPECT_EQ(s.core().refusal(s.spec(0)), Refusal::kNoGpus);
  EXPECT_EQ(s.core().refusal(s.spec(1, 81)), Refusal::kTooMuchMemory);
  JobSpec named = s.spec();
  named.gpus = {0, 5};
  EXPECT_EQ(s.core().refusal(named), Refusal::kUnknownGpu);
  s.tell(GpuAdded{GpuIndex{2}, 40 * kGiB});
  EXPECT_EQ(s.core().refusal(s.spec(3, 50)), Refusal::kTooMuchMemory);  // only two have that much
  EXPECT_EQ(s.core().refusal(s.spec(2, 50)), std::nullopt);
  JobSpec on_the_small_one = s.spec(1, 50);
  on_the_small_one.gpus = {2};
  EXPECT_EQ(s.core().refusal(on_the_small_one), Refusal::kTooMuchMemory);
  JobSpec after_nothing = s.spec();
  after_nothing.after.push_back({JobId{999}});
  EXPECT_EQ(s.core().refusal(after_nothing), Refusal::kUnknownJob);
  EXPECT_EQ(s.submit(after_nothing), "");
  EXPECT_EQ(unfinished(s), 0u);  // a refused one is not there
}

// ---- placing ------------------------------------------------------------------------------------

TEST(Placing, PacksTightly) {
  Script s(3);
  s.run(1, 50);                                      // on 0, the first of equals
  EXPECT_EQ(s.submit(1, 20), "Start job 2.1 on 0");  // 10 left over there
  EXPECT_EQ(s.submit(1, 30), "Start job 3.1 on 1");
  EXPECT_EQ(s.submit(1, 80), "Start job 4.1 on 2");  // a whole GPU is still there
}

TEST(Placing, NamedGpusAndNoOthers) {
  Script s(3);
  JobSpec named = s.spec();
  named.gpus = {0, 2};
  EXPECT_EQ(s.submit(named), "Start job 1.1 on 0,2");
  JobSpec more = s.spec();
  more.gpus = {1, 2};
  EXPECT_EQ(s.submit(more), "");
  EXPECT_EQ(s.submit(2), "");  // reserved: 1 is kept for job 2
  EXPECT_EQ(s.end(1), "Start job 2.1 on 1,2");
}

TEST(Placing, AvoidsGpusToWhichSomebodyWantsBack) {
  QueueSettings settings = Script::fifo();
  settings.preempt = true;
  Script s(2, settings);
  s.run(1);
  s.run(1);
  JobSpec urgent = s.spec();
  urgent.priority = 5;
  EXPECT_EQ(s.submit(urgent), "Suspend job 2.1 priority");  // the later one
  EXPECT_EQ(s.suspended(2), "Start job 3.1 on 1");
  EXPECT_EQ(s.end(1), "");  // job 2 goes back to GPU 1 only
  JobSpec other = s.spec();
  EXPECT_EQ(s.submit(other), "Start job 4.1 on 0");
}

// ---- life ---------------------------------------------------------------------------------------

TEST(Life, EveryStateIsRecordedBeforeWhatItAllows) {
  Script s;
  std::vector<Command> commands;
  JobSpec spec = s.spec();
  s.core().apply(s.now(), Submitted{spec}, commands);
  std::string text;
  for (const Command& command : commands) text += to_string(command) + "\n";
  EXPECT_EQ(text,
            "Record job 1.0 queued order 1 priority 0\n"
            "Record job 1.1 starting on 0 order 1 priority 0\n"
            "Start job 1.1 on 0\n");
}

TEST(Life, EndsAreToldApart) {
  Script s(4);
  s.run();
  s.run();
  s.run();
  s.run();
  s.end(1, End::kOk);
  s.end(2, End::kFailed);
  s.end(3, End::kLost);
  EXPECT_EQ(s.cancel(4), "Cancel job 4.1 asked");
  EXPECT_EQ(s.cancel(4), "");
  s.end(4, End::kOk);
  EXPECT_EQ(s.outcome(1), "ok");
  EXPECT_EQ(s.outcome(2), "failed");
  EXPECT_EQ(s.outcome(3), "lost");
  EXPECT_EQ(s.outcome(4), "cancelled");
  EXPECT_EQ(unfinished(s), 0u);
}

TEST(Life, WhatIsSaidOfAnotherAttemptMeansNothing) {
  Script s;
  s.submit();
  EXPECT_EQ(s.tell(StartFailed{JobId{1}, 1}), "");
  EXPECT_EQ(s.reason(1), "retry");
  EXPECT_EQ(s.wait(seconds(1)), "Start job 1.2 on 0");
  s.tell(Ended{JobId{1}, 1, End::kOk});
  s.tell(StartConfirmed{JobId{1}, 1});
  EXPECT_EQ(s.standing(1).state, JobState::kStarting);
  s.confirm(1);
  EXPECT_EQ(s.standing(1).state, JobState::kRunning);
}

TEST(Life, StartsAreRetriedLaterAndLater) {
  Script s;
  s.submit();
  Duration pause = seconds(1);
  for (std::uint32_t attempt = 1; attempt < 12; ++attempt) {
    EXPECT_EQ(s.tell(StartFailed{JobId{1}, attempt}), "");
    EXPECT_EQ(s.wait(pause - Duration(1)), "");
    EXPECT_EQ(s.wait(Duration(1)), "Start job 1." + std::to_string(attempt + 1) + " on 0");
    pause = std::min<Duration>(2 * pause, minutes(1));
  }
  EXPECT_EQ(s.tell(Ended{JobId{1}, 12, End::kFailed}), "");
  EXPECT_EQ(s.outcome(1), "failed");
}

TEST(Life, ALostJobRunsAgainIfItMay) {
  Script s;
  JobSpec spec = s.spec();
  spec.requeue = true;
  s.run(spec);
  s.submit();
  EXPECT_EQ(s.end(1, End::kLost), "Start job 1.2 on 0");  // its place is where it was: first
  EXPECT_EQ(s.cancel(1), "Cancel job 1.2 asked");
  EXPECT_EQ(s.end(1, End::kLost), "Start job 2.1 on 0");
  EXPECT_EQ(s.outcome(1), "cancelled");
}

TEST(Life, HeldAndReleasedInItsOldPlace) {
  Script s;
  s.run();
  s.submit();
  s.submit();
  EXPECT_EQ(s.tell(HoldAsked{JobId{2}}), "");
  EXPECT_EQ(s.reason(2), "held");
  EXPECT_EQ(s.place(2), 0u);
  EXPECT_EQ(s.place(3), 1u);
  s.tell(ReleaseAsked{JobId{2}});
  EXPECT_EQ(s.place(2), 1u);
  EXPECT_EQ(s.place(3), 2u);
  EXPECT_EQ(s.end(1), "Start job 2.1 on 0");
}

TEST(Life, WithdrawnNeverWas) {
  Script s;
  s.submit();
  s.submit();
  EXPECT_EQ(s.tell(Withdrawn{JobId{1}}), "Start job 2.1 on 0");
  EXPECT_EQ(s.outcome(1), "none");
  s.confirm(2);
  EXPECT_EQ(s.tell(Withdrawn{JobId{2}}), "");
  EXPECT_EQ(s.standing(2).state, JobState::kRunning);  // it is too late for that
}

TEST(Life, WithdrawnWhileItIsCancelled) {
  Script s;
  s.submit();
  s.submit();
  s.tell(CancelAsked{JobId{1}});
  EXPECT_EQ(s.tell(Withdrawn{JobId{1}}), "Start job 2.1 on 0");
}

TEST(Life, NothingStartsWhileSchedulingIsHeld) {
  Script s;
  s.tell(SchedulingHeld{});
  EXPECT_EQ(s.submit(), "");
  EXPECT_EQ(s.reason(1), "paused");
  EXPECT_EQ(s.tell(SchedulingHeld{false}), "Start job 1.1 on 0");
}

TEST(Life, RestoredJobsGoOnWhereTheyWere) {
  Script s(2);
  s.tell(SchedulingHeld{});
  JobSpec waiting = s.spec();
  waiting.order = 7;
  JobSpec running = s.spec();
  running.order = 3;
  running.time_limit = minutes(10);
  JobSpec suspended = s.spec();
  suspended.order = 9;
  s.tell(Restored{waiting, JobState::kQueued, 0, {}, {}});
  s.tell(Restored{running, JobState::kRunning, 2, {1}, minutes(4)});
  s.tell(Restored{suspended, JobState::kSuspended, 1, {1}, {}});
  EXPECT_EQ(s.standing(2).limit_at, s.now() + minutes(6));
  EXPECT_EQ(s.tell(SchedulingHeld{false}), "Start job 1.1 on 0");
  s.submit();
  EXPECT_EQ(s.place(3), 1u);
  EXPECT_EQ(s.place(4), 2u);
  EXPECT_EQ(s.wait(minutes(6)), "Suspend job 2.2 time");
  EXPECT_EQ(s.suspended(2), "Resume job 3.1 on 1");
}

// A suspended job that is told to end has left its GPUs to others, and its record still names them.
TEST(Life, ARestoredJobThatEndsOccupiesNoGpuThatAnotherOneHasAlone) {
  for (const bool ends_first : {true, false}) {
    Script s(2);
    s.tell(SchedulingHeld{});
    JobSpec ending = s.spec(1, 10), alone = s.spec(1, 10);
    alone.exclusive = true;
    const Event restored[] = {Restored{ending, JobState::kEnding, 1, {0}, {}, Outcome::kCancelled},
                              Restored{alone, JobState::kRunning, 1, {0}, {}, {}}};
    s.tell(restored[ends_first ? 0 : 1]);
    s.tell(restored[ends_first ? 1 : 0]);
    s.tell(SchedulingHeld{false});
    JobSpec third = s.spec(1, 10);
    third.gpus = {0};
    EXPECT_EQ(s.submit(third), "");
    s.tell(Ended{ending.id, 1, End::kOk});
    EXPECT_EQ(s.outcome(ending.id.value), "cancelled");
    EXPECT_EQ(s.end(alone.id.value), "Start job 3.1 on 0");
  }
}

// ---- dependencies -------------------------------------------------------------------------------

TEST(Dependencies, OkNeedsASuccessAndAnyAnEnd) {
  Script s(4);
  const JobId first = s.run();
  JobSpec ok = s.spec(), any = s.spec();
  ok.after.push_back({first});
  any.after.push_back({first, false, Dependency::Need::kAny});
  EXPECT_EQ(s.submit(ok), "");
  EXPECT_EQ(s.submit(any), "");
  EXPECT_EQ(s.reason(2), "dependency");
  EXPECT_EQ(s.end(1, End::kFailed), "Start job 3.1 on 0");
  EXPECT_EQ(s.outcome(2), "dependency failed");
  EXPECT_EQ(s.record(2).broken_by, first);
  EXPECT_EQ(s.record(3).broken_by, kNoJob);
}

TEST(Dependencies, ChainsBreakToTheirEnds) {
  Script s;
  const JobId first = s.run();
  JobId last = first;
  for (int i = 0; i < 1000; ++i) {
    JobSpec next = s.spec();
    next.after.push_back({last});
    s.submit(next);
    last = next.id;
  }
  EXPECT_EQ(unfinished(s), 1001u);
  EXPECT_EQ(s.cancel(1), "Cancel job 1.1 asked");
  EXPECT_EQ(s.end(1), "");
  EXPECT_EQ(unfinished(s), 0u);
  EXPECT_EQ(s.outcome(last.value), "dependency failed");
  EXPECT_EQ(s.record(last.value).broken_by, JobId{last.value - 1});
}

TEST(Dependencies, AllOfThemAndKnownFates) {
  Script s(3);
  const JobId a = s.run(), b = s.run();
  JobSpec both = s.spec();
  both.after = {
      {a}, {b, false, Dependency::Need::kAny}, {JobId{77}, false, Dependency::Need::kOk, Dependency::Fate::kMet}};
  EXPECT_EQ(s.submit(both), "");
  EXPECT_EQ(s.end(2, End::kFailed), "");
  EXPECT_EQ(s.end(1), "Start job 3.1 on 0");
  JobSpec broken = s.spec();
  broken.after = {{JobId{78}, false, Dependency::Need::kOk, Dependency::Fate::kBroken}};
  EXPECT_EQ(s.submit(broken), "");
  EXPECT_EQ(s.outcome(4), "dependency failed");
  EXPECT_EQ(s.record(4).broken_by, JobId{78});
}

TEST(Dependencies, OnAWholeArray) {
  Script s(4);
  for (std::uint32_t i = 0; i < 2; ++i) {
    JobSpec element = s.spec();
    element.array = JobId{1};
    element.array_index = i;
    s.run(element);
  }
  JobSpec after = s.spec();
  after.after.push_back({JobId{1}, true});
  EXPECT_EQ(s.submit(after), "");
  EXPECT_EQ(s.end(1), "");
  EXPECT_EQ(s.end(2), "Start job 3.1 on 0");
}

TEST(Dependencies, OneFailedElementOfAnArrayIsEnough) {
  Script s(4);
  for (std::uint32_t i = 0; i < 2; ++i) {
    JobSpec element = s.spec();
    element.array = JobId{1};
    element.array_index = i;
    s.run(element);
  }
  JobSpec ok = s.spec(), any = s.spec();
  ok.after.push_back({JobId{1}, true});
  any.after.push_back({JobId{1}, true, Dependency::Need::kAny});
  s.submit(ok);
  s.submit(any);
  EXPECT_EQ(s.end(1, End::kFailed), "");
  EXPECT_EQ(s.outcome(3), "dependency failed");
  EXPECT_EQ(s.record(3).broken_by, JobId{1});
  EXPECT_EQ(s.reason(4), "dependency");
  // One that comes later, after the failure, is told of the element that failed, not of the last one.
  JobSpec late = s.spec();
  late.after.push_back({JobId{1}, true});
  s.submit(late);
  EXPECT_EQ(s.end(2), "Start job 4.1 on 0");
  EXPECT_EQ(s.outcome(5), "dependency failed");
  EXPECT_EQ(s.record(5).broken_by, JobId{1});
}

// ---- arrays and limits --------------------------------------------------------------------------

TEST(Arrays, AtMostSoManyAtOnce) {
  Script s(4);
  for (std::uint32_t i = 0; i < 4; ++i) {
    JobSpec element = s.spec();
    element.array = JobId{1};
    element.array_index = i;
    element.array_limit = 2;
    EXPECT_EQ(s.submit(element).empty(), i >= 2);
  }
  EXPECT_EQ(s.reason(3), "array_limit");
  EXPECT_EQ(s.submit(), "Start job 5.1 on 2");  // others are not in its way
  EXPECT_EQ(s.end(1), "Start job 3.1 on 0");
  EXPECT_EQ(s.cancel(4), "");
  EXPECT_EQ(s.end(2), "");
}

TEST(Limits, RunningJobsOfAUser) {
  Script s(4);
  s.tell(UserLimitsChanged{1000, UserLimits{2, kUnlimited, kUnlimited, kUnlimited}});
  s.run();
  s.run();
  EXPECT_EQ(s.submit(), "");
  EXPECT_EQ(s.reason(3), "user_limit");
  JobSpec other = s.spec();
  other.uid = 1001;
  EXPECT_EQ(s.submit(other), "Start job 4.1 on 2");
  EXPECT_EQ(s.end(1), "Start job 3.1 on 0");
  EXPECT_EQ(s.submit(), "");
  EXPECT_EQ(s.tell(UserLimitsChanged{1000, std::nullopt}), "Start job 5.1 on 3");
}

TEST(Limits, GpusOfAUserKeepHisOwnOrder) {
  Script s(4);
  s.tell(UserLimitsChanged{1000, UserLimits{kUnlimited, kUnlimited, 2, kUnlimited}});
  s.run();
  EXPECT_EQ(s.submit(2), "");
  EXPECT_EQ(s.submit(1), "");  // would be within the limit, and keep the larger one before it waiting
  EXPECT_EQ(s.reason(2), "user_limit");
  EXPECT_EQ(s.end(1), "Start job 2.1 on 0,1");
  EXPECT_EQ(s.core().refusal(s.spec(3)), Refusal::kGpuLimit);
}

TEST(Limits, CountAJobThatIsToStartNext) {
  Script s(2);
  s.tell(UserLimitsChanged{1000, UserLimits{1, kUnlimited, kUnlimited, kUnlimited}});
  JobSpec other = s.spec(2, 50);
  other.uid = 1001;
  s.run(other);
  EXPECT_EQ(s.submit(1, 60), "");  // has the reservation
  // There is room next to both. But it would reach the limit, and keep the job before it waiting.
  EXPECT_EQ(s.submit(1, 10), "");
  JobSpec stranger = s.spec(1, 10);
  stranger.uid = 1002;
  EXPECT_EQ(s.submit(stranger), "Start job 4.1 on 0");
  EXPECT_EQ(s.end(1), "Start job 2.1 on 0");
  EXPECT_EQ(s.end(2), "Start job 3.1 on 0");
}

TEST(Limits, WaitingJobsOfAUser) {
  Script s;
  s.tell(UserLimitsChanged{1000, UserLimits{kUnlimited, 1, kUnlimited, kUnlimited}});
  s.run();
  s.submit();
  EXPECT_EQ(s.core().refusal(s.spec()), Refusal::kQueueLimit);
  s.cancel(2);
  EXPECT_EQ(s.core().refusal(s.spec()), std::nullopt);
}

TEST(Limits, PriorityIsCappedAgainstOthers) {
  Script s;
  s.tell(UserLimitsChanged{1000, UserLimits{kUnlimited, kUnlimited, kUnlimited, 10}});
  s.run();
  JobSpec boastful = s.spec();
  boastful.priority = 1000;
  s.submit(boastful);
  EXPECT_EQ(s.record(2).priority, 1000);
  EXPECT_EQ(s.record(2).capped, 10);
  s.tell(PriorityAsked{JobId{2}, 11});
  EXPECT_EQ(s.standing(2).priority, 11);
  EXPECT_EQ(s.standing(2).capped, 10);
  s.tell(PriorityAsked{JobId{2}, 11, true});
  EXPECT_EQ(s.record(2).capped, 11);  // an administrator has said so
}

// ---- GPUs that come and go ----------------------------------------------------------------------

TEST(Gpus, DrainedOnesTakeNothingNew) {
  Script s(2);
  s.run();
  s.tell(GpuDrained{GpuIndex{1}});
  JobSpec named = s.spec();
  named.gpus = {1};
  EXPECT_EQ(s.submit(named), "");
  EXPECT_EQ(s.reason(2), "drained");
  EXPECT_EQ(s.submit(), "");
  EXPECT_EQ(s.end(1), "Start job 3.1 on 0");  // the job that wants the drained one is in no other's way
  EXPECT_EQ(s.tell(GpuDrained{GpuIndex{1}, false}), "Start job 2.1 on 1");
}

TEST(Gpus, SickOnesTakeNothingNewUntilTheyAreHealthy) {
  Script s(2);
  s.tell(GpuHealth{GpuIndex{0}, true});
  EXPECT_EQ(s.submit(), "Start job 1.1 on 1");
  JobSpec named = s.spec();
  named.gpus = {0};
  EXPECT_EQ(s.submit(named), "");
  EXPECT_EQ(s.reason(2), "drained");
  EXPECT_EQ(s.tell(GpuDrained{GpuIndex{0}, false}), "") << "the GPU is not drained";
  EXPECT_EQ(s.tell(GpuHealth{GpuIndex{0}, false}), "Start job 2.1 on 0");
}

TEST(Gpus, ARemovedOneComesBack) {
  Script s(2);
  s.run();
  s.tell(GpuRemoved{GpuIndex{1}});
  EXPECT_EQ(s.submit(), "");
  EXPECT_EQ(s.core().refusal(s.spec(2)), Refusal::kTooManyGpus);
  EXPECT_EQ(s.tell(GpuAdded{GpuIndex{1}, 40 * kGiB}), "Start job 2.1 on 1");
}

}  // namespace
}  // namespace gpumux::jobs
