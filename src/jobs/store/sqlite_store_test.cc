// SPDX-License-Identifier: Apache-2.0
// The store in a file: which files it opens, the rights of its files, versions; and the queue of commits.
#include "jobs/store/sqlite_store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <mutex>

#include "jobs/store/commit_queue.h"
#include "jobs/store/schema.h"
#include "jobs/store/store_test_support.h"

namespace gpumux::jobs::store {
namespace {

TEST(SqliteStore, OnlyItsOwnerCanReadIt) {
  TemporaryDirectory folder;
  const std::string path = folder.file("jobs.db");
  auto store = open_sqlite_store({path, "", kCheckpointPages});
  ASSERT_TRUE(store) << store.error().message();
  ASSERT_TRUE((*store)->commit({insert(1)}));
  for (const char* suffix : {"", "-wal", "-shm"}) {
    struct stat info {};
    ASSERT_EQ(::stat((path + suffix).c_str(), &info), 0) << suffix;
    EXPECT_EQ(info.st_mode & 0777, 0600u) << suffix;
  }
}

TEST(SqliteStore, FollowsNoLink) {
  TemporaryDirectory folder;
  std::filesystem::create_symlink(folder.file("elsewhere"), folder.file("jobs.db"));
  const auto store = open_sqlite_store({folder.file("jobs.db"), "", kCheckpointPages});
  ASSERT_FALSE(store);
  EXPECT_FALSE(std::filesystem::exists(folder.file("elsewhere")));
}

TEST(SqliteStore, OpensNothingThatIsNotIts) {
  TemporaryDirectory folder;
  {
    SQLite::Database other(folder.file("other.db"), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    other.exec("CREATE TABLE important (x)");
  }
  const auto other = open_sqlite_store({folder.file("other.db"), "", kCheckpointPages});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, base::Code::kInvalid);
  EXPECT_NE(other.error().message().find("move it away"), std::string::npos);
  EXPECT_EQ(open_sqlite_store({folder.file("no/such/folder"), "", kCheckpointPages}).error().code,
            base::Code::kNotFound);
}

TEST(SqliteStore, RefusesANewerVersion) {
  TemporaryDirectory folder;
  const std::string path = folder.file("jobs.db");
  ASSERT_TRUE(open_sqlite_store({path, "", kCheckpointPages}));
  {
    SQLite::Database db(path, SQLite::OPEN_READWRITE);
    db.exec("PRAGMA user_version = " + std::to_string(kSchema.size() + 1));
  }
  const auto store = open_sqlite_store({path, "", kCheckpointPages});
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, base::Code::kUnsupported);
}

TEST(SqliteStore, TheFirstVersionBecomesTheNewest) {
  TemporaryDirectory folder;
  const std::string path = folder.file("jobs.db");
  {
    SQLite::Database db(path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    db.exec("PRAGMA application_id = " + std::to_string(kApplicationId) + "; PRAGMA user_version = 1");
    db.exec(kSchema[0]);
    const auto job = [&](int id, int state, int array) {
      db.exec("INSERT INTO jobs VALUES (" + std::to_string(id) + ",1,'','','',1,0,0,0,0,0," + std::to_string(array) +
              ",0,0," + std::to_string(state) + ",1,1,'',1,0,0,0,1,1,1,0,'')");
    };
    for (int id = 1; id <= 3; ++id) job(id, 8, 0);
    job(4, 8, 4);
    job(5, 1, 0);  // is not done: it needs 1 and the array 4; the fate of 2 was known
    job(6, 8, 0);  // is done, and needs 3 no more
    db.exec("INSERT INTO dependencies VALUES (5,0,1,0,0,0), (5,1,2,0,0,1), (5,2,4,1,0,0), (6,0,3,0,0,0)");
  }
  auto store = open_sqlite_store({path, "", kCheckpointPages});
  ASSERT_TRUE(store) << store.error().message();
  {
    SQLite::Database db(path, SQLite::OPEN_READONLY);
    EXPECT_EQ(db.execAndGet("SELECT jobs FROM done WHERE uid = 1").getInt(), 5);
    EXPECT_EQ(db.execAndGet("SELECT count(*) FROM dependencies WHERE job = 6").getInt(), 0);
    EXPECT_EQ(db.execAndGet("SELECT count(*) FROM jobs WHERE capped <> priority").getInt(), 0);
  }
  EXPECT_EQ((*store)->commit({Prune{2, 100}})->front().pruned, 3u);
  EXPECT_TRUE((*store)->find(JobId{1}));
  EXPECT_TRUE((*store)->find(JobId{4}));
  const auto unfinished = (*store)->unfinished().value();
  ASSERT_EQ(unfinished.size(), 1u);
  EXPECT_EQ(unfinished[0].spec.after.size(), 3u);
  EXPECT_EQ(unfinished[0].spec.after[0].fate, jobs::Dependency::Fate::kMet);
}

// SQLite's plan for a page, and for counting what is done.
std::string plan(const std::string& path, const std::string& sql) {
  SQLite::Database db(path, SQLite::OPEN_READONLY);
  SQLite::Statement explain(db, "EXPLAIN QUERY PLAN " + sql);
  std::string steps;
  while (explain.executeStep()) steps += explain.getColumn(3).getString() + "; ";
  return steps;
}

// A file of an earlier gpumux has the same: a fact in another column would be read back, and be wrong there.
TEST(SqliteStore, EachColumnHasTheFactOfItsName) {
  TemporaryDirectory folder;
  const std::string path = folder.file("jobs.db");
  auto store = open_sqlite_store({path, "", kCheckpointPages});
  ASSERT_TRUE(store) << store.error().message();
  Insert one = insert(1);
  StoredJob& job = one.job;
  job.spec.uid = 2;
  job.token = "3";
  job.name = "4";
  job.spec.gpus = {5, 6};
  job.spec.gpu_count = 7;
  job.spec.memory = 8;
  job.spec.time_limit = base::Duration(9);
  job.spec.on_limit = jobs::OnLimit::kCancel;
  job.spec.exclusive = true;
  job.spec.requeue = false;
  job.spec.array = JobId{10};
  job.spec.array_index = 11;
  job.spec.array_limit = 12;
  job.core.state = jobs::JobState::kEnding;
  job.core.outcome = jobs::Outcome::kTimedOut;
  job.core.attempt = 13;
  job.core.gpus = {14};
  job.core.order = 15;
  job.core.priority = -16;
  job.core.held = true;
  job.core.ran = base::Duration(17);
  job.core.capped = -18;
  job.submitted_at = 19;
  job.started_at = 20;
  job.ended_at = 21;
  job.exit_status = 22;
  job.note = "23";
  job.log = "24";
  job.command = "25";
  job.gpu_order = {27, 26};
  job.gpu_seconds = 28.5;
  job.peak_memory = 29;
  job.begin_at = 30;
  ASSERT_TRUE((*store)->commit({one}));
  SQLite::Database db(path, SQLite::OPEN_READONLY);
  std::string row;
  for (const char* column :
       {"id",         "uid",      "token",        "name",       "wanted",      "gpu_count",   "memory",
        "time_limit", "on_limit", "exclusive",    "requeue",    "array",       "array_index", "array_limit",
        "state",      "outcome",  "attempt",      "given",      "ord",         "priority",    "held",
        "ran",        "capped",   "submitted_at", "started_at", "ended_at",    "exit_status", "note",
        "log",        "command",  "gpu_order",    "gpu_time",   "peak_memory", "begin_at"})
    row += db.execAndGet(std::string("SELECT ") + column + " FROM jobs").getString() + " ";
  EXPECT_EQ(row, "1 2 3 4 5,6 7 8 9 1 1 0 10 11 12 7 4 13 14 15 -16 1 17 -18 19 20 21 22 23 24 25 27,26 28.5 29 30 ");
}

// A user's history may be long: a page reads no more of it than it has jobs.
TEST(SqliteStore, PagesOfHistoryComeFromAnIndexInOrder) {
  TemporaryDirectory folder;
  const std::string path = folder.file("jobs.db");
  const auto store = open_sqlite_store({path, "", kCheckpointPages});
  ASSERT_TRUE(store) << store.error().message();
  for (const std::optional<std::uint32_t> uid : {std::optional<std::uint32_t>(), std::optional<std::uint32_t>(1000)}) {
    for (const JobId beyond : {jobs::kNoJob, JobId{5}}) {
      Query query;
      query.uid = uid;
      query.which = Query::Which::kDone;
      query.order = Query::Order::kLatestEnd;
      query.beyond = beyond;
      query.ended_since = 7;
      query.outcomes = {jobs::Outcome::kFailed};
      const std::string steps = plan(path, "SELECT * FROM jobs " + page_of(query));
      EXPECT_EQ(steps.find("TEMP B-TREE"), std::string::npos) << steps;
      EXPECT_NE(steps.find(uid ? "jobs_done_by_user" : "jobs_by_end"), std::string::npos) << steps;
    }
  }
}

TEST(SqliteStore, CountsWhatIsDoneAsItHappens) {
  TemporaryDirectory folder;
  const std::string path = folder.file("jobs.db");
  const auto store = open_sqlite_store({path, "", kCheckpointPages});
  ASSERT_TRUE(store) << store.error().message();
  const auto count = [&path] {
    SQLite::Database db(path, SQLite::OPEN_READONLY);
    return db.execAndGet("SELECT coalesce(sum(jobs), 0) FROM done").getInt();
  };
  ASSERT_TRUE((*store)->commit({insert(1), insert(2), insert(3)}));
  EXPECT_EQ(count(), 0);
  ASSERT_TRUE((*store)->commit({done(1, 1), done(2, 2)}));
  ASSERT_TRUE((*store)->commit({done(2, 2)}));
  EXPECT_EQ(count(), 2);
  EXPECT_EQ((*store)->commit({Prune{2, 100}})->front().pruned, 1u);
  EXPECT_EQ(count(), 1);
}

TEST(SqliteStore, RefusesDocumentsBeforeTheDiskIsFull) {
  TemporaryDirectory folder;
  auto store = open_sqlite_store({.path = folder.file("jobs.db"), .vfs = "", .least_free_bytes = 1});
  ASSERT_TRUE(store) << store.error().message();
  EXPECT_TRUE((*store)->room_for(1));
  const auto refused = (*store)->room_for(std::uint64_t{1} << 60);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, base::Code::kExhausted);
  EXPECT_NE(refused.error().message().find("nearly full"), std::string::npos) << refused.error().message();
}

TEST(SqliteStore, OfAnOlderVersionNoDocumentsOfDoneJobsAreKept) {
  TemporaryDirectory folder;
  const std::string path = folder.file("jobs.db");
  {
    SQLite::Database db(path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    db.exec("PRAGMA application_id = " + std::to_string(kApplicationId) + "; PRAGMA user_version = 3");
    for (std::size_t i = 0; i < 3; ++i) db.exec(kSchema[i]);
    for (const auto& [id, state] : {std::pair(1, 8), std::pair(2, 1)}) {
      const std::string text = std::to_string(id);
      db.exec("INSERT INTO jobs VALUES (" + text + ",1,'','','',1,0,0,0,0,0,0,0,0," + std::to_string(state) +
              ",1,1,'',1,7,0,0,1,1,1,0,'','')");
      db.exec("INSERT INTO documents VALUES (" + text + ", 'secret')");
    }
  }
  auto store = open_sqlite_store({path, "", kCheckpointPages});
  ASSERT_TRUE(store) << store.error().message();
  EXPECT_EQ((*store)->document(JobId{1}).error().code, base::Code::kNotFound);
  EXPECT_EQ((*store)->document(JobId{2}).value(), "secret");
  EXPECT_EQ((*store)->find(JobId{2})->core.capped, 7);  // as it was handed in
  EXPECT_EQ((*store)->unfinished()->front().document_bytes, 6u);
}

TEST(SqliteStore, ReadersSeeCommitsOfTheWriter) {
  TemporaryDirectory folder;
  auto store = open_sqlite_store({folder.file("jobs.db"), "", kCheckpointPages});
  ASSERT_TRUE(store);
  for (std::uint64_t id = 1; id <= 20; ++id) {
    ASSERT_TRUE((*store)->commit({insert(id)}));
    EXPECT_TRUE((*store)->find(JobId{id}));
  }
}

// A store whose commits wait until they are let go, and fail if told to.
class SlowStore final : public JobStore {
 public:
  Result<std::vector<Applied>> commit(const std::vector<Change>& changes) override {
    std::unique_lock lock(mutex_);
    commits_.push_back(changes.size());
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    return inner_->commit(changes);
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait_for_first() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !commits_.empty(); });
  }
  // How many changes each commit has, also those under way.
  std::vector<std::size_t> commits() {
    const std::lock_guard lock(mutex_);
    return commits_;
  }
  Result<JobId> next_id() const override { return inner_->next_id(); }
  Result<StoredJob> find(JobId job) const override { return inner_->find(job); }
  Result<std::string> document(JobId job) const override { return inner_->document(job); }
  Result<std::optional<JobId>> find_token(std::uint32_t uid, std::string_view token) const override {
    return inner_->find_token(uid, token);
  }
  Result<Page> page(const Query& query) const override { return inner_->page(query); }
  Result<std::vector<StoredJob>> unfinished() const override { return inner_->unfinished(); }
  Result<jobs::Dependency::Fate> fate(const jobs::Dependency& dependency) const override {
    return inner_->fate(dependency);
  }
  Status room_for(std::uint64_t bytes) const override { return inner_->room_for(bytes); }
  Result<std::map<std::uint32_t, std::uint64_t>> with_more_done_than(std::uint64_t most) const override {
    return inner_->with_more_done_than(most);
  }
  Result<LedgerReport> report(const LedgerQuery& query) const override { return inner_->report(query); }
  Result<std::vector<Usage>> usage() const override { return inner_->usage(); }
  Result<std::map<std::string, std::string>> values() const override { return inner_->values(); }

