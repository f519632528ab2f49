// SPDX-License-Identifier: Apache-2.0
// Goal: use that was added to the ledger is in its reports once, by the hour, by the day, after a power cut. No owner
// makes it long, or pushes another one out of it. Method: the store in a file, with times of the test's choice.
#include <gtest/gtest.h>

#include <random>

#include "jobs/store/power_cut_test_vfs.h"
#include "jobs/store/sqlite_store.h"
#include "jobs/store/store_test_support.h"

namespace gpumux::jobs::store {
namespace {

using By = LedgerQuery::By;

constexpr WallTime kSecond = 1'000'000'000;
constexpr WallTime kHour = 3600 * kSecond;
constexpr WallTime kDay = 24 * kHour;
constexpr WallTime kStart = 20'000 * kDay;
constexpr WallTime kAllTime = kStart + 10'000 * kDay;

AddToLedger entry(double held, const std::string& program = "train", std::uint32_t uid = 1000, WallTime at = kStart) {
  return {.at = at,
          .row = {.owner = {uid, "", ""}, .program = LedgerProgram{program, jobs::kNoJob}, .gpu = "GPU-0"},
          .sums = {.held = held,
                   .gpu_time = held / 2,
                   .waited = 3 * held,
                   .resident_byte_seconds = 1e12 * held,
                   .evicted_byte_seconds = 1e9 * held,
                   .switches = 1}};
}

class StoredLedger : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_sqlite_store({.path = folder_.file("jobs.db"), .vfs = ""});
    ASSERT_TRUE(opened) << opened.error().message();
    store_ = std::move(*opened);
  }
  std::vector<Applied> put(const std::vector<Change>& changes) {
    auto applied = store_->commit(changes);
    EXPECT_TRUE(applied) << applied.error().message();
    return applied.value_or(std::vector<Applied>());
  }
  LedgerReport report(LedgerQuery query) {
    if (query.until == 0) query.until = kAllTime;
    auto report = store_->report(query);
    EXPECT_TRUE(report) << report.error().message();
    return report.value_or(LedgerReport());
  }
  // "1000 train 5; 1000 others 2"
  std::string text(const LedgerQuery& query) {
    std::string text;
    for (const LedgerTotal& row : report(query).rows) {
      text += text.empty() ? "" : "; ";
      text += row.owner.uid ? std::to_string(*row.owner.uid) : "nobody";
      if (!row.owner.pod.empty()) text += " " + row.owner.pod_namespace + "/" + row.owner.pod;
      if (!row.program.empty()) text += " " + row.program;
      if (row.job != jobs::kNoJob) text += " job " + std::to_string(row.job.value);
      if (row.others) text += " others";
      text += " " + std::to_string(static_cast<int>(row.sums.held));
    }
    return text;
  }

  TemporaryDirectory folder_;
  std::unique_ptr<JobStore> store_;
};

TEST_F(StoredLedger, WhatIsAddedToARowIsItsSum) {
  put({entry(1), entry(2)});
  put({entry(4, "train", 1000, kStart + kHour - 1)});
  const LedgerReport all = report({.by = By::kProgram});
  ASSERT_EQ(all.rows.size(), 1u);
  LedgerSums expected;
  for (const double held : {1.0, 2.0, 4.0}) expected.add(entry(held).sums);
  EXPECT_EQ(all.rows[0].sums, expected);
  EXPECT_EQ(all.rows[0].sums.switches, 3u);
  EXPECT_EQ(all.since, kStart);
  EXPECT_EQ(all.until, kStart + kHour);
  EXPECT_FALSE(all.rest);
}

