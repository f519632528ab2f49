// SPDX-License-Identifier: Apache-2.0
// How long the kubelet waits for a choice on a large node: 1,000 shares, of 10 GPUs or of 100, all of them free.
// Baseline: copying the request.
#include <benchmark/benchmark.h>

#include "kubernetes/shares/shares.h"

namespace {

using namespace gpumux;

kubernetes::PreferredRequest request_of(std::int64_t gpus) {
  kubernetes::PreferredRequest request;
  for (std::uint32_t share = 0; share < 1000; ++share) {
    const auto gpu = std::to_string(share % static_cast<std::uint32_t>(gpus));
    request.available.push_back(kubernetes::share_id(
        {"GPU-4d7b2a1c-93f0-4c0e-8a57-5b1f2e6d7c8a-" + gpu, share / static_cast<std::uint32_t>(gpus)}));
  }
  request.size = 8;
  return request;
}

void choose(benchmark::State& state) {
  const auto request = request_of(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(kubernetes::preferred_shares(request, kubernetes::Placement::kSpread));
}
BENCHMARK(choose)->Arg(10)->Arg(100);

void copy(benchmark::State& state) {
  const auto request = request_of(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(kubernetes::PreferredRequest(request));
}
BENCHMARK(copy)->Arg(10);

}  // namespace

BENCHMARK_MAIN();
