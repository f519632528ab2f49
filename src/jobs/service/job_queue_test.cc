// SPDX-License-Identifier: Apache-2.0
// Goal: the queue goes on whatever becomes of a client that asks it. Method: a real queue in a folder of its own,
// paused, so that no job runs.
#include "jobs/service/job_queue.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <SQLiteCpp/SQLiteCpp.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "jobs/service/job_api.h"
#include "jobs/service/job_queue_test_support.h"
#include "server/api/routes.h"

namespace gpumux::jobs {
namespace {

using namespace std::chrono_literals;

// No job has had any memory.
std::map<std::uint64_t, std::uint64_t> no_peaks() { return {}; }

TEST_F(Queue, CanBeOff) {
  JobQueue off(io_, clock_);
  off.open({.state_dir = std::string(kNoStateDir), .runtime_dir = folder_.path() + "/run", .is_private = true}, {}, {},
           node_);
  EXPECT_NE(off.unavailable().find("--state-dir none"), std::string::npos) << off.unavailable();
}

TEST_F(Queue, OpensWithWhatIsLeftOfADamagedFile) {
  std::optional<JobId> job;
  queue_->submit(submission(), [&job](const base::Result<JobQueue::Submitted>& submitted) {
    ASSERT_TRUE(submitted) << submitted.error().message();
    job = submitted->id;
  });
  ASSERT_TRUE(run_until([&job] { return job.has_value(); }));
  for (const char* damage :
       {"INSERT OR REPLACE INTO kept VALUES ('limits/77', '[\"many\", 1, 2, 3]')",
        "INSERT INTO usage VALUES (-5, 1, 1)", "INSERT INTO dependencies VALUES (99, 0, 1, 0, 0, 0, 0)",
        "UPDATE counters SET value = -1"}) {
    SCOPED_TRACE(damage);
    queue_->close();
    queue_.reset();
    SQLite::Database(folder_.path() + "/state/jobs.db", SQLite::OPEN_READWRITE).exec(damage);
    SetUp();
    ASSERT_EQ(queue_->unavailable(), "");
    EXPECT_TRUE(queue_->store()->find(*job));
  }
}

// Both are in one commit or in two: the consequences of the first are settled all the same, now and later.
TEST_F(Queue, OutlivesAReplyThatFails) {
  std::vector<JobId> told;
  const auto tell = [&told](const base::Result<JobQueue::Submitted>& submitted) {
    ASSERT_TRUE(submitted) << submitted.error().message();
    told.push_back(submitted->id);
  };
  queue_->submit(submission(), [](const base::Result<JobQueue::Submitted>&) {
    throw std::runtime_error("as if there were no memory for the answer");
  });
  queue_->submit(submission(), tell);
  EXPECT_NO_THROW(EXPECT_TRUE(run_until([&] { return told.size() == 1; })));
  queue_->submit(submission(), tell);
  EXPECT_NO_THROW(EXPECT_TRUE(run_until([&] { return told.size() == 2; })));
  EXPECT_EQ(told, (std::vector<JobId>{JobId{2}, JobId{3}}));
  EXPECT_EQ(queue_->unfinished(std::nullopt).size(), 3u) << "the one whose answer failed has been handed in";
}

TEST_F(Queue, CountsDependenciesAmongTheBytesOfTheirUser) {
  const auto is_taken = [&](std::size_t dependencies) {
    auto made = std::make_shared<Submission>(*submission());
    made->spec.after.assign(dependencies, {JobId{1}, false, Dependency::Need::kAny, {}});
    std::optional<bool> taken;
    queue_->submit(made,
                   [&taken](const base::Result<JobQueue::Submitted>& submitted) { taken = submitted.has_value(); });
    EXPECT_TRUE(run_until([&] { return taken.has_value(); }));
    return taken.value_or(false);
  };
  settings::QueueSettings config = queue_->config();
  config.max_bytes = 3 * submission()->document_text.size() + 10 * kDependencyBytes;
  queue_->set_config(config);
  EXPECT_TRUE(is_taken(0));
  EXPECT_TRUE(is_taken(6));
  EXPECT_FALSE(is_taken(6));
  EXPECT_TRUE(is_taken(4));
}

// A file system with room for an attempt's directory and specification, and none for what claims it.
class FullQueue : public Queue {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to mount a small file system";
    jobs_ = folder_.path() + "/state/jobs";
    std::filesystem::create_directories(jobs_);
    ::chmod((folder_.path() + "/state").c_str(), 0700);
    if (::mount("gpumux-test", jobs_.c_str(), "tmpfs", 0, "nr_inodes=3,mode=0700") != 0)
      GTEST_SKIP() << "no file system can be mounted here: " << std::strerror(errno);
    Queue::SetUp();
  }

