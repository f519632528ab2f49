// SPDX-License-Identifier: Apache-2.0
// Acknowledged changes survive a power cut at every moment, kill -9, a full disk, and a disk that cannot sync.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "jobs/store/power_cut_test_vfs.h"
#include "jobs/store/sqlite_store.h"
#include "jobs/store/store_test_support.h"

namespace gpumux::jobs::store {
namespace {

constexpr std::uint32_t kCheckpointOften = 12;   // so that power is cut in checkpoints, too
constexpr std::uint64_t kSmallReserve = 16'384;  // each write of it is a moment, too

std::unique_ptr<JobStore> open(const std::string& path, const std::string& vfs) {
  auto opened = open_sqlite_store({path, vfs, kCheckpointOften, kSmallReserve});
  EXPECT_TRUE(opened) << opened.error().message();
  return opened ? std::move(*opened) : nullptr;
}

// Commit n stores jobs 3n-2, 3n-1 and 3n, and ends job 3n-2 of the commit before.
std::vector<Change> commit_of(std::uint64_t n) {
  std::vector<Change> changes;
  for (std::uint64_t i = 0; i < 3; ++i) {
    Insert change = insert(3 * n - i, 1000, "t" + std::to_string(3 * n - i));
    change.document = std::make_shared<const std::string>(200 + n * 37 % 5000, 'x');
    changes.push_back(change);
  }
  if (n > 1) changes.push_back(done(3 * (n - 1) - 2, static_cast<WallTime>(n)));
  return changes;
}

// How many commits are there whole: checks that nothing is there in part, and nothing without what came before it.
std::uint64_t commits_in(const JobStore& store) {
  Query all;
  all.at_most = kMaxPageJobs;
  const auto page = store.page(all);
  EXPECT_TRUE(page) << page.error().message();
  if (!page) return 0;
  const std::uint64_t jobs = page->jobs.size();
  EXPECT_EQ(jobs % 3, 0u);
  const std::uint64_t commits = jobs / 3;
  for (std::uint64_t i = 0; i < jobs; ++i) {
    const StoredJob& job = page->jobs[i];
    EXPECT_EQ(job.spec.id.value, i + 1);
    const bool ended = (i + 1) % 3 == 1 && i / 3 + 1 < commits;
    EXPECT_EQ(store.document(job.spec.id).has_value(), !ended) << "the document of job " << i + 1;
    EXPECT_EQ(job.core.state == jobs::JobState::kDone, ended) << "job " << i + 1;
  }
  EXPECT_EQ(store.next_id()->value, jobs + 1);
  return commits;
}

TEST(PowerCut, AtEveryMoment) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr std::uint64_t kCommits = 12;
  std::vector<FileOperation> log;
  {
    TemporaryDirectory folder;
    PowerCutVfs vfs;
    {
      auto store = open(folder.file("jobs.db"), PowerCutVfs::kName);
      ASSERT_NE(store, nullptr);
      vfs.acknowledged(0);
      for (std::uint64_t n = 1; n <= kCommits; ++n) {
        ASSERT_TRUE(store->commit(commit_of(n)));
        vfs.acknowledged(n);
      }
      log = vfs.log();  // before it is closed in good order
    }
  }
  ASSERT_GT(log.size(), 5 * kCommits);
  std::uint64_t acknowledged = 0, points = 0, beyond = 0;
  bool opened_once = false;
  for (std::size_t count = 0; count <= log.size(); ++count) {
    if (count > 0 && log[count - 1].kind == FileOperation::Kind::kAcknowledged) {
      acknowledged = log[count - 1].at;
      opened_once = true;
    }
    TemporaryDirectory folder;
    PowerCutVfs::write_survivors(log, count, random, folder.path());
    auto opened = open_sqlite_store({folder.file("jobs.db"), "", kCheckpointOften, kSmallReserve});
    ASSERT_TRUE(opened) << "after " << count << " operations: " << opened.error().message();
    const std::uint64_t commits = commits_in(**opened);
    ASSERT_GE(commits, acknowledged) << "after " << count << " operations";
    ASSERT_LE(commits, acknowledged + 1) << "after " << count << " operations";
    beyond += commits > acknowledged ? 1u : 0u;
    ++points;
    if (opened_once) {  // and it goes on from there
      ASSERT_TRUE((*opened)->commit(commit_of(commits + 1)));
      ASSERT_EQ(commits_in(**opened), commits + 1);
    }
    if (HasFailure()) FAIL() << "after " << count << " operations";
  }
  EXPECT_EQ(acknowledged, kCommits);
  EXPECT_GT(beyond, 0u);  // the cuts are fine enough to meet a commit that is durable and not yet acknowledged
  std::printf("power was cut at %llu moments\n", static_cast<unsigned long long>(points));
}

TEST(PowerCut, ALogThatIsNotSyncedIsNotEnough) {
  // The test can fail: without the syncs of the log, acknowledged commits are lost.
  std::mt19937_64 random(1);
  std::vector<FileOperation> log;
  {
    TemporaryDirectory folder;
    PowerCutVfs vfs;
    auto store = open(folder.file("jobs.db"), PowerCutVfs::kName);
    for (std::uint64_t n = 1; n <= 5; ++n) ASSERT_TRUE(store->commit(commit_of(n)));
    for (const FileOperation& operation : vfs.log()) {
      if (operation.kind != FileOperation::Kind::kSync || operation.file != "jobs.db-wal") log.push_back(operation);
    }
  }
  bool lost = false;
  for (int i = 0; i < 20 && !lost; ++i) {
    TemporaryDirectory folder;
    PowerCutVfs::write_survivors(log, log.size(), random, folder.path());
    auto opened = open_sqlite_store({folder.file("jobs.db"), "", kCheckpointOften, kSmallReserve});
    lost = !opened || !(*opened)->page({}) || (*opened)->page({})->jobs.size() < 15;
  }
  EXPECT_TRUE(lost);
}

TEST(PowerCut, AFullDiskLeavesNothingHalfDone) {
  TemporaryDirectory folder;
  PowerCutVfs vfs;
  std::mt19937_64 random(7);
  auto store = open(folder.file("jobs.db"), PowerCutVfs::kName);
  std::uint64_t commits = 0;
  std::uint64_t failures = 0;
  for (std::uint64_t room = 0; room < 80'000; room += 2'111) {
    vfs.set_room(room);
    const auto full = store->commit(commit_of(commits + 1));
    if (full) {
      ++commits;
    } else {
      ++failures;
      EXPECT_EQ(full.error().code, base::Code::kExhausted) << full.error().message();
    }
    ASSERT_EQ(commits_in(*store), commits) << "with room for " << room;
    // And nothing of it comes up after a crash.
    TemporaryDirectory after;
    PowerCutVfs::write_survivors(vfs.log(), vfs.log().size(), random, after.path());
    ASSERT_EQ(commits_in(*open(after.file("jobs.db"), "")), commits) << "with room for " << room;
  }
  EXPECT_GT(failures, 5u);
  EXPECT_GT(commits, 5u);
  vfs.set_room(UINT64_MAX);
  ASSERT_TRUE(store->commit(commit_of(commits + 1)));
  EXPECT_EQ(commits_in(*store), commits + 1);
}

// With a full disk jobs end and are cancelled all the same, as many as there are, and no document is taken.
TEST(PowerCut, AFullDiskTakesWhatBecomesOfJobs) {
  TemporaryDirectory folder;
  PowerCutVfs vfs;
  std::mt19937_64 random(7);
  constexpr std::uint64_t kJobs = 3'000;
  auto opened = open_sqlite_store({folder.file("jobs.db"), PowerCutVfs::kName});
  ASSERT_TRUE(opened) << opened.error().message();
  std::vector<Change> jobs;
  for (std::uint64_t id = 1; id <= kJobs; ++id) {
    Insert job = insert(id, 1000, "t" + std::to_string(id));
    job.document = std::make_shared<const std::string>(id * 7 % 4000, 'x');
    jobs.push_back(job);
  }
  ASSERT_TRUE((*opened)->commit(jobs));
  vfs.set_full(true);
  for (std::uint64_t id = 1; id <= kJobs; id += 250) {
    Update started;
    started.core.job = JobId{id};
    started.core.state = jobs::JobState::kRunning;
    started.note.assign(kMaxNoteBytes, 'n');
    const auto done_first = (*opened)->commit({started, PutUsage{1000, id, 1}, PutValue{"key", std::to_string(id)}});
    ASSERT_TRUE(done_first) << id << ": " << done_first.error().message();
    std::vector<Change> ends;
    for (std::uint64_t i = id; i < id + 250; ++i) ends.push_back(done(i, static_cast<WallTime>(i)));
    const auto ended = (*opened)->commit(ends);
    ASSERT_TRUE(ended) << "jobs from " << id << ": " << ended.error().message();
  }
  EXPECT_EQ((*opened)->unfinished()->size(), 0u);
  const auto refused = (*opened)->commit({insert(kJobs + 1)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, base::Code::kExhausted) << refused.error().message();
  TemporaryDirectory after;
  PowerCutVfs::write_survivors(vfs.log(), vfs.log().size(), random, after.path());
  EXPECT_EQ(open(after.file("jobs.db"), "")->unfinished()->size(), 0u);
  vfs.set_full(false);
  ASSERT_TRUE((*opened)->commit({insert(kJobs + 1)}));
  // And room is reserved again.
  vfs.set_full(true);
  ASSERT_TRUE((*opened)->commit({done(kJobs + 1, 5)}));
}

// One sync fails: the log holds a whole commit that was refused. Many fail: nothing is committed until one succeeds.
TEST(PowerCut, WhatCouldNotBeSyncedIsNeverThere) {
  for (const int failing : {1, 2, 5}) {
    TemporaryDirectory folder;
    PowerCutVfs vfs;
    std::mt19937_64 random(7);
    auto store = open(folder.file("jobs.db"), PowerCutVfs::kName);
    ASSERT_TRUE(store->commit(commit_of(1)));
    vfs.set_failing_syncs(failing);
    auto failed = store->commit(commit_of(2));
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code, base::Code::kUnavailable) << failed.error().message();
    EXPECT_EQ(commits_in(*store), 1u);
    for (int tries = 0; failing > 1 && !store->commit({PutValue{"a", "b"}}); ++tries) ASSERT_LT(tries, failing);
    EXPECT_EQ(commits_in(*store), 1u);
    for (int i = 0; i < 10; ++i) {
      TemporaryDirectory after;
      PowerCutVfs::write_survivors(vfs.log(), vfs.log().size(), random, after.path());
      EXPECT_EQ(commits_in(*open(after.file("jobs.db"), "")), 1u) << failing << " syncs failed";
    }
    ASSERT_TRUE(store->commit(commit_of(2)));
    EXPECT_EQ(commits_in(*store), 2u);
  }
}

TEST(PowerCut, KilledAtAnyMoment) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  TemporaryDirectory folder;
  const std::string path = folder.file("jobs.db");
  std::uint64_t there = 0;
  for (int round = 0; round < 20; ++round) {
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto store = open(path, "");
      for (std::uint64_t n = there + 1; store != nullptr && store->commit(commit_of(n)); ++n) {
        if (::write(pipe_ends[1], &n, sizeof n) != sizeof n) break;
      }
      ::_exit(0);
    }
    ::close(pipe_ends[1]);
    std::uint64_t acknowledged = there, n = 0;
    const std::uint64_t enough = there + random() % 6;
    while (acknowledged < enough && ::read(pipe_ends[0], &n, sizeof n) == sizeof n) acknowledged = n;
    ::usleep(static_cast<useconds_t>(random() % 3000));  // a moment within a commit, by chance
    ::kill(child, SIGKILL);
    while (::read(pipe_ends[0], &n, sizeof n) == sizeof n) acknowledged = n;
    ::close(pipe_ends[0]);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    auto store = open(path, "");
    ASSERT_NE(store, nullptr);
    there = commits_in(*store);
    ASSERT_GE(there, acknowledged) << "round " << round;
    if (HasFailure()) FAIL() << "round " << round;
  }
}

}  // namespace
}  // namespace gpumux::jobs::store
