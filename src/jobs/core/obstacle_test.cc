// SPDX-License-Identifier: Apache-2.0
// Goal: the core says in numbers what keeps a job waiting, and when it can be expected to start.
#include "jobs/core/obstacle.h"

#include "jobs/core/script.h"

namespace gpumux::jobs {
namespace {

using namespace std::chrono_literals;

template <class Kind>
Kind obstacle(Script& s, std::uint64_t job) {
  const Obstacle found = s.core().obstacle(JobId{job}, s.standing(job));
  const Kind* const kind = std::get_if<Kind>(&found);
  EXPECT_NE(kind, nullptr) << "job " << job << " waits for something else: " << found.index();
  return kind != nullptr ? *kind : Kind();
}

JobSpec limited(Script& s, Duration limit) {
  JobSpec spec = s.spec();
  spec.time_limit = limit;
  return spec;
}

TEST(Obstacles, RoomIsOfTheGpuThatIsKeptOrNamed) {
  Script s(2);
  s.run(1, 60);
  s.run(1, 50);
  s.tell(ForeignUse{GpuIndex{1}, 10 * kGiB});
  JobSpec named = s.spec(1, 40);
  named.gpus = {1};
  s.submit(named);
  auto room = obstacle<WaitsForRoom>(s, 3);
  EXPECT_EQ(room.gpu, GpuIndex{1});
  EXPECT_EQ(room.room, 80 * kGiB);
  EXPECT_EQ(room.free, 20 * kGiB);
  EXPECT_EQ(room.promised, 50 * kGiB);
  EXPECT_EQ(room.foreign, 10 * kGiB);
  EXPECT_EQ(room.jobs, std::vector<JobId>{JobId{2}});
  EXPECT_FALSE(room.is_alone);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(s.core().obstacle(JobId{1}, s.standing(1)))) << "it runs";
}

TEST(Obstacles, AJobThatSharesWithNobodyIsTold) {
  Script s;
  s.run(1, 10);
  JobSpec alone = s.spec(1, 10);
  alone.exclusive = true;
  s.submit(alone);
  const auto room = obstacle<WaitsForRoom>(s, 2);
  EXPECT_TRUE(room.is_alone);
  EXPECT_EQ(room.free, 70 * kGiB);
}

TEST(Obstacles, JobsThatGoFirstAreCounted) {
  Script s;
  s.run();
  for (int i = 0; i < 3; ++i) s.submit();
  const auto others = obstacle<WaitsForOthers>(s, 4);
  EXPECT_EQ(others.first, JobId{2});
  EXPECT_EQ(others.before, 2u);
}

// Of two GPUs, each with a job that waits for it, and one more behind the second.
TEST(Obstacles, AJobThatWantsAnotherGpuKeepsNoJobWaiting) {
  for (const Order order : {Order::kFifo, Order::kFair}) {
    QueueSettings settings;
    settings.order = order;
    Script s(2, settings);
    const auto on = [&](std::uint32_t gpu, std::uint32_t uid) {
      JobSpec spec = s.spec();
      spec.gpus = {gpu};
      spec.uid = uid;
      return spec;
    };
    s.run(on(0, 1000));
    s.run(on(1, 1001));
    s.submit(on(0, 1000));
    s.submit(on(1, 1001));
    EXPECT_EQ(s.reason(3), "gpu_memory");
    EXPECT_EQ(s.reason(4), "gpu_memory");
    const auto room = obstacle<WaitsForRoom>(s, 4);
    EXPECT_EQ(room.gpu, GpuIndex{1});
    EXPECT_EQ(room.jobs, std::vector<JobId>{JobId{2}});
    s.submit(on(1, 1002));
    if (order == Order::kFifo) {
      const auto others = obstacle<WaitsForOthers>(s, 5);
      EXPECT_EQ(others.first, JobId{4});
      EXPECT_EQ(others.before, 1u);
      EXPECT_EQ(s.place(5), 3u) << "the place is one in the whole queue";
    }
    // A job that takes any GPU may take this one.
    JobSpec any = s.spec();
    any.uid = 1003;
    s.submit(any);
    s.submit(on(0, 1003));
    EXPECT_EQ(s.reason(7), "priority");
  }
}

TEST(Obstacles, OfDependenciesTheFirstThatIsNotDone) {
  Script s(4);
  s.run();
  s.run();
  s.run();
  JobSpec after = s.spec();
  after.after = {{JobId{1}}, {JobId{2}}, {JobId{3}}};
  s.submit(after);
  s.end(1);
  const auto end = obstacle<WaitsForEnd>(s, 4);
  EXPECT_EQ(end.job, JobId{2});
  EXPECT_FALSE(end.is_array);
  EXPECT_EQ(end.others, 1u);
}

TEST(Obstacles, LimitsHaveTheirNumbers) {
  Script s(4);
  s.tell(UserLimitsChanged{1000, UserLimits{kUnlimited, kUnlimited, 3, kUnlimited}});
  s.run(2);
  s.submit(2);
  auto limit = obstacle<WaitsForLimit>(s, 2);
  EXPECT_EQ(limit.of, WaitsForLimit::Of::kGpus);
  EXPECT_EQ(limit.used, 2u);
  EXPECT_EQ(limit.limit, 3u);
  s.tell(UserLimitsChanged{1000, UserLimits{1, kUnlimited, kUnlimited, kUnlimited}});
  limit = obstacle<WaitsForLimit>(s, 2);
  EXPECT_EQ(limit.of, WaitsForLimit::Of::kJobs);
  EXPECT_EQ(limit.used, 1u);
  for (std::uint32_t i = 0; i < 2; ++i) {
    JobSpec element = s.spec();
    element.uid = 1001;
    element.array = JobId{3};
    element.array_index = i;
    element.array_limit = 1;
    s.submit(element);
  }
  limit = obstacle<WaitsForLimit>(s, 4);
  EXPECT_EQ(limit.of, WaitsForLimit::Of::kElements);
  EXPECT_EQ(limit.used, 1u);
}

TEST(Obstacles, ALimitThatAJobReachesForWhichGpusAreKeptNamesThatJob) {
  Script s(2);
  s.tell(UserLimitsChanged{1000, UserLimits{kUnlimited, kUnlimited, 2, kUnlimited}});
  JobSpec other = s.spec(1);
  other.uid = 1001;
  s.run(other);
  s.submit(2);
  s.submit(1);
  EXPECT_EQ(s.reason(2), "gpu_memory");
  EXPECT_EQ(s.reason(3), "user_limit");
  EXPECT_EQ(s.place(3), 0u);
  auto limit = obstacle<WaitsForLimit>(s, 3);
  EXPECT_EQ(limit.of, WaitsForLimit::Of::kGpus);
  EXPECT_EQ(limit.used, 0u);
  EXPECT_EQ(limit.limit, 2u);
  EXPECT_EQ(limit.kept_for, JobId{2});
  s.tell(UserLimitsChanged{1000, UserLimits{1, kUnlimited, kUnlimited, kUnlimited}});
  limit = obstacle<WaitsForLimit>(s, 3);
  EXPECT_EQ(limit.of, WaitsForLimit::Of::kJobs);
  EXPECT_EQ(limit.kept_for, JobId{2});
  s.end(1);
  EXPECT_EQ(obstacle<WaitsForLimit>(s, 3).kept_for, kNoJob) << "job 2 runs, and reaches the limit by itself";
}

TEST(Obstacles, AJobBehindOneThatALimitKeepsWaitingNamesIt) {
  Script s(4);
  s.tell(UserLimitsChanged{1000, UserLimits{kUnlimited, kUnlimited, 2, kUnlimited}});
  s.run();
  s.submit(2);
  s.submit(1);
  EXPECT_EQ(s.reason(2), "user_limit");
  const auto others = obstacle<WaitsForOthers>(s, 3);
  EXPECT_EQ(others.first, JobId{2});
  EXPECT_EQ(others.before, 1u);
  EXPECT_EQ(s.place(3), 0u);
}

TEST(Obstacles, GpusThatTakeNoJobsAreNamed) {
  Script s(3);
  s.submit(s.spec(3));
  s.end(1);
  s.tell(GpuDrained{GpuIndex{1}});
  s.submit(s.spec(3));
  const auto gpus = obstacle<WaitsForGpus>(s, 2);
  EXPECT_EQ(gpus.closed, GpuSet({1}));
  EXPECT_EQ(gpus.usable, 2u);
}

// A GPU that was there when the job was submitted, and is not after a reboot.
TEST(Obstacles, AGpuThatIsGoneIsNamed) {
  Script s(2);
  JobSpec spec = s.spec();
  spec.id = JobId{1};
  spec.gpus = GpuSet({1, 2});
  s.tell(Restored{spec, JobState::kQueued, 0, {}, {}});
  EXPECT_EQ(obstacle<WaitsForGpus>(s, 1).closed, GpuSet({2}));
}

TEST(Obstacles, ARetryHasItsTime) {
  Script s;
  s.submit();
  s.tell(StartFailed{JobId{1}, 1});
  EXPECT_EQ(obstacle<WaitsForMoment>(s, 1).at, s.now() + 1s);
}

TEST(ExpectedStarts, FollowFromTheTimeLimitsOfThoseThatGoFirst) {
  Script s;
  s.run(limited(s, 10min));
  s.submit(limited(s, 5min));
  s.submit();
  s.submit(limited(s, 1min));
  const auto starts = s.core().expected_starts();
  ASSERT_EQ(starts.size(), 2u) << "nobody knows when job 3 ends";
  EXPECT_EQ(starts.at(JobId{2}), s.now() + 10min);
  EXPECT_EQ(starts.at(JobId{3}), s.now() + 15min);
}

TEST(ExpectedStarts, ThereIsNoneWithoutABasis) {
  Script s;
  s.run();
  s.submit(limited(s, 5min));
  s.submit(limited(s, 5min));
  EXPECT_TRUE(s.core().expected_starts().empty());
}

TEST(ExpectedStarts, CountRoomForSeveral) {
  Script s(2);
  JobSpec first = s.spec(1, 60);
  first.time_limit = 10min;
  JobSpec second = s.spec(1, 60);
  second.time_limit = 20min;
  s.run(first);
  s.run(second);
  for (const std::uint64_t gib : {40ull, 40ull, 40ull}) {
    JobSpec spec = s.spec(1, gib);
    spec.time_limit = 30min;
    s.submit(spec);
  }
  const auto starts = s.core().expected_starts();
  EXPECT_EQ(starts.at(JobId{3}), s.now() + 10min);
  EXPECT_EQ(starts.at(JobId{4}), s.now() + 10min) << "next to job 3";
  EXPECT_EQ(starts.at(JobId{5}), s.now() + 20min);
}

TEST(ExpectedStarts, OfAnArrayAsManyAsMayRun) {
  Script s(2);
  s.run(limited(s, 10min));
  s.run(limited(s, 10min));
  for (std::uint32_t i = 0; i < 3; ++i) {
    JobSpec element = limited(s, 5min);
    element.array = JobId{3};
    element.array_index = i;
    element.array_limit = 1;
    s.submit(element);
  }
  const auto starts = s.core().expected_starts();
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts.begin()->first, JobId{3});
}

TEST(ExpectedStarts, UsersTakeTurnsInThem) {
  QueueSettings fair;
  Script s(1, fair);
  s.run(limited(s, 10min));
  for (const std::uint32_t uid : {1000u, 1000u, 1001u}) {
    JobSpec spec = limited(s, 5min);
    spec.uid = uid;
    s.submit(spec);
  }
  const auto starts = s.core().expected_starts();
  EXPECT_EQ(starts.at(JobId{4}), s.now() + 10min) << "user 1000 has had the GPU";
  EXPECT_EQ(starts.at(JobId{2}), s.now() + 15min);
  EXPECT_EQ(starts.at(JobId{3}), s.now() + 20min);
}

}  // namespace
}  // namespace gpumux::jobs