  void TearDown() override {
    Queue::TearDown();
    ::umount2(jobs_.c_str(), MNT_DETACH);
  }

  bool has_changed(std::string_view how) {
    return std::any_of(node_.changes.begin(), node_.changes.end(),
                       [&](const auto& change) { return change.how == how; });
  }

  std::string jobs_;
};

TEST_F(FullQueue, TriesAgainWhatNeitherRunnerNorDaemonCanClaim) {
  std::optional<JobId> job;
  auto made = std::make_shared<Submission>(*submission());
  made->document.directory = folder_.path();
  made->document.output = folder_.path() + "/log";
  made->document_text = to_text(made->document);
  queue_->submit(made, [&](const base::Result<JobQueue::Submitted>& submitted) {
    ASSERT_TRUE(submitted) << submitted.error().message();
    job = submitted->id;
  });
  ASSERT_TRUE(run_until([&] { return job.has_value(); }));
  queue_->set_paused(false, [](const base::Status& status) { EXPECT_TRUE(status); });
  EXPECT_TRUE(run_until([&] { return has_changed("starting > queued"); }));
  queue_->change({*job}, {.kind = JobQueue::Change::Kind::kCancel}, [](const auto& /*changed*/) {});
  EXPECT_TRUE(run_until([&] { return has_changed("queued > done") || has_changed("ending > done"); }));
}

// Each change of state, with the state before. Of a job to which nothing happens it tells nothing.
TEST_F(Queue, TellsTheNodeOfItsJobs) {
  std::vector<JobId> jobs;
  for (const bool is_held : {false, true}) {
    auto made = std::make_shared<Submission>(*submission());
    made->spec.held = is_held;
    queue_->submit(made, [&](const base::Result<JobQueue::Submitted>& submitted) { jobs.push_back(submitted->id); });
  }
  ASSERT_TRUE(run_until([&] { return jobs.size() == 2; }));
  EXPECT_TRUE(node_.changes.empty());
  for (const auto kind : {JobQueue::Change::Kind::kRelease, JobQueue::Change::Kind::kCancel}) {
    bool is_changed = false;
    queue_->change({jobs[1]}, {.kind = kind}, [&](const auto& changed) { is_changed = changed.has_value(); });
    ASSERT_TRUE(run_until([&] { return is_changed; }));
  }
  std::vector<std::string> changes;
  for (const TestNode::Changed& change : node_.changes) {
    EXPECT_EQ(change.name, "job");
    EXPECT_EQ(change.job, jobs[1]);
    EXPECT_EQ(change.uid, ::getuid());
    changes.push_back(change.how);
  }
  EXPECT_EQ(changes, (std::vector<std::string>{"held > queued", "queued > done"}));
}

// A daemon that is told to stop while it sends a list to a client.
TEST_F(Queue, IsNotWorkedForBySomebodyWhoHasGone) {
  const auto access = server::AccessRules::make({}, ::getuid(), true);
  ASSERT_TRUE(access) << access.error().message();
  LedgerKeeper ledger(
      io_, clock_, *queue_, [] { return std::vector<UsedRow>(); }, no_peaks);
  std::optional<JobApi> api(std::in_place, io_, *queue_, ledger, *access);
  std::atomic<bool> goes = false, has_gone = false, worked_beyond = false;
  boost::asio::post(queue_->pool(), [&] {
    while (!goes) std::this_thread::yield();
    const auto until = std::chrono::steady_clock::now() + 50ms;
    while (!has_gone && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    worked_beyond = has_gone.load();
  });
  goes = true;
  api.reset();
  has_gone = true;
  queue_->pool().join();
  EXPECT_FALSE(worked_beyond) << "work on the pool uses the one whose work it is";
}

// Figures of programs go to the store. They stay in the keeper while the store takes none.
class KeptLedger : public Queue {
 protected:
  void SetUp() override {
    Queue::SetUp();
    ledger_.emplace(
        io_, stopped_, *queue_, [this] { return std::exchange(had_, {}); },
        [this] { return std::exchange(peaks_, {}); });
  }
  static UsedRow line(const std::string& program, base::Duration held) {
    return {.row = {.owner = {1000, "", ""}, .program = store::LedgerProgram{program, kNoJob}, .gpu = "GPU-0"},
            .sums = {.held = std::chrono::duration<double>(held).count()}};
  }
  void flush() {
    bool done = false;
    ledger_->flush([&done] { done = true; });
    EXPECT_TRUE(run_until([&] { return done; }));
  }
  store::LedgerReport report(store::LedgerQuery::By by = store::LedgerQuery::By::kProgram) {
    const auto report = queue_->store()->report({.by = by, .since = 0, .until = INT64_MAX});
    EXPECT_TRUE(report) << report.error().message();
    return report.value_or(store::LedgerReport());
  }

  struct StoppedClock final : base::Clock {
    base::TimePoint now() const override { return time; }
    base::TimePoint time{1h};
  } stopped_;
  std::vector<UsedRow> had_;
  std::map<std::uint64_t, std::uint64_t> peaks_;
  std::optional<LedgerKeeper> ledger_;
};

TEST_F(KeptLedger, IsAddedToAndNoOlderThanASecond) {
  had_ = {line("train", 2s)};
  flush();
  had_ = {line("train", 3s), line("idle", 0s)};
  flush();
  EXPECT_EQ(report().rows.at(0).sums.held, 2) << "it has been asked just now";
  stopped_.time += kFreshEnough;
  flush();
  ASSERT_EQ(report().rows.size(), 1u) << "what has had nothing has no row";
  EXPECT_EQ(report().rows[0].sums.held, 5);
  EXPECT_EQ(report().rows[0].owner.uid, 1000u);
}

TEST_F(KeptLedger, AddsWhatEachJobHasHadToTheJob) {
  std::optional<JobId> job;
  queue_->submit(submission(), [&](const base::Result<JobQueue::Submitted>& submitted) { job = submitted->id; });
  ASSERT_TRUE(run_until([&] { return job.has_value(); }));
  const auto line_of = [&](const char* program, base::Duration gpu_time) {
    UsedRow line = KeptLedger::line(program, gpu_time);
    line.sums.gpu_time = line.sums.held;
    line.row.program->job = *job;
    return line;
  };
  had_ = {line_of("prepare", 2s), line_of("train", 3s), line("other", 9s)};
  peaks_ = {{job->value, 700}, {job->value + 77, 9}};
  flush();
  SQLite::Database other(folder_.path() + "/state/jobs.db", SQLite::OPEN_READWRITE);
  other.exec("BEGIN IMMEDIATE");
  had_ = {line_of("train", 4s)};
  peaks_ = {{job->value, 600}};
  stopped_.time += 1s;
  flush();
  other.exec("ROLLBACK");
  EXPECT_EQ(queue_->store()->find(*job)->gpu_seconds, 5) << "the store takes nothing";
  stopped_.time += 1s;
  flush();
  const auto stored = queue_->store()->find(*job);
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->gpu_seconds, 9);
  EXPECT_EQ(stored->peak_memory, 700u);
}

TEST_F(KeptLedger, IsWholeWhenItCloses) {
  had_ = {line("train", 2s)};
  ledger_->flush(nullptr);  // on its way
  had_ = {line("train", 3s)};
  ledger_->close();
  queue_->close();
  EXPECT_EQ(report().rows.at(0).sums.held, 5);
}

TEST_F(KeptLedger, MakesDaysOfOldHoursWhenItOpens) {
  // More than one commit does, and none of another day.
  constexpr int kRows = 700;
  constexpr store::WallTime kDay = std::chrono::nanoseconds(24h).count();
  const store::WallTime old = (wall_now() - queue_->config().ledger_hours.count()) / kDay * kDay - 2 * kDay;
  std::vector<store::Change> changes;
  for (int i = 0; i < kRows; ++i) {
    const store::LedgerProgram program{"p" + std::to_string(i % 350), kNoJob};
    changes.push_back(store::AddToLedger{.at = old + i / 350 * kDay / 24,
                                         .row = {.owner = {1000, "", ""}, .program = program, .gpu = "GPU-0"},
                                         .sums = {.held = 1}});
  }
  ASSERT_TRUE(queue_->store()->commit(changes));
  had_ = {line("now", 1s)};
  flush();
  SQLite::Database other(folder_.path() + "/state/jobs.db");
  const auto count = [&other](const std::string& what) { return other.execAndGet("SELECT " + what).getInt(); };
  EXPECT_EQ(count("count(*) FROM ledger WHERE is_day = 0"), kRows + 1);
  ledger_->open();
  EXPECT_TRUE(run_until([&] { return count("count(*) FROM ledger WHERE is_day = 0") == 1; }));
  EXPECT_EQ(count("count(*) FROM ledger WHERE is_day = 1"), kRows / 2);
  EXPECT_EQ(count("sum(held) FROM ledger"), kRows + 1);
}

TEST_F(KeptLedger, WaitsForAStoreThatTakesNothing) {
  SQLite::Database other(folder_.path() + "/state/jobs.db", SQLite::OPEN_READWRITE);
  other.exec("BEGIN IMMEDIATE");
  had_ = {line("first", 1s)};
  flush();
  EXPECT_TRUE(report().rows.empty());
  // More rows than it keeps apart.
  for (std::size_t i = 1; i < kMaxUnstoredRows + 100; ++i) had_.push_back(line("p" + std::to_string(i), 1s));
  had_.push_back(line("first", 1s));
  stopped_.time += 1s;
  other.exec("ROLLBACK");
  flush();
  const auto all = report(store::LedgerQuery::By::kUser);
  ASSERT_EQ(all.rows.size(), 1u);
  EXPECT_EQ(all.rows[0].sums.held, static_cast<double>(kMaxUnstoredRows + 101));
  const auto rows = report().rows;
  EXPECT_TRUE(rows.at(0).others) << "the longest held";
  EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [](const auto& row) { return row.program == "first"; }));
}