TEST_F(StoredLedger, ReportsSumByWhatIsAskedFor) {
  AddToLedger job = entry(8, "train", 1001);
  job.row.program->job = JobId{7};
  AddToLedger pod = entry(16, "serve");
  pod.row.owner = {std::nullopt, "team-a", "serve-0"};
  AddToLedger other_gpu = entry(1);
  other_gpu.row.gpu = "GPU-1";
  Insert known = insert(7, 1001);
  known.job.name = "nightly";
  known.job.spec.array = JobId{6};
  known.job.spec.array_index = 3;
  put({known, entry(1), entry(2, "eval"), job, pod, other_gpu});
  EXPECT_EQ(text({.by = By::kUser}), "nobody 16; 1001 8; 1000 4");
  EXPECT_EQ(text({.by = By::kJob}), "nobody 16; 1001 job 7 8; 1000 4");
  EXPECT_EQ(text({.by = By::kPod}), "nobody team-a/serve-0 16; 1001 8; 1000 4");
  EXPECT_EQ(text({.by = By::kProgram}), "nobody team-a/serve-0 serve 16; 1001 train 8; 1000 eval 2; 1000 train 2");
  EXPECT_EQ(text({.by = By::kProgram, .uid = 1000}), "1000 eval 2; 1000 train 2");
  const LedgerTotal row = report({.by = By::kJob}).rows[1];
  EXPECT_EQ(row.job_name, "nightly");
  EXPECT_EQ(row.array, JobId{6});
  EXPECT_EQ(row.array_index, 3u);
}

TEST_F(StoredLedger, WhatIsBeyondTheRowsOfAReportIsSummed) {
  put({entry(1, "a"), entry(2, "b"), entry(4, "c"), entry(8, "d")});
  const LedgerReport two = report({.by = By::kProgram, .at_most = 2});
  ASSERT_EQ(two.rows.size(), 2u);
  EXPECT_EQ(two.rows[0].program, "d");
  ASSERT_TRUE(two.rest);
  EXPECT_EQ(two.rest->held, 3);
  EXPECT_EQ(two.rest->switches, 2u);
}

// Others' programs and pods come as one sum of each of them, jobs as they are.
TEST_F(StoredLedger, AReportTellsApartOnlyTheNamesThatItsReaderSees) {
  AddToLedger job = entry(8, "secret", 1001);
  job.row.program->job = JobId{7};
  AddToLedger pod = entry(16, "serve");
  pod.row.owner = {std::nullopt, "team-a", "serve-0"};
  AddToLedger other_pod = pod;
  other_pod.row.owner.pod = "serve-1";
  put({entry(1), entry(2, "hidden", 1001), job, pod, other_pod});
  EXPECT_EQ(text({.by = By::kProgram, .names_of = 1000}), "nobody 32; 1001 10; 1000 train 1");
  EXPECT_EQ(text({.by = By::kPod, .names_of = 1000}), "nobody 32; 1001 10; 1000 1");
  EXPECT_EQ(text({.by = By::kJob, .names_of = 1000}), "nobody 32; 1001 job 7 8; 1001 2; 1000 1");
}

TEST_F(StoredLedger, APeriodCountsIfAPartOfItWasAskedFor) {
  for (int hour = 0; hour < 4; ++hour) put({entry(1 << hour, "train", 1000, kStart + hour * kHour + kHour / 2)});
  const auto held = [&](WallTime since, WallTime until) {
    const LedgerReport found = report({.since = since, .until = until});
    return found.rows.empty() ? 0 : found.rows[0].sums.held;
  };
  EXPECT_EQ(held(kStart, kStart + 4 * kHour), 15);
  EXPECT_EQ(held(kStart + kHour, kStart + 2 * kHour), 2);
  EXPECT_EQ(held(kStart + kHour - 1, kStart + 2 * kHour), 3);
  EXPECT_EQ(held(kStart + kHour, kStart + 2 * kHour + 1), 6);
  EXPECT_EQ(held(kStart + 4 * kHour, kAllTime), 0);
  const LedgerReport found = report({.since = kStart + kHour + 1, .until = kStart + kHour + 2});
  EXPECT_EQ(found.since, kStart + kHour);
  EXPECT_EQ(found.until, kStart + 2 * kHour);
}

