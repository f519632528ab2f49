// SPDX-License-Identifier: Apache-2.0
// Goal: jobs are shown so that they fit every terminal, say why they wait, and cannot write escape sequences to it.
// Method: hand-made jobs at widths from 20 to 200 columns and without a limit.
#include "cli/jobs/job_view.h"

#include <gtest/gtest.h>

#include <clocale>
#include <cstdlib>
#include <ctime>

#include "cli/jobs/queue_state_view.h"

namespace gpumux::cli {
namespace {

using api_client::Job;
using namespace std::chrono_literals;

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kNow = 1'700'000'000 * kSecond;

Output terminal(std::size_t columns) {
  return {.terminal = true, .moves = true, .colours = false, .columns = columns, .rows = 24};
}

Job make_job(std::uint64_t id, const char* name, const char* state) {
  Job job;
  job.id = id;
  job.name = name;
  job.user = "eva";
  job.uid = 1000;
  job.state = state;
  job.gpus_wanted = 1;
  job.submitted_unix_ns = kNow - 600 * kSecond;
  return job;
}

std::vector<Job> busy() {
  Job running = make_job(17, "train", "running");
  running.gpus = {0, 2};
  running.memory_bytes = 20ull << 30;
  running.started_unix_ns = kNow - 125 * kSecond;
  running.time_limit = 90min;
  Job first = make_job(19, "a_very_long_name_that_somebody_gave_to_his_job", "queued");
  first.place = 1;
  first.reason = "gpu_memory";
  first.why = "waits for 20.0 GiB on GPU 0";
  first.gpu_ids = {0};
  Job second = make_job(18, "second", "queued");
  second.place = 2;
  second.why = "other jobs go first";
  second.array = 15;
  second.array_index = 3;
  Job held = make_job(16, "held", "held");
  held.why = "held by eva";
  Job suspended = make_job(5, "old", "suspended");
  return {suspended, held, running, second, first};
}

std::string text_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

class JobViewTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::setlocale(LC_CTYPE, "C.UTF-8");
    ::setenv("TZ", "UTC", 1);
    ::tzset();
  }
};

TEST_F(JobViewTest, WhatRunsComesFirstThenTheQueueInItsOrder) {
  auto jobs = busy();
  sort_for_queue(jobs);
  const auto lines = queue_lines(one_by_one(jobs), std::nullopt, kNow, Output{});
  SCOPED_TRACE(text_of(lines));
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[1].substr(0, 3), "17 ");
  EXPECT_NE(lines[1].find("0,2"), std::string::npos);
  EXPECT_NE(lines[1].find("2m05s"), std::string::npos);
  EXPECT_NE(lines[1].find("1h30m"), std::string::npos);
  EXPECT_EQ(lines[2].substr(0, 2), "5 ");
  EXPECT_EQ(lines[3].substr(0, 3), "19 ");
  EXPECT_NE(lines[3].find("#1"), std::string::npos);
  EXPECT_NE(lines[3].find("(0)"), std::string::npos);
  EXPECT_NE(lines[3].find("waits for 20.0 GiB on GPU 0"), std::string::npos);
  EXPECT_EQ(lines[4].substr(0, 5), "15_3 ") << "an element of an array is called as commands take it";
  EXPECT_EQ(lines[5].substr(0, 3), "16 ");
  EXPECT_EQ(lines[6], "1 running, 2 waiting, 1 suspended, 1 held");
  EXPECT_EQ(text_of(lines).find('\x1b'), std::string::npos);
}

