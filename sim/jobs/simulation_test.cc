// SPDX-License-Identifier: Apache-2.0
// Seeds through the simulation of the job queue, the same ones in every build. Two questions need a workload of their
// own: how much each user gets, and whether a job can be kept waiting for ever. A failing seed is repeated by
// gpumux_simjobs with the same options.
#include "sim/jobs/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <queue>
#include <random>

#include "jobs/core/job_core.h"

namespace gpumux::simjobs {
namespace {

using namespace jobs;
using base::GpuIndex;
using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

void run_seeds(Options options, std::uint64_t seeds) {
  std::uint64_t starts = 0, resumes = 0, backfills = 0;
  for (std::uint64_t i = 0; i < seeds; ++i, ++options.seed) {
    const Outcome outcome = simulate(options);
    ASSERT_EQ(outcome.wrong, "") << "seed " << options.seed;
    starts += outcome.starts;
    resumes += outcome.resumes;
    backfills += outcome.backfills;
  }
  EXPECT_GT(starts, 0u);
  EXPECT_GT(backfills, 0u);
  if (!options.plain) {
    EXPECT_GT(resumes, 0u);
  }
}

TEST(Simulation, EverythingGoesWrong) {
  Options options;
  options.jobs = 200;
  run_seeds(options, 25);
}

TEST(Simulation, NothingGoesWrong) {
  Options options;
  options.jobs = 300;
  options.faults = false;
  run_seeds(options, 15);
}

TEST(Simulation, NobodyWaitsBeyondABound) {
  Options options;
  options.jobs = 300;
  options.faults = false;
  options.plain = true;
  run_seeds(options, 15);
}

TEST(Simulation, ManyJobsAndManyUsers) {
  Options options;
  options.seed = 1000;
  options.jobs = 2'000;
  options.gpus = 64;
  options.users = 100;
  options.backlog = 500;
  options.check_every = 2'000;
  run_seeds(options, 1);
}

TEST(Simulation, TheSameSeedIsTheSameRun) {
  Options options;
  options.jobs = 200;
  const Outcome once = simulate(options), again = simulate(options);
  EXPECT_EQ(once.log_hash, again.log_hash);
  options.seed = 2;
  EXPECT_NE(once.log_hash, simulate(options).log_hash);
}

// A machine on which every job runs for as long as it says, and nothing else happens.
class Machine {
 public:
  explicit Machine(std::uint32_t gpus, const QueueSettings& settings) {
    tell(SettingsChanged{settings});
    for (std::uint32_t i = 0; i < gpus; ++i) tell(GpuAdded{GpuIndex{i}, 1000});
    tell(SchedulingHeld{false});
  }
  void submit(std::uint32_t uid, std::uint32_t gpus, base::Duration length) {
    JobSpec spec;
    spec.id = JobId{++last_};
    spec.uid = uid;
    spec.gpu_count = gpus;
    jobs_[spec.id] = {uid, gpus, length};
    tell(Submitted{spec});
  }
  // Until `end`, or the next job has ended; returns the user of the job that has.
  std::uint32_t step() {
    const auto [at, job] = ends_.top();
    ends_.pop();
    now_ = at;
    const Job done = jobs_.at(job);
    jobs_.erase(job);
    had_[done.uid] += done.length * done.gpus;
    tell(Ended{job, 1, End::kOk});
    return done.uid;
  }
  base::TimePoint now() const { return now_; }
  base::Duration had(std::uint32_t uid) { return had_[uid]; }
  bool waits(JobId job) const { return core_.standing(job) && core_.standing(job)->state == JobState::kQueued; }
  JobId last() const { return JobId{last_}; }

 private:
  struct Job {
    std::uint32_t uid = 0, gpus = 0;
    base::Duration length{};
  };
  void tell(const Event& event) {
    std::vector<Command> commands;
    core_.apply(now_, event, commands);
    for (const Command& command : commands) {
      const auto* const start = std::get_if<Start>(&command);
      if (start == nullptr) continue;
      ends_.push({now_ + jobs_.at(start->job).length, start->job});
      tell(StartConfirmed{start->job, 1});
    }
  }
  JobCore core_;
  base::TimePoint now_{seconds(1)};
  std::uint64_t last_ = 0;
  std::map<JobId, Job> jobs_;
  std::map<std::uint32_t, base::Duration> had_;
  std::priority_queue<std::pair<base::TimePoint, JobId>, std::vector<std::pair<base::TimePoint, JobId>>, std::greater<>>
      ends_;
};

// Users who always have work waiting get the same GPU time, whatever the lengths and sizes of their jobs. None is ahead
// of another by more than a few of the longest jobs.
TEST(Fairness, UsersWithWorkGetTheSame) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    std::mt19937_64 random(seed);
    QueueSettings settings;
    settings.half_life = hours(24 * 30);
    constexpr std::uint32_t kGpus = 4, kUsers = 5;
    Machine machine(kGpus, settings);
    const auto submit = [&](std::uint32_t uid) {
      // User 1 has jobs of all GPUs, user 2 short ones, the others long ones.
      const auto length = uid == 2 ? seconds(30 + random() % 60) : seconds(600 + random() % 600);
      machine.submit(uid, uid == 1 ? kGpus : 1, length);
    };
    for (std::uint32_t uid = 1; uid <= kUsers; ++uid) {
      for (int i = 0; i < 8; ++i) submit(uid);
    }
    while (machine.now() < base::TimePoint(hours(200))) submit(machine.step());
    base::Duration least = base::Duration::max(), most{};
    for (std::uint32_t uid = 1; uid <= kUsers; ++uid) {
      least = std::min(least, machine.had(uid));
      most = std::max(most, machine.had(uid));
    }
    // One job of all GPUs is 80 minutes of GPU time at most, and a moment earlier or later counts one of them.
    EXPECT_LT(most - least, 3 * kGpus * minutes(20)) << "seed " << seed << ", of " << least / hours(1) << " h";
  }
}

// A job of all GPUs, and a stream of small ones that never ends: of the same user, of others, with no time limits.
TEST(Fairness, NoStreamOfSmallJobsStarvesALargeOne) {
  for (const Order order : {Order::kFifo, Order::kFair}) {
    QueueSettings settings;
    settings.order = order;
    Machine machine(8, settings);
    std::mt19937_64 random(3);
    std::uint32_t newcomer = 100;
    const auto submit_small = [&] {
      machine.submit(random() % 2 == 0 ? 1 : newcomer++ % 150, 1, seconds(60 + random() % 60));
    };
    for (int i = 0; i < 50; ++i) submit_small();
    machine.submit(1, 8, minutes(10));
    const JobId large = machine.last();
    int ended = 0;
    while (machine.waits(large) && ++ended < 100'000) {
      machine.step();
      submit_small();
    }
    EXPECT_LT(ended, 20'000) << (order == Order::kFair ? "fair" : "fifo");
  }
}

}  // namespace
}  // namespace gpumux::simjobs
