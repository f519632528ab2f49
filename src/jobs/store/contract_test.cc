// SPDX-License-Identifier: Apache-2.0
// The promises of job_store.h, kept by the SQLite file also after it is opened again.
#include <gtest/gtest.h>

#include <functional>

#include "jobs/store/sqlite_store.h"
#include "jobs/store/store_test_support.h"

namespace gpumux::jobs::store {
namespace {

using jobs::Dependency;
using jobs::JobState;
using jobs::Outcome;
using jobs::Record;

class Contract : public ::testing::Test {
 protected:
  void SetUp() override { open(); }
  void open() {
    store_.reset();
    auto opened = open_sqlite_store({folder_.file("jobs.db"), "", kCheckpointPages});
    ASSERT_TRUE(opened) << opened.error().message();
    store_ = std::move(*opened);
  }

  std::vector<Applied> put(const std::vector<Change>& changes) {
    auto applied = store_->commit(changes);
    EXPECT_TRUE(applied) << applied.error().message();
    return applied.value_or(std::vector<Applied>());
  }
  std::string ids(const Query& query) {
    auto page = store_->page(query);
    EXPECT_TRUE(page) << page.error().message();
    std::string text;
    for (const StoredJob& job : page->jobs) text += std::to_string(job.spec.id.value) + " ";
    return text + (page->more ? "..." : "");
  }