TEST_F(JobViewTest, FitsEveryWidthAndKeepsWhatMattersMost) {
  api_client::QueueState queue;
  queue.paused = true;
  queue.gpus = {{.index = 3, .drained = true, .jobs = {}}, {.index = 4, .sick = true, .jobs = {}}};
  queue.reserved = api_client::Reservation{.job = 19, .gpus = {0, 1}, .starts_in = 5min};
  auto done = busy();
  for (Job& job : done) {
    job.state = "done";
    job.outcome = "dependency failed";
    job.note = "a note that is rather long, as notes happen to be at times, and says why";
  }
  for (std::size_t columns = 20; columns <= 200; ++columns) {
    for (const auto& lines : {queue_lines(one_by_one(busy()), queue, kNow, terminal(columns)),
                              history_lines(one_by_one(done), kNow, terminal(columns))}) {
      for (const std::string& line : lines) EXPECT_LE(display_width(line), columns) << columns << ": " << line;
      EXPECT_NE(text_of(lines).find("17"), std::string::npos) << columns;
    }
  }
  const std::string at80 = text_of(queue_lines(one_by_one(busy()), queue, kNow, terminal(80)));
  EXPECT_NE(at80.find("#1"), std::string::npos) << at80;
  EXPECT_NE(at80.find("waits for"), std::string::npos) << at80;
  EXPECT_NE(at80.find("Paused"), std::string::npos);
  EXPECT_NE(at80.find("GPU 3 is drained"), std::string::npos);
  EXPECT_NE(at80.find("GPU 4 is sick"), std::string::npos);
  EXPECT_NE(at80.find("GPUs 0,1 are kept for job 19, which starts in 5m"), std::string::npos) << at80;
  EXPECT_EQ(text_of(queue_lines(one_by_one(busy()), queue, kNow, terminal(400))),
            text_of(queue_lines(one_by_one(busy()), queue, kNow, Output{})));
}