// GET and PATCH of /v1/jobs, asked as the queue's owner.
class JobLists : public Queue {
 protected:
  void SetUp() override {
    Queue::SetUp();
    access_.emplace(server::AccessRules::make({}, ::getuid(), true).value());
    ledger_.emplace(
        io_, clock_, *queue_, [] { return std::vector<UsedRow>(); }, no_peaks);
    api_.emplace(io_, *queue_, *ledger_, *access_);
  }
  void TearDown() override {
    api_.reset();
    Queue::TearDown();
  }

  void submit(int jobs) {
    for (int i = 0; i < jobs; ++i) hand_in(submission());
  }
  void submit_array(std::uint32_t elements) {
    auto made = std::make_shared<Submission>(*submission());
    made->elements.resize(elements);
    std::iota(made->elements.begin(), made->elements.end(), 0);
    hand_in(made);
  }
  void hand_in(const std::shared_ptr<const Submission>& made) {
    std::optional<bool> taken;
    queue_->submit(made, [&taken](const base::Result<JobQueue::Submitted>& done) { taken = done.has_value(); });
    ASSERT_TRUE(run_until([&] { return taken.has_value(); }));
    ASSERT_TRUE(*taken);
  }

  server::ApiResponse ask(const std::string& method, const std::string& path, const std::string& query,
                          const std::string& body = "") {
    server::ApiAnswer answer = api_->answer({method, path, body, {.pid = ::getpid(), .uid = ::getuid(), .groups = {}}},
                                            std::get<server::RouteMatch>(server::find_route(method, path)), query);
    if (const auto* const at_once = std::get_if<server::ApiResponse>(&answer)) return *at_once;
    std::optional<server::ApiResponse> response;
    std::get<server::ApiLater>(answer)([&response](server::ApiResponse made) { response = std::move(made); });
    EXPECT_TRUE(run_until([&] { return response.has_value(); }));
    return response.value_or(server::ApiResponse());
  }

