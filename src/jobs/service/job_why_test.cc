// SPDX-License-Identifier: Apache-2.0
// Goal: a sentence about a job that waits, or is refused, names the thing and the number. It has no name that the
// viewer may not see.
#include "jobs/service/job_why.h"

#include <gtest/gtest.h>

#include <ctime>

namespace gpumux::jobs {
namespace {

using base::GpuIndex;
using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = 1024 * kMiB;

const NamedJob kPrep{.label = "6", .name = "prep"};
const NamedJob kElement{.label = "51_2", .name = "sweep"};
const NamedJob kUnnamed{.label = "7", .name = ""};

std::string why(WaitReason reason, const WhyFacts& facts, const JobSpec& spec = {}) {
  store::StoredJob job;
  job.spec = spec;
  return why_text(job, reason, facts);
}

TEST(Why, NamesTheJobsThatAreWaitedFor) {
  WhyFacts facts;
  facts.jobs = {.named = {kPrep}, .others = 0};
  EXPECT_EQ(why(WaitReason::kDependency, facts), "waits for job 6 (prep)");
  EXPECT_EQ(why(WaitReason::kPriority, facts), "job 6 (prep) goes first");
  facts.jobs.others = 3;
  EXPECT_EQ(why(WaitReason::kDependency, facts), "waits for job 6 (prep) and 3 others");
  EXPECT_EQ(why(WaitReason::kPriority, facts), "job 6 (prep) and 3 others go first");
  facts.jobs = {.named = {{.label = "51", .name = "sweep", .is_array = true}}, .others = 0};
  EXPECT_EQ(why(WaitReason::kDependency, facts), "waits for array 51 (sweep)");
  facts.jobs = {.named = {kUnnamed}, .others = 1};
  EXPECT_EQ(why(WaitReason::kPriority, facts), "job 7 and 1 other go first");
  facts.jobs = {.named = {}, .others = 2};
  EXPECT_EQ(why(WaitReason::kPriority, facts), "2 other jobs go first");
  EXPECT_EQ(why(WaitReason::kDependency, facts), "waits for another user's job");
}

TEST(Why, NamesTheGpuAndThoseThatHaveIt) {
  WhyFacts facts;
  WaitsForRoom room{GpuIndex{1}, kGiB, 68 * kMiB, 0, 956 * kMiB, {}, false};
  facts.obstacle = room;
  facts.programs = {.named = {"big-1", "big-2"}, .others = 0};
  EXPECT_EQ(why(WaitReason::kGpuMemory, facts), "GPU 1 has 68.0 MiB free of 1.0 GiB: big-1 and big-2 use 956 MiB");
  room.promised = 500 * kMiB;
  room.foreign = 456 * kMiB;
  room.jobs = {JobId{6}};
  facts.obstacle = room;
  facts.jobs = {.named = {kPrep}, .others = 0};
  facts.programs = {.named = {}, .others = 1};
  EXPECT_EQ(why(WaitReason::kGpuMemory, facts),
            "GPU 1 has 68.0 MiB free of 1.0 GiB: job 6 (prep) has 500 MiB, other programs use 456 MiB");
  room.foreign = 0;
  room.jobs = {JobId{6}, JobId{53}, JobId{54}};
  facts.obstacle = room;
  facts.jobs = {.named = {kPrep, kElement}, .others = 1};
  EXPECT_EQ(why(WaitReason::kGpuMemory, facts),
            "GPU 1 has 68.0 MiB free of 1.0 GiB: job 6 (prep), job 51_2 (sweep) and 1 other have 500 MiB");
  facts.jobs = {.named = {}, .others = 1};
  EXPECT_EQ(why(WaitReason::kGpuMemory, facts), "GPU 1 has 68.0 MiB free of 1.0 GiB: another user's job has 500 MiB");
  room.is_alone = true;
  facts.obstacle = room;
  facts.jobs = {.named = {kPrep}, .others = 0};
  EXPECT_EQ(why(WaitReason::kGpuMemory, facts), "GPU 1 is not shared (--exclusive): job 6 (prep) has it");
}

TEST(Why, NamesTheNumbers) {
  WhyFacts facts;
  facts.obstacle = WaitsForLimit{WaitsForLimit::Of::kElements, 2, 2};
  EXPECT_EQ(why(WaitReason::kArrayLimit, facts), "array limit reached (2 of 2 running)");
  facts.obstacle = WaitsForLimit{WaitsForLimit::Of::kJobs, 4, 4};
  EXPECT_EQ(why(WaitReason::kUserLimit, facts), "user limit reached (4 of 4 running)");
  facts.obstacle = WaitsForLimit{WaitsForLimit::Of::kJobs, 3, 4, JobId{6}, 1, 2};
  facts.jobs = {.named = {kPrep}, .others = 0};
  EXPECT_EQ(why(WaitReason::kUserLimit, facts), "user limit reached (3 of 4 running, 1 to start: job 6 (prep))");
  facts.jobs = {};
  JobSpec spec;
  spec.gpu_count = 2;
  facts.obstacle = WaitsForLimit{WaitsForLimit::Of::kGpus, 3, 4};
  EXPECT_EQ(why(WaitReason::kUserLimit, facts, spec), "user limit reached (3 of 4 GPUs in use, 2 asked for)");
  facts.obstacle = WaitsForLimit{WaitsForLimit::Of::kGpus, 1, 4, JobId{6}, 1, 2};
  EXPECT_EQ(why(WaitReason::kUserLimit, facts, spec),
            "user limit reached (1 of 4 GPUs in use, 2 kept for 1 other job, 2 asked for)");
  std::get<WaitsForLimit>(facts.obstacle).kept_jobs = 2;
  facts.jobs = {.named = {kPrep}, .others = 1};
  EXPECT_EQ(why(WaitReason::kUserLimit, facts, spec),
            "user limit reached (1 of 4 GPUs in use, 2 kept for job 6 (prep) and 1 other, 2 asked for)");
  facts.jobs = {};
  facts.obstacle = WaitsForGpus{{1}, 1};
  facts.closed = {"GPU 1 is drained"};
  EXPECT_EQ(why(WaitReason::kDrained, facts, spec), "2 GPUs asked for, 1 takes jobs: GPU 1 is drained");
  spec.gpus = {1};
  EXPECT_EQ(why(WaitReason::kDrained, facts, spec), "GPU 1 is drained");
  facts.asked_at = base::TimePoint(10s);
  facts.obstacle = WaitsForMoment{base::TimePoint(13500ms)};
  facts.note = "no memory";
  EXPECT_EQ(why(WaitReason::kRetry, facts), "could not be started (next try in 4s): no memory");
  spec.id = JobId{17};
  EXPECT_EQ(why(WaitReason::kHeld, facts, spec), "held until `gpumux release 17`");
  spec.array = JobId{15};
  spec.array_index = 2;
  EXPECT_EQ(why(WaitReason::kHeld, facts, spec), "held until `gpumux release 15_2`");
  facts.is_suspended = true;
  EXPECT_EQ(why(WaitReason::kHeld, facts, spec), "suspended until `gpumux resume 15_2`");
}

TEST(Why, NamesTheTimeAtWhichAJobBegins) {
  store::StoredJob job;
  job.begin_at = 1'800'000'000'000'000'000;
  const std::time_t seconds = 1'800'000'000;
  std::tm parts{};
  ASSERT_NE(::localtime_r(&seconds, &parts), nullptr);
  char text[64];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S %Z", &parts);
  EXPECT_EQ(why_text(job, WaitReason::kBegin, {}), std::string("begins at ") + text);
}

TEST(Refusals, NameWhatThisMachineHas) {
  JobCore machine;
  std::vector<Command> commands;
  machine.apply(base::TimePoint(1h), GpuAdded{GpuIndex{0}, kGiB}, commands);
  machine.apply(base::TimePoint(1h), GpuAdded{GpuIndex{1}, 4 * kGiB}, commands);
  const auto refused = [&](Refusal refusal, const JobSpec& spec) {
    return describe(refusal, spec, UserLimits{}, machine).message();
  };
  JobSpec spec;
  spec.gpu_count = 5;
  EXPECT_EQ(refused(Refusal::kTooManyGpus, spec), "5 GPUs asked for, this machine has 2");
  spec.gpu_count = 2;
  spec.memory = 100 * kGiB;
  EXPECT_EQ(refused(Refusal::kTooMuchMemory, spec), "100 GiB asked for on each GPU, the largest here has 4.0 GiB");
  spec.memory = 2 * kGiB;
  EXPECT_EQ(refused(Refusal::kTooMuchMemory, spec), "2.0 GiB asked for on each of 2 GPUs, 1 here has that much");
  spec.gpus = {0};
  EXPECT_EQ(refused(Refusal::kTooMuchMemory, spec), "2.0 GiB asked for on each GPU, GPU 0 has 1.0 GiB");
  spec.gpus = {0, 9};
  EXPECT_EQ(refused(Refusal::kUnknownGpu, spec), "GPU 9: this machine has GPUs 0 and 1");
  spec.gpus = {7, 8, 9};
  EXPECT_EQ(refused(Refusal::kUnknownGpu, spec), "GPUs 7, 8 and 9: this machine has GPUs 0 and 1");
}

TEST(Refusals, OfAChangeNameTheJobAndTheLimits) {
  JobCore machine;
  std::vector<Command> commands;
  machine.apply(base::TimePoint(1h), GpuAdded{GpuIndex{0}, kGiB}, commands);
  JobSpec spec;
  spec.id = JobId{17};
  spec.time_limit = 1h;
  machine.apply(base::TimePoint(1h), Submitted{spec}, commands);
  const auto refused = [&](Refusal refusal) { return describe(refusal, spec, UserLimits{}, machine).message(); };
  EXPECT_EQ(refused(Refusal::kStarted), "job 17 has started: only its priority and its time limit can change");
  spec.time_limit = 2h;
  EXPECT_EQ(refused(Refusal::kLonger),
            "job 17 has started with a time limit of 1h, 2h asked for: only an administrator makes it longer");
  spec.time_limit = kNoLimit;
  EXPECT_EQ(refused(Refusal::kLonger),
            "job 17 has started with a time limit of 1h, none asked for: only an administrator makes it longer");
}

// Nothing starts before the daemon knows what other programs use. That is no pause of an administrator's.
TEST(Why, ADaemonThatStartsIsNoPausedQueue) {
  const store::StoredJob job;
  WhyFacts facts;
  EXPECT_EQ(reason_word(WaitReason::kPaused, facts), "starting");
  EXPECT_EQ(why_text(job, WaitReason::kPaused, facts), "the daemon is starting");
  facts.is_paused = true;
  EXPECT_EQ(reason_word(WaitReason::kPaused, facts), "paused");
  EXPECT_EQ(why_text(job, WaitReason::kPaused, facts), "the queue is paused");
}

}  // namespace
}  // namespace gpumux::jobs