TEST_F(StoredLedger, HoursBecomeDaysAndDaysGo) {
  for (int hour = 0; hour < 72; ++hour) put({entry(1, "train", 1000, kStart + hour * kHour)});
  // Day by day, as far as it may at a time.
  const RollUpLedger first_day{.hours_before = kStart + kDay + kHour / 2, .days_before = 0, .at_most = 10};
  EXPECT_EQ(put({first_day})[0].pruned, 10u);
  EXPECT_EQ(put({first_day})[0].pruned, 10u);
  EXPECT_EQ(put({first_day})[0].pruned, 4u);
  EXPECT_EQ(put({first_day})[0].pruned, 0u) << "the hour in which it ends stays";
  EXPECT_EQ(report({}).rows.at(0).sums.held, 72);
  EXPECT_EQ(report({}).rows.at(0).sums.switches, 72u);
  // A part of it is all of it; the next day still has hours.
  EXPECT_EQ(report({.since = kStart + 5 * kHour, .until = kStart + 6 * kHour}).rows.at(0).sums.held, 24);
  EXPECT_EQ(report({.since = kStart + 25 * kHour, .until = kStart + 26 * kHour}).rows.at(0).sums.held, 1);
  // Figures that come late are added to those that are there.
  put({entry(1)});
  EXPECT_EQ(put({first_day})[0].pruned, 1u);
  EXPECT_EQ(report({.until = kStart + kDay}).rows.at(0).sums.held, 25);
  const RollUpLedger forget{.hours_before = kStart + 2 * kDay, .days_before = kStart + kDay + kHour, .at_most = 100};
  EXPECT_EQ(put({forget})[0].pruned, 24u);
  EXPECT_EQ(report({}).rows.at(0).sums.held, 48);
}

TEST_F(StoredLedger, AnOwnerWithEverNewNamesLosesOnlyItsOwn) {
  std::vector<Change> changes;
  for (std::uint32_t i = 0; i < kMaxOwnerRows + 200; ++i) changes.push_back(entry(1, "p" + std::to_string(i)));
  changes.push_back(entry(5, "train", 1001));
  AddToLedger job = entry(1, "late");
  job.row.program->job = JobId{9};
  changes.push_back(job);
  put(changes);
  const auto check = [&](double others, std::size_t rows) {
    const LedgerReport all = report({.by = By::kProgram});
    EXPECT_EQ(all.rows.size(), rows);
    const auto held = [&](std::uint32_t uid, bool is_others) {
      for (const LedgerTotal& row : all.rows) {
        if (row.owner.uid == uid && row.others == is_others) return row.sums.held;
      }
      return 0.0;
    };
    EXPECT_EQ(held(1000, true), others);
    EXPECT_EQ(held(1001, false), 5);
  };
  check(201, kMaxOwnerRows + 2);
  EXPECT_EQ(text({.by = By::kUser}), "1000 1201; 1001 5");
  // The same names have their places still, in this hour; and a day has no more than an hour.
  put({entry(1, "p0"), entry(1, "late")});
  check(202, kMaxOwnerRows + 2);
  put({entry(1, "next hour", 1000, kStart + kHour)});
  while (put({RollUpLedger{.hours_before = kStart + kDay, .days_before = 0}})[0].pruned != 0) continue;
  check(203, kMaxOwnerRows + 2);
  EXPECT_EQ(text({.by = By::kUser}), "1000 1204; 1001 5");
}

TEST_F(StoredLedger, SumsAreMoreThanTheNanosecondsOf64Bits) {
  for (int i = 0; i < 4; ++i) put({entry(4e9)});
  EXPECT_EQ(report({}).rows.at(0).sums.held, 16e9);
}

TEST_F(StoredLedger, ANameThatIsTooLongIsRefused) {
  EXPECT_EQ(store_->commit({entry(1, std::string(kMaxLedgerTextBytes + 1, 'x'))}).error().code, base::Code::kInvalid);
  put({entry(1, std::string("a'\0\xff\n", 5))});
  EXPECT_EQ(report({.by = By::kProgram}).rows.at(0).program, std::string("a'\0\xff\n", 5));
}