  TemporaryDirectory folder_;
  std::unique_ptr<JobStore> store_;
};

bool same(const StoredJob& a, const StoredJob& b) {
  return a.spec == b.spec && a.core == b.core && a.name == b.name && a.log == b.log && a.command == b.command &&
         a.token == b.token && a.submitted_at == b.submitted_at && a.started_at == b.started_at &&
         a.ended_at == b.ended_at && a.exit_status == b.exit_status && a.note == b.note && a.begin_at == b.begin_at &&
         a.gpu_order == b.gpu_order;
}

TEST_F(Contract, EverythingComesBackAsItWas) {
  Insert change = insert(7, 1000, "token");
  jobs::JobSpec& spec = change.job.spec;
  spec.gpus = {0, 65, 127};
  spec.gpu_count = 3;
  spec.memory = (std::uint64_t{1} << 63) + 5;  // more than a signed number takes
  spec.time_limit = std::chrono::hours(24 * 365);
  spec.on_limit = jobs::OnLimit::kCancel;
  spec.exclusive = spec.requeue = true;
  spec.array = JobId{7};
  spec.array_index = 4'000'000'000;
  spec.array_limit = 2;
  spec.order = 12;
  spec.priority = -5;
  spec.held = true;
  spec.after = {{JobId{3}, true, Dependency::Need::kAny, Dependency::Fate::kMet},
                {JobId{4}, false, Dependency::Need::kOk, Dependency::Fate::kMet}};
  change.job.core = Record{JobId{7}, JobState::kHeld, Outcome::kNone, 3, {1, 2}, 12, -5, true, std::chrono::minutes(3)};
  change.job.name = "name with 'quotes', \n lines and \xC3\xBC";
  change.job.command = "python3 train.py --text 'a b'";
  change.job.log = "/data/eva/.local/state/gpumux/logs/ab/7.log";
  change.job.note = "note";
  change.job.begin_at = 1'800'000'000'000'000'000;
  change.job.gpu_order = {127, 0, 65};
  change.document = std::make_shared<const std::string>("a document\0with a zero and \xFF bytes", 34);
  put({change});
  auto found = store_->find(JobId{7});
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_TRUE(same(*found, change.job));
  EXPECT_EQ(store_->document(JobId{7}).value(), *change.document);
  open();
  EXPECT_TRUE(same(*store_->find(JobId{7}), change.job));
  EXPECT_EQ(store_->document(JobId{7}).value(), *change.document);
}

TEST_F(Contract, WhatIsNotThereIsNotFound) {
  EXPECT_EQ(store_->find(JobId{1}).error().code, base::Code::kNotFound);
  EXPECT_EQ(store_->document(JobId{1}).error().code, base::Code::kNotFound);
  EXPECT_EQ(store_->fate({JobId{1}}).error().code, base::Code::kNotFound);
  EXPECT_EQ(store_->find_token(1, "token").value(), std::nullopt);
  EXPECT_FALSE(put({done(1, 5)})[0].done);
  EXPECT_EQ(store_->next_id()->value, 1u);
  EXPECT_EQ(ids({}), "");
}

TEST_F(Contract, AnUpdateIsTheWholeRow) {
  Insert first = insert(1, 1000, "token");
  first.job.begin_at = 7;
  put({first, insert(2), AddToJob{JobId{1}, 1.5, 70}});
  Update change;
  change.core = {JobId{1}, JobState::kRunning, Outcome::kNone, 2, {0, 3}, 99, 4, true, std::chrono::seconds(5), 3};
  change.started_at = 111;
  change.ended_at = 222;
  change.exit_status = 137;
  change.note = "killed";
  change.gpu_order = {2, 0};
  change.request = {{0, 2}, 2, (std::uint64_t{1} << 63) + 5, std::chrono::hours(3)};
  StoredJob expected = first.job;
  static_cast<Progress&>(expected) = change;
  expected.spec.ask(change.request);
  expected.spec.order = 99;
  expected.spec.priority = 4;
  expected.spec.capped = 3;
  expected.spec.held = true;
  EXPECT_TRUE(put({change})[0].done);
  EXPECT_TRUE(same(store_->find(JobId{1}).value(), expected));
  open();
  EXPECT_TRUE(same(store_->find(JobId{1}).value(), expected));
  EXPECT_EQ(store_->find(JobId{1})->gpu_seconds, 1.5);
  EXPECT_EQ(store_->document(JobId{1}).value(), *first.document);
  EXPECT_TRUE(same(store_->find(JobId{2}).value(), insert(2).job));
}

TEST_F(Contract, WhatAJobHasHadIsAdded) {
  put({insert(1)});
  EXPECT_EQ(store_->find(JobId{1})->gpu_seconds, 0);
  EXPECT_TRUE(put({AddToJob{JobId{1}, 1.5, 70}})[0].done);
  EXPECT_TRUE(put({AddToJob{JobId{1}, 2, 60}, done(1, 9)})[0].done);
  EXPECT_FALSE(put({AddToJob{JobId{2}, 2, 60}})[0].done);
  open();
  const StoredJob job = store_->find(JobId{1}).value();
  EXPECT_EQ(job.gpu_seconds, 3.5);
  EXPECT_EQ(job.peak_memory, 70u) << "the highest";
}

TEST_F(Contract, ATokenIsTakenOnce) {
  EXPECT_TRUE(put({insert(1, 1000, "abc")})[0].done);
  const auto applied = put({insert(2, 1000, "abc"), insert(3, 1001, "abc"), insert(4, 1000, ""), insert(5, 1000, "")});
  EXPECT_FALSE(applied[0].done);
  EXPECT_EQ(applied[0].first, JobId{1});
  EXPECT_TRUE(applied[1].done);  // another user's
  EXPECT_TRUE(applied[2].done);
  EXPECT_TRUE(applied[3].done);  // no token is no token
  EXPECT_EQ(store_->find(JobId{2}).error().code, base::Code::kNotFound);
  EXPECT_EQ(store_->document(JobId{2}).error().code, base::Code::kNotFound);
  EXPECT_EQ(store_->find_token(1000, "abc").value(), JobId{1});
  EXPECT_EQ(store_->find_token(1000, "").value(), std::nullopt);
  // Twice in one commit.
  const auto twice = put({insert(6, 1000, "x"), insert(7, 1000, "x")});
  EXPECT_TRUE(twice[0].done);
  EXPECT_EQ(twice[1].first, JobId{6});
}

TEST_F(Contract, ACommitIsWholeOrNothing) {
  put({insert(1)});
  auto failed = store_->commit({insert(2), done(1, 9), insert(1)});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, base::Code::kExists);
  EXPECT_EQ(ids({}), "1 ");
  EXPECT_EQ(store_->find(JobId{1})->core.state, JobState::kQueued);
  EXPECT_EQ(store_->next_id()->value, 2u);
  EXPECT_EQ(store_->commit({insert(3), insert(3)}).error().code, base::Code::kExists);
  Insert long_name = insert(4);
  long_name.job.name.assign(kMaxNameBytes + 1, 'x');
  EXPECT_EQ(store_->commit({insert(3), long_name}).error().code, base::Code::kInvalid);
  EXPECT_EQ(store_->commit({insert(0)}).error().code, base::Code::kInvalid);
  EXPECT_EQ(ids({}), "1 ");
  put({insert(2)});  // and it goes on working
  EXPECT_EQ(ids({}), "1 2 ");
}

TEST_F(Contract, PagesInBothDirections) {
  std::vector<Change> changes;
  for (std::uint64_t id = 1; id <= 10; ++id) changes.push_back(insert(id, id % 2 == 0 ? 1000 : 1001));
  for (const std::uint64_t id : {2u, 3u, 9u}) changes.push_back(done(id, 5));
  put(changes);
  Query query;
  query.at_most = 4;
  EXPECT_EQ(ids(query), "1 2 3 4 ...");
  query.beyond = JobId{4};
  EXPECT_EQ(ids(query), "5 6 7 8 ...");
  query.beyond = JobId{8};
  EXPECT_EQ(ids(query), "9 10 ");
  query = {};
  query.order = Query::Order::kNewest;
  query.at_most = 4;
  EXPECT_EQ(ids(query), "10 9 8 7 ...");
  query.beyond = JobId{4};
  EXPECT_EQ(ids(query), "3 2 1 ");
  query = {};
  query.which = Query::Which::kUnfinished;
  query.uid = 1000;
  EXPECT_EQ(ids(query), "4 6 8 10 ");
  query.which = Query::Which::kDone;
  query.uid = std::nullopt;
  EXPECT_EQ(ids(query), "2 3 9 ");
}

// History is read so: a job that was submitted first may have ended last.
TEST_F(Contract, PagesByTheTimeOfTheEnd) {
  std::vector<Change> changes;
  for (std::uint64_t id = 1; id <= 6; ++id) changes.push_back(insert(id, id % 2 == 0 ? 1000 : 1001));
  const std::vector<std::pair<std::uint64_t, WallTime>> ends{{1, 50}, {2, 10}, {3, 40}, {5, 40}, {6, 20}};
  for (const auto& [id, at] : ends) changes.push_back(done(id, at));
  put(changes);
  Query query;
  query.which = Query::Which::kDone;
  query.order = Query::Order::kLatestEnd;
  query.at_most = 2;
  EXPECT_EQ(ids(query), "1 5 ...");
  query.beyond = JobId{5};
  query.beyond_ended = 40;
  EXPECT_EQ(ids(query), "3 6 ...");
  query.beyond = JobId{6};
  query.beyond_ended = 20;
  EXPECT_EQ(ids(query), "2 ");
  query.beyond = JobId{99};
  query.beyond_ended = 40;
  EXPECT_EQ(ids(query), "5 3 ...") << "where the last one stood says its time, also if it is gone";
  query.beyond = {};
  query.uid = 1001;
  EXPECT_EQ(ids(query), "1 5 ...");
  query.beyond = JobId{5};
  query.beyond_ended = 40;
  EXPECT_EQ(ids(query), "3 ");
}

TEST_F(Contract, HistoryOfATimeAndOfOutcomes) {
  std::vector<Change> changes;
  for (std::uint64_t id = 1; id <= 5; ++id) changes.push_back(insert(id));
  for (const auto& [id, at, outcome] : {std::tuple(1, 10, Outcome::kOk), std::tuple(2, 20, Outcome::kFailed),
                                        std::tuple(3, 30, Outcome::kLost), std::tuple(4, 40, Outcome::kFailed)})
    changes.push_back(done(static_cast<std::uint64_t>(id), at, outcome));
  put(changes);
  Query query;
  query.which = Query::Which::kDone;
  query.order = Query::Order::kLatestEnd;
  query.ended_since = 20;
  EXPECT_EQ(ids(query), "4 3 2 ");
  query.outcomes = {Outcome::kFailed};
  query.at_most = 1;
  EXPECT_EQ(ids(query), "4 ...");
  query.beyond = JobId{4};
  query.beyond_ended = 40;
  EXPECT_EQ(ids(query), "2 ");
  query = {};
  query.which = Query::Which::kDone;
  query.outcomes = {Outcome::kOk, Outcome::kLost};
  EXPECT_EQ(ids(query), "1 3 ");
}

TEST_F(Contract, ElementsOfAnArray) {
  std::vector<Change> changes;
  for (std::uint64_t id = 1; id <= 4; ++id) {
    Insert element = insert(id);
    if (id != 2) element.job.spec.array = JobId{1};
    element.job.spec.array_index = static_cast<std::uint32_t>(10 * id);
    changes.push_back(element);
  }
  put(changes);
  Query query;
  query.array = JobId{1};
  EXPECT_EQ(ids(query), "1 3 4 ");
  query.array_index = 30;
  EXPECT_EQ(ids(query), "3 ");
  query.array_index = 20;
  EXPECT_EQ(ids(query), "");
}

TEST_F(Contract, UnfinishedOnesWithTheFatesOfWhatTheyWaitFor) {
  Insert after = insert(5);
  after.job.spec.after = {{JobId{1}},  {JobId{2}},
                          {JobId{3}},  {JobId{2}, false, Dependency::Need::kAny},
                          {JobId{77}}, {JobId{77}, false, Dependency::Need::kOk, Dependency::Fate::kMet}};
  put({insert(1), insert(2), insert(3), insert(4), after});
  put({done(1, 10), done(2, 10, Outcome::kFailed), done(4, 10)});
  const auto unfinished = store_->unfinished().value();
  ASSERT_EQ(unfinished.size(), 2u);
  EXPECT_EQ(unfinished[0].spec.id, JobId{3});
  EXPECT_EQ(unfinished[1].spec.id, JobId{5});
  ASSERT_EQ(unfinished[1].spec.after.size(), 6u);
  using Fate = Dependency::Fate;
  const Fate expected[] = {Fate::kMet, Fate::kBroken, Fate::kPending, Fate::kMet, Fate::kBroken, Fate::kMet};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(unfinished[1].spec.after[i].fate, expected[i]) << i;
}

TEST_F(Contract, FatesOfArrays) {
  std::vector<Change> changes;
  for (std::uint64_t id = 1; id <= 3; ++id) {
    Insert element = insert(id);
    element.job.spec.array = JobId{1};
    changes.push_back(element);
  }
  put(changes);
  using Fate = Dependency::Fate;
  const Dependency ok{JobId{1}, true}, any{JobId{1}, true, Dependency::Need::kAny};
  put({done(1, 5)});
  EXPECT_EQ(store_->fate({JobId{1}}).value(), Fate::kMet);  // the element of that id
  EXPECT_EQ(store_->fate(ok).value(), Fate::kPending);
  put({done(2, 5, Outcome::kFailed)});
  EXPECT_EQ(store_->fate(ok).value(), Fate::kBroken);
  EXPECT_EQ(store_->fate(any).value(), Fate::kPending);
  put({done(3, 5)});
  EXPECT_EQ(store_->fate(any).value(), Fate::kMet);
}

TEST_F(Contract, PruningTakesTheOldestAndNeverTheirIds) {
  std::vector<Change> changes;
  for (std::uint64_t id = 1; id <= 6; ++id) changes.push_back(insert(id, 1000, "t" + std::to_string(id)));
  for (std::uint64_t id = 2; id <= 6; ++id) changes.push_back(done(id, 100 - static_cast<WallTime>(id)));
  put(changes);
  EXPECT_EQ(put({Prune{97, 2}})[0].pruned, 2u);  // ended at 94 and 95: 6 and 5
  EXPECT_EQ(ids({}), "1 2 3 4 ");
  EXPECT_EQ(put({Prune{97, 100}})[0].pruned, 1u);  // 96; 97 is not before 97
  EXPECT_EQ(ids({}), "1 2 3 ");
  EXPECT_EQ(store_->document(JobId{6}).error().code, base::Code::kNotFound);
  EXPECT_EQ(store_->find_token(1000, "t6").value(), std::nullopt);
  open();
  EXPECT_EQ(store_->next_id()->value, 7u);
  EXPECT_EQ(put({Prune{INT64_MAX, 100}})[0].pruned, 2u);
  EXPECT_EQ(ids({}), "1 ");  // unfinished jobs stay
}

TEST_F(Contract, PruningLeavesWhatAnUnfinishedJobComesAfter) {
  std::vector<Change> changes;
  for (std::uint64_t id = 1; id <= 6; ++id) {
    changes.push_back(insert(id));
    if (id >= 3 && id <= 5) std::get<Insert>(changes.back()).job.spec.array = JobId{3};
  }
  Insert after_jobs = insert(7), after_array = insert(8), known = insert(9);
  after_jobs.job.spec.after = {{JobId{1}}, {JobId{2}}};  // 2 takes long
  after_array.job.spec.after = {{JobId{3}, true}, {JobId{2}}};
  known.job.spec.after = {{JobId{6}, false, Dependency::Need::kOk, Dependency::Fate::kMet}};  // stored with it
  for (const Insert& dependent : {after_jobs, after_array, known}) changes.push_back(dependent);
  changes.push_back(done(4, 10, Outcome::kFailed));
  for (const std::uint64_t id : {1u, 3u, 5u, 6u}) changes.push_back(done(id, 11));
  put(changes);
  EXPECT_EQ(put({Prune{INT64_MAX, 100}})[0].pruned, 1u);
  EXPECT_EQ(ids({}), "1 2 3 4 5 7 8 9 ");
  open();
  const auto unfinished = store_->unfinished().value();
  ASSERT_EQ(unfinished.size(), 4u);
  EXPECT_EQ(unfinished[1].spec.after[0].fate, Dependency::Fate::kMet);
  EXPECT_EQ(unfinished[1].spec.after[1].fate, Dependency::Fate::kPending);
  EXPECT_EQ(unfinished[2].spec.after[0].fate, Dependency::Fate::kBroken);
  EXPECT_EQ(unfinished[3].spec.after[0].fate, Dependency::Fate::kMet);
  // No unfinished job needs the array any more. Jobs that are kept do not count in `at_most`.
  put({done(8, 20)});
  EXPECT_EQ(put({Prune{INT64_MAX, 2}})[0].pruned, 2u);
  EXPECT_EQ(ids({}), "1 2 5 7 8 9 ");
  EXPECT_EQ(put({Prune{INT64_MAX, 100}})[0].pruned, 2u);
  put({done(7, 20)});
  EXPECT_EQ(put({Prune{INT64_MAX, 100}})[0].pruned, 2u);
  EXPECT_EQ(ids({}), "2 9 ");
}

TEST_F(Contract, DocumentsOfJobsThatAreDoneAreDropped) {
  put({insert(1), insert(2)});
  put({done(1, 10)});
  EXPECT_EQ(store_->document(JobId{1}).error().code, base::Code::kNotFound);
  EXPECT_TRUE(store_->find(JobId{1}));
  const auto unfinished = store_->unfinished().value();
  ASSERT_EQ(unfinished.size(), 1u);
  EXPECT_EQ(unfinished[0].document_bytes, insert(2).text().size());
  Insert done_at_once = insert(3);
  done_at_once.job.core.state = JobState::kDone;
  done_at_once.job.spec.after = {{JobId{2}}};
  put({done_at_once});
  EXPECT_EQ(store_->document(JobId{3}).error().code, base::Code::kNotFound);
  EXPECT_TRUE(store_->find(JobId{3})->spec.after.empty());
  EXPECT_EQ(store_->next_id()->value, 4u);
}

TEST_F(Contract, DependenciesOfJobsThatAreDoneAreDropped) {
  Insert after = insert(2);
  after.job.spec.after = {{JobId{1}}, {JobId{77}, false, Dependency::Need::kOk, Dependency::Fate::kMet}};
  put({insert(1), after});
  EXPECT_EQ(store_->find(JobId{2})->spec.after.size(), 2u);
  put({done(2, 10, Outcome::kCancelled)});
  open();
  EXPECT_EQ(store_->find(JobId{2})->spec.after.size(), 0u);
}

TEST_F(Contract, PruningOfOneUserLeavesTheOthers) {
  std::vector<Change> changes;
  for (std::uint64_t id = 1; id <= 6; ++id) changes.push_back(insert(id, id % 2 == 0 ? 1000 : 1001));
  Insert after = insert(7, 1000);
  after.job.spec.after = {{JobId{2}}};
  changes.push_back(after);
  for (std::uint64_t id = 1; id <= 6; ++id) changes.push_back(done(id, static_cast<WallTime>(id)));
  put(changes);
  EXPECT_EQ(store_->with_more_done_than(2).value(), (std::map<std::uint32_t, std::uint64_t>{{1000, 1}, {1001, 1}}));
  EXPECT_EQ(store_->with_more_done_than(3).value(), (std::map<std::uint32_t, std::uint64_t>()));
  EXPECT_EQ(put({Prune{INT64_MAX, 1, 1000}})[0].pruned, 1u);
  EXPECT_EQ(ids({}), "1 2 3 5 6 7 ") << "the oldest that no job comes after";
  EXPECT_EQ(put({Prune{INT64_MAX, 100, 1001}})[0].pruned, 3u);
  EXPECT_EQ(ids({}), "2 6 7 ");
}

TEST_F(Contract, UsageAndValues) {
  put({PutUsage{1000, 5, 1}, PutUsage{1001, std::uint64_t{1} << 62, 2}, PutValue{"a", "1"}, PutValue{"b", "2"}});
  put({PutUsage{1000, 6, 3}, PutValue{"a", ""}, PutValue{"b", "3"}});
  open();
  const auto usage = store_->usage().value();
  ASSERT_EQ(usage.size(), 2u);
  EXPECT_EQ(usage[0].gpu_microseconds, 6u);
  EXPECT_EQ(usage[0].at, 3);
  EXPECT_EQ(usage[1].gpu_microseconds, std::uint64_t{1} << 62);
  EXPECT_EQ(store_->values().value(), (std::map<std::string, std::string>{{"b", "3"}}));
}

}  // namespace
}  // namespace gpumux::jobs::store
