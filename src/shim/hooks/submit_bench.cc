// SPDX-License-Identifier: Apache-2.0
// The cost of a submission on top of the driver's call while the lease is held. A driver that does nothing is called
// directly and through the gate. The goal is 15 ns (bench/gpu measures the same against the real driver). A program
// with several contexts also asks the driver which one is current when it submits to a default stream: some 10 ns more.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "shim/hooks/submit.h"

namespace gpumux::shim {

// The benchmark's driver in place of the real one.
constinit cuda::Driver g_driver;
constinit std::atomic<bool> g_driver_loaded{true};
void load_real_driver() {}

namespace {

using cuda::CUDA_SUCCESS;
using cuda::CUresult;

constexpr auto kContextValue = std::uintptr_t{4096};

[[gnu::noinline]] CUresult nothing(cuda::CUstream stream) {
  benchmark::DoNotOptimize(stream);
  return CUDA_SUCCESS;
}

void make_tenant() {
  g_driver.cuCtxGetCurrent = [](cuda::CUcontext* context) {
    *context = reinterpret_cast<cuda::CUcontext>(kContextValue);
    return CUDA_SUCCESS;
  };
  g_driver.cuStreamGetCtx = [](cuda::CUstream, cuda::CUcontext* context) { return g_driver.cuCtxGetCurrent(context); };
  g_driver.cuCtxGetDevice = [](cuda::CUdevice* device) {
    *device = 0;
    return CUDA_SUCCESS;
  };
  g_driver.cuDeviceGetUuid_v2 = [](cuda::CUuuid*, cuda::CUdevice) { return CUDA_SUCCESS; };
  g_driver.cuStreamIsCapturing = [](cuda::CUstream, cuda::CUstreamCaptureStatus* status) {
    *status = cuda::CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  };
  g_driver.cuThreadExchangeStreamCaptureMode = [](cuda::CUstreamCaptureMode*) { return CUDA_SUCCESS; };
  g_driver.cuCtxPushCurrent_v2 = [](cuda::CUcontext) { return CUDA_SUCCESS; };
  g_driver.cuCtxPopCurrent_v2 = [](cuda::CUcontext*) { return CUDA_SUCCESS; };
  g_driver.cuEventCreate = [](cuda::CUevent* event, unsigned int) {
    *event = reinterpret_cast<cuda::CUevent>(kContextValue);
    return CUDA_SUCCESS;
  };
  g_driver.cuEventRecord = [](cuda::CUevent, cuda::CUstream) { return CUDA_SUCCESS; };
  g_driver.cuEventQuery = [](cuda::CUevent) { return CUDA_SUCCESS; };
  g_driver.cuEventElapsedTime = [](float* milliseconds, cuda::CUevent, cuda::CUevent) {
    *milliseconds = 0.01F;
    return CUDA_SUCCESS;
  };
  // No daemon, and none is given up on while this runs.
  ::setenv("GPUMUX_SOCKET", "/nonexistent/gpumux", 1);
  ::setenv("GPUMUX_CONNECT_TIMEOUT", "1h", 1);
  const auto slot = tenant()->seat_of_device(0);
  tenant()->gate().set_ungated(slot.value());  // open, as under a lease
  tenant()->note_context(reinterpret_cast<cuda::CUcontext>(kContextValue));
}

void direct_call(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(nothing(nullptr));
}

void through_the_gate(benchmark::State& state, std::uintptr_t handle) {
  static const bool made = (make_tenant(), true);
  benchmark::DoNotOptimize(made);
  const auto stream = reinterpret_cast<cuda::CUstream>(handle);
  for (auto _ : state) {
    const Passage passage(Where{stream});
    benchmark::DoNotOptimize(nothing(stream));
  }
}

// While others use the GPU too, and the queue of a program is bounded. The driver's events are an additional cost.
void through_the_gate_bounded(benchmark::State& state) {
  static const bool made = (make_tenant(), true);
  benchmark::DoNotOptimize(made);
  gate::InFlight& in_flight = tenant()->seats().in_flight(0);
  in_flight.set_bound(std::chrono::milliseconds(4));
  gate::forget_memos();
  for (auto _ : state) {
    const Passage passage(Where{nullptr});
    benchmark::DoNotOptimize(nothing(nullptr));
  }
  in_flight.set_bound(base::Duration::zero());
  gate::forget_memos();
}

// A copy names memory by its address, which may be that of another GPU (reach.h). The program uses `gpus` GPUs.
void name_an_address(benchmark::State& state, int gpus) {
  static const bool made = (make_tenant(), true);
  benchmark::DoNotOptimize(made);
  for (int device = 1; device < gpus; ++device) benchmark::DoNotOptimize(tenant()->seat_of_device(device));
  const cuda::CUdeviceptr address = 0x7f00'0000'0000;
  for (auto _ : state) reach_memory(nullptr, address);
}

BENCHMARK(direct_call);
BENCHMARK_CAPTURE(through_the_gate, default_stream, 0);
BENCHMARK_CAPTURE(through_the_gate, created_stream, 0x55550000);
BENCHMARK_CAPTURE(through_the_gate, created_stream_four_threads, 0x55550000)->Threads(4);
BENCHMARK(through_the_gate_bounded);
// Last: a GPU that a program has used stays.
BENCHMARK_CAPTURE(name_an_address, one_gpu, 1);
BENCHMARK_CAPTURE(name_an_address, two_gpus, 2);
BENCHMARK_CAPTURE(name_an_address, eight_gpus, 8);

}  // namespace
}  // namespace gpumux::shim

BENCHMARK_MAIN();