  void cancel(const std::string& jobs) {
    EXPECT_EQ(ask("PATCH", "/v1/jobs/" + jobs, "", R"({"cancel": true})").status, 200u);
  }

  // The ids of all pages of `query`, in their order. `between` is called after each page but the last, with its number.
  std::vector<std::uint64_t> walk(const std::string& query, const std::function<void(int)>& between) {
    std::vector<std::uint64_t> seen;
    std::string beyond;
    for (int number = 1;; ++number) {
      const server::ApiResponse response = ask("GET", "/v1/jobs", query + beyond);
      const auto page = nlohmann::json::parse(response.body, nullptr, false);
      if (response.status != 200 || page.is_discarded()) {
        ADD_FAILURE() << response.status << ": " << response.body;
        return seen;
      }
      for (const auto& job : page["jobs"]) seen.push_back(job["id"]);
      if (page["more"] == false || page["jobs"].empty()) return seen;
      const auto& last = page["jobs"].back();
      beyond = "&beyond=" + last["id"].dump() + "&beyond_ended=" + last["ended_unix_ns"].dump();
      between(number);
    }
  }

  std::optional<server::AccessRules> access_;
  std::optional<LedgerKeeper> ledger_;
  std::optional<JobApi> api_;
};

using Ids = std::vector<std::uint64_t>;