// On a full disk it is not stored, and takes nothing of what is reserved for jobs.
TEST(LedgerOnAFullDisk, LeavesTheReserveToJobs) {
  TemporaryDirectory folder;
  PowerCutVfs vfs;
  auto opened = open_sqlite_store({folder.file("jobs.db"), PowerCutVfs::kName});
  ASSERT_TRUE(opened) << opened.error().message();
  std::vector<Change> jobs;
  for (std::uint64_t id = 1; id <= 500; ++id) jobs.push_back(insert(id));
  ASSERT_TRUE((*opened)->commit(jobs));
  vfs.set_full(true);
  std::uint64_t refused = 0;
  for (int i = 0; i < 5000 && refused < 50; ++i) {
    const auto added = (*opened)->commit({entry(1, "p" + std::to_string(i), static_cast<std::uint32_t>(i))});
    if (!added) {
      EXPECT_EQ(added.error().code, base::Code::kExhausted) << added.error().message();
      ++refused;
    }
  }
  EXPECT_EQ(refused, 50u);
  for (std::uint64_t id = 1; id <= 500; id += 100) {
    std::vector<Change> ends;
    for (std::uint64_t i = id; i < id + 100; ++i) ends.push_back(done(i, static_cast<WallTime>(i)));
    const auto ended = (*opened)->commit(ends);
    ASSERT_TRUE(ended) << ended.error().message();
  }
  vfs.set_full(false);
  EXPECT_TRUE((*opened)->commit({entry(1)}));
}

// Each commit adds a second, or makes a few hours days. So the sum says how many were there.
TEST(LedgerPowerCut, NothingIsLostOrCountedTwice) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr std::uint64_t kAdded = 12;
  const auto open = [](const std::string& path, const std::string& vfs) {
    return open_sqlite_store({path, vfs, 12, 16'384});
  };
  const auto sum_of = [](const JobStore& store) {
    const auto report = store.report({.since = 0, .until = kAllTime});
    EXPECT_TRUE(report) << report.error().message();
    return !report || report->rows.empty() ? 0.0 : report->rows[0].sums.held;
  };
  std::vector<FileOperation> log;
  {
    TemporaryDirectory folder;
    PowerCutVfs vfs;
    auto store = open(folder.file("jobs.db"), PowerCutVfs::kName);
    ASSERT_TRUE(store) << store.error().message();
    vfs.acknowledged(0);
    for (std::uint64_t n = 1; n <= kAdded; ++n) {
      const WallTime at = kStart + static_cast<WallTime>(n) * kHour;
      ASSERT_TRUE((*store)->commit({entry(0.5, "a", 1000, at), entry(0.5, "b", 1000, at)}));
      vfs.acknowledged(n);
      if (n % 3 != 0) continue;
      ASSERT_TRUE((*store)->commit({RollUpLedger{.hours_before = at, .days_before = 0, .at_most = 3}}));
    }
    EXPECT_EQ(sum_of(**store), static_cast<double>(kAdded));
    log = vfs.log();
  }
  std::uint64_t acknowledged = 0, beyond = 0;
  bool is_made = false;
  for (std::size_t count = 0; count <= log.size(); ++count) {
    if (count > 0 && log[count - 1].kind == FileOperation::Kind::kAcknowledged) {
      acknowledged = log[count - 1].at;
      is_made = true;
    }
    TemporaryDirectory folder;
    PowerCutVfs::write_survivors(log, count, random, folder.path());
    auto store = open(folder.file("jobs.db"), "");
    ASSERT_TRUE(store) << "after " << count << " operations: " << store.error().message();
    if (!is_made) continue;
    const double sum = sum_of(**store);
    ASSERT_TRUE(sum == static_cast<double>(acknowledged) || sum == static_cast<double>(acknowledged + 1))
        << "after " << count << " operations: " << sum << " of " << acknowledged;
    beyond += sum > static_cast<double>(acknowledged) ? 1u : 0u;
  }
  EXPECT_EQ(acknowledged, kAdded);
  EXPECT_GT(beyond, 0u);
}

}  // namespace
}  // namespace gpumux::jobs::store