 private:
  TemporaryDirectory folder_;
  std::unique_ptr<JobStore> inner_ =
      open_sqlite_store({folder_.file("jobs.db"), "", kCheckpointPages}).value_or(nullptr);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::size_t> commits_;
  bool open_ = false;
};

TEST(CommitQueue, WhatComesMeanwhileIsOneCommit) {
  SlowStore store;
  std::atomic<int> told = 0;
  {
    CommitQueue queue(store);
    const auto count = [&](const Result<std::vector<Applied>>& applied) {
      ASSERT_TRUE(applied);
      EXPECT_EQ(applied->size(), 1u);
      ++told;
    };
    queue.hand_in({insert(1)}, count);
    store.wait_for_first();
    for (std::uint64_t id = 2; id <= 100; ++id) queue.hand_in({insert(id)}, count);
    EXPECT_EQ(told, 0);
    store.let_go();
    queue.drain();
    EXPECT_EQ(told, 100);
    EXPECT_EQ(store.commits(), (std::vector<std::size_t>{1, 99}));
  }
}

TEST(CommitQueue, OnePartThatIsWrongFailsAlone) {
  SlowStore store;
  std::string told;
  {
    CommitQueue queue(store);
    const auto note = [&](char good, char bad) {
      return [&told, good, bad](const Result<std::vector<Applied>>& applied) { told += applied ? good : bad; };
    };
    queue.hand_in({insert(1)}, note('a', 'A'));
    store.wait_for_first();
    queue.hand_in({insert(2)}, note('b', 'B'));
    queue.hand_in({insert(3), insert(1)}, note('c', 'C'));  // 1 is taken
    queue.hand_in({insert(4)}, note('d', 'D'));
    store.let_go();
  }  // and its end waits for all
  EXPECT_EQ(told, "abCd");
  EXPECT_FALSE(store.find(JobId{3}));
  EXPECT_TRUE(store.find(JobId{4}));
  EXPECT_EQ(store.document(JobId{4}).value(), *insert(4).document);
}

TEST(CommitQueue, ACommitHasAnEnd) {
  SlowStore store;
  CommitQueue queue(store);
  queue.hand_in({insert(1)}, {});
  store.wait_for_first();
  for (std::uint64_t id = 2; id <= 2 * kMaxCommitChanges + 1; ++id) queue.hand_in({insert(id)}, {});
  store.let_go();
  queue.drain();
  EXPECT_EQ(store.commits(), (std::vector<std::size_t>{1, kMaxCommitChanges, kMaxCommitChanges}));
}

}  // namespace
}  // namespace gpumux::jobs::store
