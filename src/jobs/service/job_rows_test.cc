// SPDX-License-Identifier: Apache-2.0
// Goal: what the store has of a job is right at each moment, also when the store takes nothing for a while. Method: a
// real queue, and a trigger in its database that refuses rows.
#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "jobs/service/job_queue_test_support.h"

namespace gpumux::jobs {
namespace {

// A store that takes no rows of jobs for a while: each commit with one fails at once.
class RefusingStore : public Queue {
 protected:
  void exec(const std::string& sql) {
    SQLite::Database(folder_.path() + "/state/jobs.db", SQLite::OPEN_READWRITE, 5000).exec(sql);
  }
  // `what`: "INSERT", "UPDATE". `when`: rows that are refused; empty: all.
  void refuse(const std::string& what, const std::string& when = "") {
    exec("CREATE TRIGGER refused BEFORE " + what + " ON jobs " + when +
         " BEGIN SELECT RAISE(ABORT, 'by the test'); END");
  }
  void take_again() { exec("DROP TRIGGER refused"); }

  // kNoJob: it was refused.
  JobId submit(const std::shared_ptr<const Submission>& made) {
    std::optional<JobId> job;
    queue_->submit(
        made, [&job](const base::Result<JobQueue::Submitted>& submitted) { job = submitted ? submitted->id : kNoJob; });
    EXPECT_TRUE(run_until([&job] { return job.has_value(); }));
    return job.value_or(kNoJob);
  }
  // Whether it is stored.
  bool change(JobId job, const JobQueue::Change& change) {
    std::optional<bool> is_stored;
    queue_->change({job}, change, [&is_stored](const auto& changed) { is_stored = changed.has_value(); });
    EXPECT_TRUE(run_until([&is_stored] { return is_stored.has_value(); }));
    return is_stored.value_or(false);
  }
  bool change(JobId job, JobQueue::Change::Kind kind) { return change(job, {.kind = kind}); }
  bool wish(JobId job, const std::string& wishes) { return change(job, wish(wishes)); }
  static JobQueue::Change wish(const std::string& wishes) {
    return {.kind = JobQueue::Change::Kind::kWishes, .wishes = parse_wishes(wishes).value()};
  }
  store::StoredJob stored(JobId job) {
    const auto found = queue_->store()->find(job);
    EXPECT_TRUE(found) << found.error().message();
    return found.value_or(store::StoredJob());
  }
  void open_again() {
    queue_->close();
    queue_.reset();
    Queue::SetUp();
  }
};

using Kind = JobQueue::Change::Kind;

TEST_F(RefusingStore, HasTheNewestRowInTheEnd) {
  const JobId job = submit(submission()), other = submit(submission());
  refuse("UPDATE");
  EXPECT_FALSE(change(job, Kind::kHold));
  EXPECT_FALSE(wish(job, R"({"memory_bytes": 5242880, "priority": 7})"));
  EXPECT_FALSE(wish(job, R"({"gpu_ids": [0]})"));
  EXPECT_FALSE(change(other, Kind::kHold));
  EXPECT_FALSE(change(job, Kind::kRelease));
  EXPECT_EQ(stored(job).core.priority, 0);
  take_again();
  EXPECT_TRUE(wish(job, R"({"priority": 9})"));
  const auto check = [&](const store::StoredJob& row) {
    EXPECT_EQ(row.core.state, JobState::kQueued);
    EXPECT_FALSE(row.core.held);
    EXPECT_EQ(row.core.priority, 9);
    EXPECT_EQ(row.spec.memory, 5u << 20);
    EXPECT_EQ(row.spec.gpus.to_string(), "0");
    EXPECT_EQ(row.gpu_order, std::vector<std::uint32_t>{0});
  };
  check(stored(job));
  EXPECT_TRUE(run_until([&] { return stored(other).core.state == JobState::kHeld; })) << "without another change";
  open_again();
  EXPECT_EQ(queue_->core().request(job)->memory, 5u << 20);
  EXPECT_TRUE(wish(job, R"({"time_limit_ns": 5000000000})"));
  check(stored(job));
}

TEST_F(RefusingStore, HasTheEndOfAJobWhoseEarlierRowItRefused) {
  const JobId job = submit(submission());
  refuse("UPDATE");
  EXPECT_FALSE(change(job, Kind::kHold));
  EXPECT_FALSE(change(job, Kind::kCancel));
  EXPECT_NE(queue_->find(job), nullptr);
  EXPECT_TRUE(queue_->outcomes().empty()) << "it is not done before that is stored";
  take_again();
  EXPECT_TRUE(run_until([&] { return queue_->find(job) == nullptr; }));
  EXPECT_EQ(queue_->outcomes(), (std::map<Outcome, std::uint64_t>{{Outcome::kCancelled, 1}}));
  EXPECT_EQ(stored(job).core.outcome, Outcome::kCancelled);
  EXPECT_NE(stored(job).ended_at, 0);
  EXPECT_FALSE(queue_->store()->document(job));
  auto after = std::make_shared<Submission>(*submission());
  after->spec.after = {{job}};
  const JobId broken = submit(after);
  EXPECT_EQ(stored(broken).core.outcome, Outcome::kDependencyFailed) << "done when it comes";
  EXPECT_NE(stored(broken).note, "");
  EXPECT_FALSE(queue_->store()->document(broken));
  EXPECT_EQ(queue_->find(broken), nullptr);
  EXPECT_EQ(queue_->outcomes().at(Outcome::kDependencyFailed), 1u);
}

TEST_F(RefusingStore, HasLaterRowsOfAJobInTheirOrder) {
  const JobId job = submit(submission());
  refuse("UPDATE", "WHEN new.priority = 5");
  std::string told;
  const auto change_at_once = [&](const JobQueue::Change& change) {
    queue_->change({job}, change, [&](const auto& changed) {
      told += std::string(changed ? "stored" : "refused") + (queue_->find(job) != nullptr ? ", " : " and done");
    });
  };
  change_at_once(wish(R"({"priority": 5, "memory_bytes": 77})"));
  change_at_once(wish(R"({"priority": 6})"));
  change_at_once({.kind = Kind::kCancel});
  EXPECT_TRUE(run_until([&] { return told.ends_with("done"); }));
  EXPECT_EQ(told, "refused, stored, stored and done");
  EXPECT_EQ(stored(job).core.priority, 6);
  EXPECT_EQ(stored(job).spec.memory, 77u);
  EXPECT_EQ(stored(job).core.outcome, Outcome::kCancelled);
  EXPECT_EQ(queue_->outcomes().at(Outcome::kCancelled), 1u);
}

TEST_F(RefusingStore, HasTheEndsOfMoreJobsThanChangeAtOnce) {
  auto array = std::make_shared<Submission>(*submission());
  array->elements.resize(2 * kChangedAtOnce + 50);
  const JobId first = submit(array);
  std::vector<JobId> jobs = queue_->elements(first);
  ASSERT_EQ(jobs.size(), array->elements.size());
  refuse("UPDATE");
  std::optional<bool> is_stored;
  queue_->change(jobs, {.kind = Kind::kCancel}, [&](const auto& changed) { is_stored = changed.has_value(); });
  EXPECT_TRUE(run_until([&] { return is_stored.has_value(); }));
  EXPECT_EQ(is_stored, false);
  EXPECT_EQ(queue_->size(), jobs.size());
  take_again();
  EXPECT_TRUE(run_until([&] { return queue_->size() == 0; }));
  EXPECT_EQ(queue_->outcomes().at(Outcome::kCancelled), jobs.size());
  EXPECT_TRUE(queue_->store()->unfinished()->empty());
}

TEST_F(RefusingStore, NeverHadAJobThatItRefused) {
  const JobId first = submit(submission());
  refuse("INSERT");
  std::optional<bool> taken, cancelled;
  queue_->submit(submission(), [&](const auto& submitted) { taken = submitted.has_value(); });
  const JobId refused{first.value + 1};
  EXPECT_NE(queue_->find(refused), nullptr);
  queue_->change({first, refused}, {.kind = Kind::kCancel}, [&](const auto& done) { cancelled = done.has_value(); });
  EXPECT_TRUE(run_until([&] { return taken && cancelled; }));
  EXPECT_EQ(taken, false);
  EXPECT_EQ(cancelled, true);
  EXPECT_EQ(queue_->size(), 0u);
  EXPECT_EQ(queue_->outcomes().at(Outcome::kCancelled), 1u) << "one that never was has no outcome";
  EXPECT_EQ(queue_->core().check_invariants(), "");
  take_again();
  EXPECT_GT(submit(submission()), refused);
}

TEST_F(RefusingStore, KeepsTheRunnerOfAnEndThatItRefused) {
  auto made = std::make_shared<Submission>(*submission());
  made->document.arguments = {"sh", "-c", "until [ -e go ]; do [ -d \"$PWD\" ] || exit; sleep 0.01; done; exit 3"};
  made->document.environment = {std::string("PATH=") + std::getenv("PATH")};
  made->document.directory = folder_.path();
  made->document.output = folder_.path() + "/log";
  made->document_text = to_text(made->document);
  const JobId job = submit(made);
  auto held = std::make_shared<Submission>(*submission());
  held->spec.held = true;
  const JobId other = submit(held);
  const std::string runner = folder_.path() + "/state/jobs/" + std::to_string(job.value) + ".";
  refuse("UPDATE");
  queue_->set_paused(false, [](const base::Status& status) { EXPECT_TRUE(status); });
  EXPECT_TRUE(run_until([&] { return queue_->note(job).starts_with("it could not be stored that it starts"); }));
  EXPECT_FALSE(std::filesystem::exists(runner + "1")) << "no job starts before that is stored";
  take_again();
  EXPECT_TRUE(run_until([&] { return stored(job).core.state == JobState::kRunning; })) << queue_->note(job);
  const std::string run = runner + std::to_string(stored(job).core.attempt);
  refuse("UPDATE");
  EXPECT_FALSE(wish(job, R"({"priority": 4})"));
  std::ofstream(folder_.path() + "/go").flush();
  EXPECT_TRUE(run_until([&] { return queue_->find(job)->row.core.outcome == Outcome::kFailed; }));
  EXPECT_FALSE(wish(other, R"({"priority": 1})")) << "behind the end";
  EXPECT_TRUE(std::filesystem::exists(run + "/end"));
  EXPECT_EQ(stored(job).core.state, JobState::kRunning);
  queue_.reset();  // as if it were killed
  take_again();
  Queue::SetUp();
  EXPECT_TRUE(run_until([&] { return queue_->find(job) == nullptr; }));
  EXPECT_EQ(stored(job).exit_status, 3);
  EXPECT_GE(stored(job).ended_at, stored(job).started_at);
  EXPECT_GE(stored(job).started_at, stored(job).submitted_at);
  EXPECT_TRUE(run_until([&] { return !std::filesystem::exists(run); }));
}

// Its fate is in the store only when that takes rows again.
TEST_F(RefusingStore, RefusesAJobThatComesAfterAnEndThatItRefused) {
  const JobId first = submit(submission());
  refuse("UPDATE");
  EXPECT_FALSE(change(first, JobQueue::Change::Kind::kCancel));
  const auto later = std::make_shared<Submission>(*submission());
  later->spec.after = {{.on = first, .need = Dependency::Need::kAny}};
  std::optional<base::Error> refused;
  queue_->submit(later, [&refused](const base::Result<JobQueue::Submitted>& submitted) {
    ASSERT_FALSE(submitted);
    refused = submitted.error();
  });
  ASSERT_TRUE(run_until([&refused] { return refused.has_value(); }));
  EXPECT_EQ(refused->code, base::Code::kUnavailable) << refused->message();
  take_again();
  EXPECT_TRUE(run_until([&] { return stored(first).core.state == JobState::kDone; }));
  EXPECT_NE(submit(later), kNoJob);
}

}  // namespace
}  // namespace gpumux::jobs
