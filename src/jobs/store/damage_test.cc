// SPDX-License-Identifier: Apache-2.0
// Goal: a damaged file costs the rows that are damaged, and no more. Method: a file with jobs in every state has a page
// or a row destroyed, in each place in turn, and is opened again.
#include <SQLiteCpp/SQLiteCpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>

#include "jobs/store/schema.h"
#include "jobs/store/sqlite_store.h"
#include "jobs/store/store_test_support.h"

namespace gpumux::jobs::store {
namespace {

constexpr std::uint64_t kJobs = 300;  // on several pages of each index
constexpr std::uint64_t kDone = 100;  // the first of them
constexpr std::size_t kPageBytes = 4096;
constexpr std::uint64_t kTinyReserve = 4096;

SqliteOptions options_for(const std::string& path) {
  return {.path = path, .vfs = "", .reserve_bytes = kTinyReserve, .least_free_bytes = 1};
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class DamagedFile : public ::testing::Test {
 protected:
  void SetUp() override {
    {
      auto store = open_sqlite_store(options_for(path_));
      ASSERT_TRUE(store) << store.error().message();
      std::vector<Change> changes;
      for (std::uint64_t id = 1; id <= kJobs; ++id) {
        Insert job = insert(id, static_cast<std::uint32_t>(1000 + id % 3), "token " + std::to_string(id));
        if (id > kDone && id % 2 == 0) job.job.spec.after = {{.on = JobId{id - 1}}};
        changes.emplace_back(std::move(job));
      }
      for (std::uint64_t id = 1; id <= kDone; ++id) changes.emplace_back(done(id, static_cast<WallTime>(id)));
      changes.emplace_back(PutValue{"store_id", "0123abcd"});
      changes.emplace_back(PutUsage{1000, 77, 1});
      ASSERT_TRUE((*store)->commit(changes));
    }
    execute("PRAGMA wal_checkpoint(TRUNCATE)");
    sound_ = bytes_of(path_);
    ASSERT_FALSE(std::filesystem::exists(path_ + "-wal"));
  }

  void execute(const std::string& sql) const { SQLite::Database(path_, SQLite::OPEN_READWRITE).exec(sql); }
  std::size_t root_of(const std::string& table) const {
    SQLite::Database db(path_, SQLite::OPEN_READONLY);
    return static_cast<std::size_t>(
        db.execAndGet("SELECT rootpage FROM sqlite_master WHERE name = '" + table + "'").getInt64());
  }

  std::unique_ptr<JobStore> open() {
    damage_.reset();
    auto store = open_sqlite_store(options_for(path_), &damage_);
    EXPECT_TRUE(store) << store.error().message();
    return store ? std::move(*store) : nullptr;
  }
  static std::size_t jobs_in(const JobStore& store) {
    std::size_t jobs = 0;
    Query query;
    query.at_most = kMaxPageJobs;
    for (;;) {
      const auto page = store.page(query);
      if (!page) return jobs;
      jobs += page->jobs.size();
      if (!page->more) return jobs;
      query.beyond = page->jobs.back().spec.id;
    }
  }

  TemporaryDirectory folder_;
  const std::string path_ = folder_.file("jobs.db");
  std::string sound_;
  std::optional<Damage> damage_;
};

TEST_F(DamagedFile, ASoundOneStaysAsItIs) {
  const auto store = open();
  ASSERT_NE(store, nullptr);
  EXPECT_FALSE(damage_);
  EXPECT_EQ(jobs_in(*store), kJobs);
}

// Dependencies in another order than their jobs.
TEST_F(DamagedFile, RowsOutOfOrderAreReadAllTheSame) {
  std::string bytes = sound_;
  // On a leaf of an index, two bytes for each cell begin at the eighth.
  std::size_t page = (root_of("dependencies") - 1) * kPageBytes;
  while (bytes[page] != 0x0a) page = (static_cast<unsigned char>(bytes[page + 15]) - 1) * kPageBytes;
  for (std::size_t at = page + 8; at < page + 24; at += 4) std::swap_ranges(&bytes[at], &bytes[at + 2], &bytes[at + 2]);
  write(path_, bytes);
  const auto store = open();
  ASSERT_NE(store, nullptr);
  ASSERT_TRUE(damage_);
  const auto unfinished = store->unfinished();
  ASSERT_TRUE(unfinished) << unfinished.error().message();
  EXPECT_EQ(unfinished->size(), kJobs - kDone);
  for (const StoredJob& job : *unfinished)
    EXPECT_EQ(job.spec.after.size(), job.spec.id.value % 2 == 0 ? 1U : 0U) << job.spec.id.value;
  EXPECT_TRUE(bytes_of(damage_->moved_to) == bytes) << "the damaged file is kept";
}

// A page of rows costs these rows. One that leads to others, or has the tables' form, costs what is below it.
TEST_F(DamagedFile, CostsTheRowsOfOnePageAtMost) {
  const unsigned seed = std::random_device{}();
  std::cout << "seed " << seed << '\n';
  std::mt19937 random(seed);
  // The file is longer than its pages.
  const auto pages = static_cast<std::size_t>(
      SQLite::Database(path_, SQLite::OPEN_READONLY).execAndGet("PRAGMA page_count").getInt64());
  const std::size_t root = root_of("jobs");
  std::size_t found = 0;
  for (std::size_t page = 2; page <= pages; ++page) {  // the first one has the schema
    SCOPED_TRACE("page " + std::to_string(page));
    std::string bytes = sound_;
    for (std::size_t at = (page - 1) * kPageBytes; at < page * kPageBytes; ++at)
      bytes[at] = static_cast<char>(random());
    write(path_, bytes);
    const auto store = open();
    ASSERT_NE(store, nullptr);
    if (!damage_) {
      // A page that nothing uses.
      ASSERT_EQ(jobs_in(*store), kJobs);
      continue;
    }
    ++found;
    const std::size_t jobs = jobs_in(*store);
    EXPECT_EQ(jobs, damage_->jobs_kept);
    // Below these pages are others.
    const bool is_above =
        page == root || sound_.substr((page - 1) * kPageBytes, kPageBytes).find("CREATE ") != std::string::npos;
    if (!is_above) {
      EXPECT_EQ(jobs + damage_->jobs_lost.size(), kJobs) << damage_->lost;
      EXPECT_LE(damage_->jobs_lost.size(), kPageBytes / 64);
    }
    EXPECT_NE(damage_->lost, "");
    EXPECT_GT(store->next_id()->value, kJobs);
    EXPECT_TRUE(store->unfinished());
    EXPECT_TRUE(store->commit({insert(store->next_id()->value)}));
    EXPECT_NE(damage_->moved_to, "");
    std::filesystem::remove(damage_->moved_to);
  }
  EXPECT_GT(found, 20U);
}

TEST_F(DamagedFile, WithoutItsFirstPageIsPutAsideAsAWhole) {
  for (const std::string& bytes : {std::string(5000, 'x'), std::string(kPageBytes, '\0') + sound_.substr(kPageBytes)}) {
    write(path_, bytes);
    const auto store = open();
    ASSERT_NE(store, nullptr);
    ASSERT_TRUE(damage_);
    EXPECT_TRUE(bytes_of(damage_->moved_to) == bytes);
    EXPECT_EQ(jobs_in(*store), 0U);
    EXPECT_NE(damage_->lost, "");
    EXPECT_TRUE(store->commit({insert(store->next_id()->value)}));
  }
  EXPECT_TRUE(std::filesystem::exists(path_ + ".damaged-1"));
  EXPECT_TRUE(std::filesystem::exists(path_ + ".damaged-2"));
}

// The statement that made an index, or a table, is part of the file.
TEST_F(DamagedFile, WithABadStatementHasItsOtherTables) {
  for (const char* statement : {"CREATE UNIQUE INDEX jobs_by_token", "CREATE TABLE usage"}) {
    SCOPED_TRACE(statement);
    std::string bytes = sound_;
    const std::size_t at = bytes.find(statement);
    ASSERT_NE(at, std::string::npos);
    bytes[at + 1] = 'X';
    write(path_, bytes);
    const auto store = open();
    ASSERT_NE(store, nullptr);
    ASSERT_TRUE(damage_);
    EXPECT_EQ(jobs_in(*store), kJobs);
    EXPECT_TRUE(store->commit({insert(store->next_id()->value)}));
  }
}

TEST_F(DamagedFile, LosesRowsThatCannotBe) {
  for (const char* damage :
       {"UPDATE jobs SET state = 77 WHERE id = 200", "UPDATE jobs SET outcome = -1 WHERE id = 200",
        "UPDATE jobs SET uid = 1 << 40 WHERE id = 200", "UPDATE jobs SET time_limit = -1 WHERE id = 200",
        "UPDATE jobs SET gpu_count = 'many' WHERE id = 200"}) {
    SCOPED_TRACE(damage);
    write(path_, sound_);
    execute(damage);
    const auto store = open();
    ASSERT_NE(store, nullptr);
    ASSERT_TRUE(damage_);
    EXPECT_EQ(damage_->jobs_lost, std::vector<JobId>{JobId{200}});
    EXPECT_EQ(damage_->jobs_kept, kJobs - 1);
    EXPECT_EQ(jobs_in(*store), kJobs - 1);
  }
}

// The count of jobs that are done decides how many are pruned.
TEST_F(DamagedFile, CountsWhatIsDoneAgain) {
  execute("UPDATE done SET jobs = 1 << 40");
  const auto store = open();
  ASSERT_NE(store, nullptr);
  ASSERT_TRUE(damage_);
  EXPECT_TRUE(store->with_more_done_than(kDone)->empty());
  EXPECT_EQ(jobs_in(*store), kJobs);
}

TEST_F(DamagedFile, GivesNoIdTwiceWithoutItsCounter) {
  execute("DELETE FROM counters; DELETE FROM jobs WHERE id > 250");
  const auto store = open();
  ASSERT_NE(store, nullptr);
  ASSERT_TRUE(damage_);
  EXPECT_GT(store->next_id()->value, kJobs);
}

// The power may go after each step.
TEST_F(DamagedFile, IsMendedOnce) {
  std::string bytes = sound_;
  bytes.replace((root_of("usage") - 1) * kPageBytes, kPageBytes, std::string(kPageBytes, 'x'));
  write(path_, bytes);
  ASSERT_NE(open(), nullptr);
  ASSERT_TRUE(damage_);
  const std::string mended = bytes_of(path_);
  std::filesystem::remove(damage_->moved_to);
  // Its parts are all there, and the damaged file has its name still; or it has been moved; or a part is half written.
  for (const bool is_moved : {false, true}) {
    write(path_ + ".mended", mended);
    write(path_ + ".mending", "half of it");
    if (is_moved) {
      std::filesystem::remove(path_);
    } else {
      write(path_, bytes);
      write(path_ + "-wal", "of the damaged file");
    }
    const auto store = open();
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(jobs_in(*store), kJobs);
    EXPECT_FALSE(std::filesystem::exists(path_ + ".mended"));
  }
  EXPECT_TRUE(bytes_of(path_ + ".damaged-1") == bytes);
  EXPECT_TRUE(bytes_of(path_ + ".damaged-1-wal") == "of the damaged file");
}

TEST_F(DamagedFile, StaysWhereItIsWithoutRoomForAnother) {
  std::string bytes = sound_;
  bytes.replace((root_of("usage") - 1) * kPageBytes, kPageBytes, std::string(kPageBytes, 'x'));
  write(path_, bytes);
  std::filesystem::create_directory(path_ + ".mending");
  write(path_ + ".mending/in the way", "");
  EXPECT_FALSE(open_sqlite_store(options_for(path_)));
  EXPECT_TRUE(bytes_of(path_) == bytes);
}

}  // namespace
}  // namespace gpumux::jobs::store
