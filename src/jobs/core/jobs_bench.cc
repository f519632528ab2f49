// SPDX-License-Identifier: Apache-2.0
// The cost of an event with many jobs waiting, and the memory of a waiting job. 8 GPUs, 50 users; the argument is the
// number of waiting jobs. `kinds` is the number of different kinds of requests. It is a few, as people have, or nearly
// the number of jobs, which is the worst for the queue's index.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <deque>

#include "jobs/core/job_core.h"

namespace gpumux::jobs {
namespace {

constexpr std::uint32_t kGpus = 8, kUsers = 50;
constexpr std::uint64_t kCapacity = 80'000'000'000;

class Machine {
 public:
  Machine(std::uint64_t jobs, std::uint64_t kinds, Order order) : kinds_(kinds) {
    QueueSettings settings;
    settings.order = order;
    tell(SettingsChanged{settings});
    for (std::uint32_t gpu = 0; gpu < kGpus; ++gpu) tell(GpuAdded{GpuIndex{gpu}, kCapacity});
    tell(SchedulingHeld{false});
    for (std::uint64_t i = 0; i < jobs; ++i) submit();
  }

  void submit() {
    JobSpec spec;
    spec.id = JobId{++last_};
    spec.uid = static_cast<std::uint32_t>(last_ % kUsers);
    const std::uint64_t kind = last_ * 0x9E3779B97F4A7C15u % kinds_;
    spec.gpu_count = 1 + static_cast<std::uint32_t>(kind % 4);
    spec.memory = kCapacity / 2 + kind;
    if (kind % 3 != 0) spec.time_limit = std::chrono::minutes(10 + kind % 100);
    tell(Submitted{spec});
  }

  // The oldest of those that run ends, and others start.
  void end_one() {
    now_ += std::chrono::seconds(10);
    const auto [job, attempt] = running_.front();
    running_.pop_front();
    tell(Ended{job, attempt, End::kOk});
  }

  void tell(const Event& event) {
    commands_.clear();
    core_.apply(now_, event, commands_);
    const std::size_t count = commands_.size();
    for (std::size_t i = 0; i < count; ++i) {
      const auto* const start = std::get_if<Start>(&commands_[i]);
      if (start == nullptr) continue;
      running_.push_back({start->job, start->attempt});
      std::vector<Command> none;
      core_.apply(now_, StartConfirmed{start->job, start->attempt}, none);
    }
  }
  JobCore& core() { return core_; }
  JobId last() const { return JobId{last_}; }
  TimePoint now() const { return now_; }

 private:
  JobCore core_;
  TimePoint now_{std::chrono::seconds(1)};
  std::uint64_t kinds_;
  std::uint64_t last_ = 0;
  std::vector<Command> commands_;
  std::deque<std::pair<JobId, std::uint32_t>> running_;
};

void submit_and_end(benchmark::State& state, Order order, std::uint64_t kinds) {
  const std::size_t before = mallinfo2().uordblks;
  Machine machine(static_cast<std::uint64_t>(state.range(0)), kinds, order);
  const double bytes = static_cast<double>(mallinfo2().uordblks - before);
  state.counters["bytes_per_job"] = bytes / static_cast<double>(state.range(0));
  for (auto _ : state) {
    machine.end_one();
    machine.submit();
  }
  state.SetItemsProcessed(2 * state.iterations());
}

void BM_Fair(benchmark::State& state) { submit_and_end(state, Order::kFair, 12); }
void BM_Fifo(benchmark::State& state) { submit_and_end(state, Order::kFifo, 12); }
void BM_FairAllDifferent(benchmark::State& state) { submit_and_end(state, Order::kFair, 1'000'003); }
void BM_FifoAllDifferent(benchmark::State& state) { submit_and_end(state, Order::kFifo, 1'000'003); }

void BM_SubmitAndCancel(benchmark::State& state) {
  Machine machine(static_cast<std::uint64_t>(state.range(0)), 12, Order::kFair);
  for (auto _ : state) {
    machine.submit();
    machine.tell(CancelAsked{machine.last()});
  }
  state.SetItemsProcessed(2 * state.iterations());
}

void BM_Standing(benchmark::State& state) {
  Machine machine(static_cast<std::uint64_t>(state.range(0)), 12, Order::kFair);
  std::uint64_t job = 0;
  for (auto _ : state) benchmark::DoNotOptimize(machine.core().standing(JobId{1 + ++job % machine.last().value}));
}

// The queue's part of a scrape of metrics.
void BM_Figures(benchmark::State& state) {
  Machine machine(static_cast<std::uint64_t>(state.range(0)), 12, Order::kFair);
  for (auto _ : state) {
    benchmark::DoNotOptimize(JobCounts(machine.core().counts()));
    benchmark::DoNotOptimize(machine.core().usage(machine.now()));
  }
}

BENCHMARK(BM_Fair)->RangeMultiplier(10)->Range(1'000, 1'000'000)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Fifo)->RangeMultiplier(10)->Range(1'000, 1'000'000)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_FairAllDifferent)->RangeMultiplier(10)->Range(1'000, 100'000)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_FifoAllDifferent)->RangeMultiplier(10)->Range(1'000, 100'000)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_SubmitAndCancel)->RangeMultiplier(10)->Range(1'000, 1'000'000)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Standing)->RangeMultiplier(10)->Range(1'000, 1'000'000)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Figures)->RangeMultiplier(10)->Range(1'000, 100'000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace gpumux::jobs

BENCHMARK_MAIN();
