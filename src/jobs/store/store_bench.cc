// SPDX-License-Identifier: Apache-2.0
// The cost of the store. Durable submissions a second from a number of clients, each waiting for its answer. The first
// page of a long list. Reading the unfinished jobs at the daemon's start. A report over all hours that the ledger
// keeps. On the disk of the folder for temporary files.
#include <benchmark/benchmark.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "jobs/store/commit_queue.h"
#include "jobs/store/sqlite_store.h"
#include "jobs/store/store_test_support.h"

namespace gpumux::jobs::store {
namespace {

// Arguments and an environment of common length.
constexpr std::size_t kDocumentBytes = 4096;

std::unique_ptr<JobStore> open(const TemporaryDirectory& folder) {
  auto store = open_sqlite_store({folder.file("jobs.db"), "", kCheckpointPages});
  if (!store) std::abort();
  return std::move(*store);
}

Insert submission(std::uint64_t id) {
  Insert change = insert(id, 1000 + static_cast<std::uint32_t>(id % 8), "token-" + std::to_string(id));
  change.document = std::make_shared<const std::string>(kDocumentBytes, 'x');
  return change;
}

// Arguments: clients; submissions that each has under way.
void BM_DurableSubmissions(benchmark::State& state) {
  const auto clients = static_cast<std::uint64_t>(state.range(0));
  const auto depth = static_cast<std::uint64_t>(state.range(1));
  TemporaryDirectory folder;
  auto store = open(folder);
  std::atomic<std::uint64_t> id = 0;
  CommitQueue queue(*store);
  for (auto _ : state) {
    constexpr std::uint64_t kEach = 200;
    std::vector<std::thread> threads;
    for (std::uint64_t client = 0; client < clients; ++client) {
      threads.emplace_back([&] {
        std::mutex mutex;
        std::condition_variable changed;
        std::uint64_t under_way = 0;
        std::unique_lock lock(mutex);
        for (std::uint64_t i = 0; i < kEach; ++i) {
          changed.wait(lock, [&] { return under_way < depth; });
          ++under_way;
          queue.hand_in({submission(++id)}, [&](const Result<std::vector<Applied>>& applied) {
            if (!applied) std::abort();
            const std::lock_guard done(mutex);
            --under_way;
            changed.notify_one();
          });
        }
        changed.wait(lock, [&] { return under_way == 0; });
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(id.load()));
}
BENCHMARK(BM_DurableSubmissions)
    ->Args({1, 1})
    ->Args({8, 1})
    ->Args({8, 16})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

struct Filled {
  explicit Filled(std::uint64_t jobs) : store(open(folder)) {
    std::vector<Change> changes;
    for (std::uint64_t id = 1; id <= jobs; ++id) {
      changes.push_back(insert(id, 1000 + static_cast<std::uint32_t>(id % 8)));
      if (changes.size() < 1000 && id < jobs) continue;
      if (!store->commit(changes)) std::abort();
      changes.clear();
    }
  }
  TemporaryDirectory folder;
  std::unique_ptr<JobStore> store;
};

void BM_FirstPage(benchmark::State& state) {
  const Filled filled(static_cast<std::uint64_t>(state.range(0)));
  Query query;
  query.which = Query::Which::kUnfinished;
  for (auto _ : state) benchmark::DoNotOptimize(filled.store->page(query));
}
BENCHMARK(BM_FirstPage)->Arg(100'000)->Unit(benchmark::kMicrosecond);

void BM_WholeList(benchmark::State& state) {
  const Filled filled(static_cast<std::uint64_t>(state.range(0)));
  Query query;
  query.at_most = kMaxPageJobs;
  for (auto _ : state) {
    query.beyond = {};
    for (bool more = true; more;) {
      const auto page = filled.store->page(query).value();
      more = page.more;
      query.beyond = page.jobs.back().spec.id;
    }
  }
}
BENCHMARK(BM_WholeList)->Arg(100'000)->Unit(benchmark::kMillisecond);

void BM_UnfinishedAtStart(benchmark::State& state) {
  const Filled filled(static_cast<std::uint64_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(filled.store->unfinished());
}
BENCHMARK(BM_UnfinishedAtStart)->Arg(100'000)->Unit(benchmark::kMillisecond);

// 14 days of hours (ledger_hours), each with 1,000 programs of ten users.
class FullLedger {
 public:
  static constexpr std::uint32_t kHours = 336;
  static constexpr std::uint32_t kPrograms = 1000;
  static constexpr WallTime kHour = 3600 * std::int64_t{1'000'000'000};

  FullLedger() : store_(open(folder_)) {
    for (std::uint32_t hour = 0; hour < kHours; ++hour) {
      std::vector<Change> changes;
      for (std::uint32_t program = 0; program < kPrograms; ++program) {
        changes.push_back(AddToLedger{
            .at = (hour + 1) * kHour,
            .row = {.owner = {1000 + program % 10, "", ""},
                    .program = LedgerProgram{"program-" + std::to_string(program), jobs::JobId{program + 1}},
                    .gpu = "GPU-0"},
            .sums = {.held = 1, .gpu_time = 1, .waited = 1, .switches = 1}});
      }
      if (!store_->commit(changes)) std::abort();
    }
  }
  const JobStore& store() const { return *store_; }

 private:
  TemporaryDirectory folder_;
  std::unique_ptr<JobStore> store_;
};

void BM_Report(benchmark::State& state) {
  static const FullLedger ledger;
  const LedgerQuery query{.by = static_cast<LedgerQuery::By>(state.range(0)), .until = INT64_MAX};
  std::size_t rows = 0;
  for (auto _ : state) rows = ledger.store().report(query).value().rows.size();
  state.counters["rows"] = static_cast<double>(rows);
}
BENCHMARK(BM_Report)
    ->Arg(static_cast<int>(LedgerQuery::By::kUser))
    ->Arg(static_cast<int>(LedgerQuery::By::kProgram))
    ->Arg(static_cast<int>(LedgerQuery::By::kJob))
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gpumux::jobs::store

BENCHMARK_MAIN();