TEST_F(JobViewTest, AHistoryKeepsTheRunTimeAt80Columns) {
  Job job = make_job(17, "train-model", "done");
  job.outcome = "dependency failed";
  job.started_unix_ns = kNow - 2 * (3600 * kSecond);
  job.ended_unix_ns = kNow;
  job.exit_status = 137;
  job.gpu_seconds = 3600;
  job.peak_memory_bytes = 10ull << 30;
  const auto lines = history_lines(one_by_one({job}), kNow, terminal(80));
  EXPECT_NE(lines[0].find("  TIME"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("2h00m"), std::string::npos) << lines[1];
}

TEST_F(JobViewTest, TheQueueAsAWholeFits80Columns) {
  api_client::QueueState queue;
  queue.settings.order = "fair";
  queue.settings.privacy = "open";
  queue.gpus.resize(2);
  queue.gpus[1].index = 1;
  queue.gpus[1].drained = true;
  queue.gpus[1].capacity_bytes = queue.gpus[1].promised_bytes = 80ull << 30;
  queue.users.resize(1);
  queue.users[0].user = "eva";
  queue.users[0].limits = api_client::UserLimits{2, 10'000, 4, 100};
  const std::string text = text_of(queue_state_lines(queue, terminal(80)));
  EXPECT_NE(text.find("limits of eva: running 2, queued 10000, GPUs 4, priority up to 100"), std::string::npos) << text;
  EXPECT_NE(text.find("OUTSIDE JOBS"), std::string::npos) << text;
  for (const std::string& line : queue_state_lines(queue, terminal(80))) EXPECT_LE(display_width(line), 80u) << line;
}

TEST_F(JobViewTest, AChangeOfTheQueueIsToldOldAndNew) {
  api_client::QueueState before;
  before.settings.limits.running = 8;
  before.gpus.resize(1);
  api_client::QueueState now = before;
  EXPECT_EQ(text_of(queue_change_lines(before, now)), "nothing has changed: it was so before\n");
  now.paused = true;
  now.gpus[0].drained = true;
  now.users.resize(1);
  now.users[0].uid = 1000;
  now.users[0].limits = api_client::UserLimits{2, {}, {}, 100};
  EXPECT_EQ(text_of(queue_change_lines(before, now)),
            "queue: starts jobs -> paused\nGPU 0: takes jobs -> drained\n"
            "limits of 1000: those of all users -> own ones, running 8 -> 2, priority up to unlimited -> 100\n");
  EXPECT_EQ(text_of(queue_change_lines(now, before)),
            "queue: paused -> starts jobs\nGPU 0: drained -> takes jobs\n"
            "limits of 1000: own ones -> those of all users, running 2 -> 8, priority up to 100 -> unlimited\n");
}

TEST_F(JobViewTest, TheJobsOfAGpuAreNamed) {
  api_client::QueueState queue;
  queue.gpus.resize(3);
  queue.gpus[1].index = 1;
  queue.gpus[2].index = 2;
  queue.gpus[0].jobs = {{17, "eva", "train"}, {18, "bob", ""}};
  queue.gpus[1].jobs = {{17, "eva", "train"}};
  queue.reserved = {.job = 19, .gpus = {1}, .starts_in = {}};
  const std::map<std::uint32_t, std::string> told{{0, "jobs: 17 (train) of eva, 18 of bob"},
                                                  {1, "job: 17 (train) of eva; kept for job 19"}};
  EXPECT_EQ(jobs_of_gpus(queue), told);
}

TEST_F(JobViewTest, HostileNamesAreHarmlessEverywhere) {
  const std::string evil = "\x1b[2J\n\x9b\xff";
  auto jobs = busy();
  for (Job& job : jobs) {
    job.name = job.user = job.why = job.reason = job.note = job.state = job.outcome = evil;
    job.arguments = {evil, "a b"};
    job.directory = job.log = job.setup_command = job.on_time_limit = evil;
    job.environment = {evil};
  }
  api_client::QueueState queue;
  queue.unavailable = evil;
  queue.settings.order = queue.settings.privacy = evil;
  queue.users.emplace_back().user = evil;
  queue.jobs = {{evil, 1}};
  std::vector<std::string> all = queue_lines(one_by_one(jobs), queue, kNow, terminal(100));
  for (const auto& more : {history_lines(one_by_one(jobs), kNow, terminal(100)),
                           show_lines(jobs[0], kNow, terminal(100)), queue_state_lines(queue, terminal(100))})
    all.insert(all.end(), more.begin(), more.end());
  all.push_back(format_fields(*parse_fields("name,user,why,note,state"), jobs[0], kNow));
  for (const std::string& line : all) EXPECT_EQ(line.find_first_of("\x1b\n\x9b\xff"), std::string::npos) << line;
}

TEST_F(JobViewTest, OfAnotherUsersHiddenJobOnlyWhatIsThereIsShown) {
  Job job;
  job.id = 3;
  job.user = "bob";
  job.state = "running";
  job.gpus = {1};
  const auto lines = queue_lines(one_by_one({job}), std::nullopt, kNow, Output{});
  EXPECT_EQ(lines[0].find("NAME"), std::string::npos) << "a column without anything in it is left out";
  EXPECT_NE(lines[1].find("bob"), std::string::npos);
}

TEST_F(JobViewTest, OneJobInFull) {
  Job job = busy()[2];
  job.arguments = {"python", "train.py", "--text", "it's $HOME", ""};
  job.log = "/data/17.log";
  job.note = "cannot be suspended: no host memory";
  job.limit_in = -30s;
  job.attempt = 2;
  job.after = {{5, "ok"}, {6, "any"}};
  const std::string text = text_of(show_lines(job, kNow, Output{}));
  SCOPED_TRACE(text);
  for (const char* said :
       {"state           running", "command         python train.py --text 'it'\\''s $HOME' ''", "/data/17.log",
        "cannot be suspended", "1h30m (over since 30s)", "attempt         2", "ok:5, any:6",
        "asked for       1 GPU, 20.0 GiB on it", "started         2023-11-14 22:11:15"})
    EXPECT_NE(text.find(said), std::string::npos) << said;
}

TEST_F(JobViewTest, TheTimeThatIsLeftIsShownWhoeverSetTheLimit) {
  Job job = make_job(17, "train", "running");
  job.started_unix_ns = kNow - 60 * kSecond;
  job.limit_in = 59min;
  EXPECT_NE(text_of(queue_lines(one_by_one({job}), std::nullopt, kNow, Output{})).find("59m00s left"),
            std::string::npos);
  EXPECT_NE(text_of(show_lines(job, kNow, Output{})).find("time limit      the queue's (59m00s left)"),
            std::string::npos)
      << text_of(show_lines(job, kNow, Output{}));
  job.time_limit = 10h;
  EXPECT_NE(text_of(show_lines(job, kNow, Output{})).find("10h (59m00s left)"), std::string::npos)
      << "the queue's is the smaller one";
  job.limit_in.reset();
  EXPECT_NE(text_of(queue_lines(one_by_one({job}), std::nullopt, kNow, Output{})).find("10h"), std::string::npos);
}

TEST_F(JobViewTest, TheWaitingLineHasPlaceAndReason) {
  auto jobs = busy();
  EXPECT_EQ(waiting_text(jobs[4]), "job 19 waits: place 1; waits for 20.0 GiB on GPU 0");
  EXPECT_EQ(waiting_text(jobs[1]), "job 16 waits: held by eva");
  jobs[4].starts_in = 20min;
  EXPECT_EQ(waiting_text(jobs[4]), "job 19 waits: place 1; waits for 20.0 GiB on GPU 0; starts within 20m00s");
  EXPECT_EQ(waiting_text(make_job(1, "x", "starting")), "job 1 is starting");
  Job others = make_job(1, "", "queued");
  others.reason = "gpu_memory";
  EXPECT_EQ(job_reason(others), "GPU memory") << "in words, where that is all that may be seen";
  others.reason = "user_limit";
  EXPECT_EQ(job_reason(others), "user limit");
}

std::vector<Job> array_of(std::size_t count) {
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < count; ++i) {
    Job job = make_job(51 + i, "sweep", i < 2 ? "running" : "queued");
    job.array = 51;
    job.array_index = i;
    job.array_limit = 2;
    job.command = "./sweep.sh --all";
    if (i < 2) job.gpus = {static_cast<std::uint32_t>(i)};
    if (i < 2) job.started_unix_ns = kNow - 60 * kSecond;
    if (i >= 2) job.why = "array limit reached (2 of 2 running)";
    jobs.push_back(job);
  }
  return jobs;
}

TEST_F(JobViewTest, AnArrayIsOneLine) {
  auto jobs = array_of(200);
  jobs.insert(jobs.begin() + 100, make_job(7, "between", "queued"));
  const auto lines = queue_lines(by_array(jobs), std::nullopt, kNow, Output{});
  SCOPED_TRACE(text_of(lines));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1].substr(0, 13), "51_[0-199%2] ");
  for (const char* said :
       {"2 running, 198 waiting", "0,1", "60s", "array limit reached (2 of 2 running)", "./sweep.sh"})
    EXPECT_NE(lines[1].find(said), std::string::npos) << said;
  EXPECT_EQ(lines[2].substr(0, 2), "7 ");
  EXPECT_EQ(lines[3], "2 running, 199 waiting");
  EXPECT_EQ(queue_lines(one_by_one(jobs), std::nullopt, kNow, Output{}).size(), 203u);
  EXPECT_EQ(group_label({array_of(4)[3]}), "51_3") << "the last that is left";
}