TEST_F(JobLists, ShowEachJobThatStaysOnceHoweverTheQueueChangesBetweenPages) {
  submit(12);
  EXPECT_EQ(walk("limit=3",
                 [this](int page) {
                   if (page == 1) cancel("2,3,5");  // of the page before: its last job, too
                   if (page == 1) submit(1);
                   if (page == 2) cancel("7,8");
                 }),
            (Ids{1, 2, 3, 4, 6, 7, 9, 10, 11, 12, 13}));
  EXPECT_EQ(walk("limit=4&order=newest",
                 [this](int page) {
                   if (page == 1) submit(2);  // newer than the first page
                   if (page == 1) cancel("9,10");
                 }),
            (Ids{13, 12, 11, 10, 6, 4, 1}));
  Ids done = walk("state=done&order=ended&limit=2", [this](int page) {
    if (page == 1) cancel("1,15");  // end later than the first page
  });
  std::erase_if(done, [](std::uint64_t id) { return id == 1 || id == 15; });  // a page may have them, or none
  std::sort(done.begin(), done.end());
  EXPECT_EQ(done, (Ids{2, 3, 5, 7, 8, 9, 10}));
  Ids all(15);
  std::iota(all.begin(), all.end(), 1);
  EXPECT_EQ(walk("state=all&limit=4", [this](int page) { cancel(std::to_string(10 + page)); }), all);
}

TEST_F(JobLists, HaveAtMostAThousandJobsAPage) {
  submit_array(2500);
  const auto first = nlohmann::json::parse(ask("GET", "/v1/jobs", "").body, nullptr, false);
  EXPECT_EQ(first["jobs"].size(), 1000u);
  EXPECT_EQ(first["more"], true);
  const server::ApiResponse refused = ask("GET", "/v1/jobs", "limit=1001");
  EXPECT_EQ(refused.status, 400u);
  EXPECT_NE(refused.body.find("limit must be a number from 1 to 1000"), std::string::npos) << refused.body;
  Ids all(2500);
  std::iota(all.begin(), all.end(), 1);
  EXPECT_EQ(walk("limit=1000", [](int) {}), all);
}

}  // namespace
}  // namespace gpumux::jobs
