// SPDX-License-Identifier: Apache-2.0
// Measures the cost of a node's ResourceSlices by its number of GPUs. It measures a look at the API server and a write
// of all slices, by TLS: time, bytes and calls.
//
// Baseline: a look, which changes nothing.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "kubernetes/api_server/test_api_server.h"
#include "kubernetes/dra/publisher.h"
#include "tests/unit/temporary_directory.h"

namespace {

using namespace gpumux;

std::vector<kubernetes::DraGpu> gpus_of(std::int64_t count) {
  kubernetes::DraGpu gpu{
      "", "NVIDIA H100 80GB HBM3", "0000:18:00.0", "pci0000:15", "580.159.04", "13.0", 81559ull << 20, ""};
  gpu.architecture = "Hopper";
  gpu.compute_capability = "9.0";
  std::vector<kubernetes::DraGpu> gpus;
  for (std::int64_t i = 0; i < count; ++i) {
    gpu.id = "GPU-4d7b2a1c-6d0f-4b1e-9d7e-" + std::to_string(100'000'000'000 + i);
    gpus.push_back(gpu);
  }
  return gpus;
}

// The size of what is written, without HTTP and TLS.
std::size_t bytes_of(const std::vector<kubernetes::DraGpu>& gpus, const kubernetes::SliceSettings& settings) {
  const auto devices = kubernetes::slice_devices(gpus, settings, "v1");
  if (!devices) std::abort();
  std::size_t bytes = 0;
  for (const auto& slice :
       kubernetes::resource_slices(*devices, settings, "v1", 1, "5b1f3d3e-0c5a-4b1e-9d7e-0123456789ab"))
    bytes += slice.dump().size();
  return bytes;
}

void publish(benchmark::State& state, bool changes) {
  TemporaryDirectory temporary;
  kubernetes::TestApiServer server(temporary.path());
  const kubernetes::SliceSettings settings{"gpu-node-0001.example.com"};
  server.put("/api/v1/nodes/" + settings.node, {{"metadata", {{"name", settings.node}, {"uid", "u1"}}}});
  kubernetes::SlicePublisher publisher(server.settings(), settings, [](const std::string&) {});
  std::vector<kubernetes::DraGpu> gpus = gpus_of(state.range(0));
  if (!publisher.look(gpus)) state.SkipWithError("the slices are not published");
  const std::size_t before = server.calls().size();
  for (auto _ : state) {
    if (changes) gpus[0].sick = gpus[0].sick.empty() ? "it needs a reset" : "";
    if (!publisher.look(gpus)) state.SkipWithError("the slices are not published");
  }
  state.counters["calls"] =
      static_cast<double>(server.calls().size() - before) / static_cast<double>(state.iterations());
  state.counters["bytes"] = static_cast<double>(bytes_of(gpus, settings));
}

void look(benchmark::State& state) { publish(state, false); }
BENCHMARK(look)->Arg(8)->Arg(56)->Arg(112)->UseRealTime();

void write(benchmark::State& state) { publish(state, true); }
BENCHMARK(write)->Arg(8)->Arg(56)->Arg(112)->UseRealTime();

}  // namespace