TEST_F(JobViewTest, TheHistoryOfAnArraySumsItsEndsUp) {
  auto jobs = array_of(4);
  for (Job& job : jobs) {
    job.state = "done";
    job.outcome = job.array_index == 3 ? "failed" : "ok";
    job.exit_status = job.array_index == 3 ? 7 : 0;
    job.started_unix_ns = kNow - 100 * kSecond;
    job.ended_unix_ns = kNow - static_cast<std::int64_t>(*job.array_index) * 10 * kSecond;
  }
  const auto lines = history_lines(by_array(jobs), kNow, Output{});
  SCOPED_TRACE(text_of(lines));
  ASSERT_EQ(lines.size(), 2u);
  for (const char* said : {"51_[0-3%2]", "3 done, 1 failed", "0,7", "2023-11-14 22:13:20", "1m40s", "./sweep.sh --all"})
    EXPECT_NE(lines[1].find(said), std::string::npos) << said;
}

TEST_F(JobViewTest, IndicesAreRanges) {
  EXPECT_EQ(index_ranges({0, 1, 2, 3}), "0-3");
  EXPECT_EQ(index_ranges({0, 4, 8, 12}), "0-12:4");
  EXPECT_EQ(index_ranges({1, 3, 7, 8, 9, 20}), "1,3,7-9,20");
  EXPECT_EQ(index_ranges({5}), "5");
  std::vector<std::uint64_t> odd;
  for (std::uint64_t i = 0; i < 100; ++i) odd.push_back(i * i);
  const std::string text = index_ranges(odd);
  EXPECT_LT(text.size(), 40u);
  EXPECT_TRUE(text.ends_with(",...")) << text;
}

TEST_F(JobViewTest, AReasonIsNeverCutForAnotherColumn) {
  auto jobs = busy();
  const std::string why = "GPU 0 has 68.0 MiB free of 1.0 GiB: big-1 and big-2 use 956 MiB";
  jobs[4].why = why;
  jobs[4].command = "python3 train.py --epochs 3 --data /data/eva/images --out /data/eva/results";
  sort_for_queue(jobs);
  for (const std::size_t columns : {70u, 80u, 100u, 120u, 160u, 200u}) {
    const std::string text = text_of(queue_lines(one_by_one(jobs), std::nullopt, kNow, terminal(columns)));
    EXPECT_NE(text.find(why), std::string::npos) << columns << "\n" << text;
    EXPECT_NE(text.find("a_very"), std::string::npos) << columns << "\n" << text;
  }
  const std::string at80 = text_of(queue_lines(one_by_one(jobs), std::nullopt, kNow, terminal(80)));
  EXPECT_NE(at80.find("\n    " + why + "\n"), std::string::npos) << "below its job\n" << at80;
  const std::string at240 = text_of(queue_lines(one_by_one(jobs), std::nullopt, kNow, terminal(240)));
  EXPECT_NE(at240.find("--epochs 3"), std::string::npos) << at240;
}

TEST_F(JobViewTest, HowAJobEndedIsItsState) {
  Job failed = make_job(17, "train", "done");
  failed.outcome = "failed";
  failed.exit_status = 3;
  Job good = make_job(18, "train", "done");
  good.outcome = "ok";
  good.exit_status = 0;
  const auto lines = queue_lines(one_by_one({failed, good}), std::nullopt, kNow, Output{});
  SCOPED_TRACE(text_of(lines));
  EXPECT_NE(lines[1].find("failed"), std::string::npos);
  EXPECT_NE(lines[1].find("exit status 3"), std::string::npos);
  EXPECT_EQ(lines[1].find("done"), std::string::npos);
  EXPECT_NE(lines[2].find("done"), std::string::npos);
  EXPECT_EQ(lines[3], "0 running, 0 waiting, 1 done, 1 failed");
  EXPECT_EQ(finished_text(failed), "has ended already (failed, exit status 3)");
  EXPECT_EQ(finished_text(good), "has ended already (ok)");
}

TEST_F(JobViewTest, AnExpectedStartIsShownWithItsSpread) {
  Job job = make_job(18, "next", "queued");
  EXPECT_EQ(text_of(queue_lines(one_by_one({job}), std::nullopt, kNow, Output{})).find("STARTS"), std::string::npos);
  job.starts_in = 20min;
  EXPECT_NE(text_of(queue_lines(one_by_one({job}), std::nullopt, kNow, Output{})).find("within 20m00s"),
            std::string::npos);
  EXPECT_NE(text_of(show_lines(job, kNow, Output{})).find("expected start  within 20m00s"), std::string::npos)
      << text_of(show_lines(job, kNow, Output{}));
  job.starts_in = 0s;
  EXPECT_NE(text_of(queue_lines(one_by_one({job}), std::nullopt, kNow, Output{})).find("soon"), std::string::npos);
}

TEST_F(JobViewTest, FieldsForPrograms) {
  const auto fields = parse_fields("id,label,name,state,place,memory,time-limit,started,elapsed,gpus,exit");
  ASSERT_TRUE(fields) << fields.error().message();
  auto jobs = busy();
  jobs[2].name = "a\tb";
  EXPECT_EQ(format_fields(*fields, jobs[2], kNow), "17\t17\ta b\trunning\t\t21474836480\t5400\t1699999875\t125\t0,2\t");
  EXPECT_EQ(format_fields(*fields, jobs[3], kNow), "18\t15_3\tsecond\tqueued\t2\t\t\t\t600\t\t");
  Job never = make_job(19, "never", "done");
  never.submitted_unix_ns = kNow - 60'000'000'000;
  never.ended_unix_ns = kNow;
  EXPECT_EQ(format_fields(*parse_fields("id,started,elapsed"), never, kNow), "19\t\t") << "it has not run";
  for (const char* wrong : {"", "id,", "%i", "ids", "interactive"}) EXPECT_FALSE(parse_fields(wrong)) << wrong;
  EXPECT_NE(parse_fields("stat").error().what.find("did you mean state?"), std::string::npos);
}

}  // namespace
}  // namespace gpumux::cli
