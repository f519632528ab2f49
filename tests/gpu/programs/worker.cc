// SPDX-License-Identifier: Apache-2.0
// A tenant with a known answer: adds one to every element of a buffer, `steps` times, and checks every element in the
// end. It can be told to fault, to keep the GPU busy, or to say when each of its submissions returned.
//
//   worker [--device N] [--steps N] [--seconds S] [--elements N] [--launches N] [--spin-us N] [--pause-us N]
//          [--ready FILE] [--go FILE] [--fault-at STEP] [--log FILE] [--lead S]
//
// One step is `launches` increments and a spin of `spin-us`, then a wait for all of it, then a pause. With --seconds it
// goes on until that much time has passed; what `per_s` counts begins --lead seconds later, and ends so much later.
// --log writes "before after" (CLOCK_MONOTONIC, nanoseconds) of each first launch of a step. Prints one line `RESULT
// {json}`.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/gpu/programs/driver_program.h"

namespace gpumux::tests {
namespace {

struct Options {
  int device = 0;
  long steps = 100;
  double seconds = 0;
  double lead = 0;
  std::uint64_t elements = 1 << 20;
  long launches = 4;
  std::uint64_t spin_us = 500;
  std::int64_t pause_us = 0;
  long fault_at = -1;
  std::string ready;
  std::string go;
  std::string log;
};

Options read_options(int count, char** arguments) {
  Options options;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = arguments[i];
    const char* value = arguments[i + 1];
    if (name == "--device")
      options.device = std::atoi(value);
    else if (name == "--steps")
      options.steps = std::atol(value);
    else if (name == "--seconds")
      options.seconds = std::atof(value);
    else if (name == "--lead")
      options.lead = std::atof(value);
    else if (name == "--elements")
      options.elements = std::strtoull(value, nullptr, 10);
    else if (name == "--launches")
      options.launches = std::atol(value);
    else if (name == "--spin-us")
      options.spin_us = std::strtoull(value, nullptr, 10);
    else if (name == "--pause-us")
      options.pause_us = std::atoll(value);
    else if (name == "--fault-at")
      options.fault_at = std::atol(value);
    else if (name == "--ready")
      options.ready = value;
    else if (name == "--go")
      options.go = value;
    else if (name == "--log")
      options.log = value;
    else
      fail("unknown option " + name);
  }
  if (count % 2 == 0) fail("every option has a value");
  if (options.elements == 0) fail("--elements has to be at least 1");
  return options;
}

void meet(const Options& options) {
  if (!options.ready.empty()) {
    std::FILE* file = std::fopen(options.ready.c_str(), "w");
    if (file == nullptr) fail("cannot create " + options.ready);
    std::fclose(file);
  }
  constexpr std::int64_t kLimitNs = 120'000'000'000;
  const std::int64_t begin = now_ns();
  while (!options.go.empty() && ::access(options.go.c_str(), F_OK) != 0) {
    if (now_ns() - begin > kLimitNs) fail("nobody said go");
    sleep_ns(1'000'000);
  }
}

int run(const Options& options) {
  const Program program = start_program(options.device);
  const cuda::Driver& driver = program.driver;
  cuda::CUdeviceptr data = 0;
  check(driver.cuMemAlloc_v2(&data, options.elements * 4), "cuMemAlloc");
  check(driver.cuMemsetD32_v2(data, 0, options.elements), "cuMemsetD32");
  cuda::CUstream stream = nullptr;
  check(driver.cuStreamCreate(&stream, cuda::CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  check(driver.cuCtxSynchronize(), "cuCtxSynchronize");
  meet(options);

  std::vector<std::int64_t> moments;
  const std::int64_t begin = now_ns();
  const auto is_over = [&](long step) {
    return options.seconds > 0 ? static_cast<double>(now_ns() - begin) > (options.lead + options.seconds) * 1e9
                               : step >= options.steps;
  };
  long step = 0;
  std::int64_t counted_from = begin;
  long uncounted = 0;
  std::uint32_t expected = 0;
  for (; !is_over(step); ++step) {
    if (step == options.fault_at) {
      // An address that no allocation has.
      check(launch_increment(program, 1 << 20, 16, stream), "the launch that faults");
      const cuda::CUresult result = driver.cuStreamSynchronize(stream);
      std::printf("RESULT {\"fault\": %d, \"steps\": %ld, \"at_ns\": %lld}\n", static_cast<int>(result), step,
                  static_cast<long long>(now_ns()));
      return result == cuda::CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 1;
    }
    if (!options.log.empty()) moments.push_back(now_ns());
    for (long i = 0; i < options.launches; ++i) {
      check(launch_increment(program, data, options.elements, stream), "cuLaunchKernel");
      ++expected;
      if (i == 0 && !options.log.empty()) moments.push_back(now_ns());
    }
    if (options.spin_us != 0) check(launch_spin(program, options.spin_us * 1000, stream), "cuLaunchKernel");
    check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    if (options.pause_us != 0) sleep_ns(options.pause_us * 1000);
    if (uncounted == 0 && options.lead > 0 && static_cast<double>(now_ns() - begin) > options.lead * 1e9) {
      counted_from = now_ns();
      uncounted = step + 1;
    }
  }
  const std::int64_t end = now_ns();

  std::vector<std::uint32_t> host(options.elements);
  check(driver.cuMemcpyDtoH_v2(host.data(), data, options.elements * 4), "cuMemcpyDtoH");
  std::uint64_t wrong = 0;
  for (const std::uint32_t value : host) wrong += value != expected ? 1 : 0;
  if (!options.log.empty()) {
    std::FILE* file = std::fopen(options.log.c_str(), "w");
    if (file == nullptr) fail("cannot create " + options.log);
    for (std::size_t i = 0; i + 1 < moments.size(); i += 2)
      std::fprintf(file, "%lld %lld\n", static_cast<long long>(moments[i]), static_cast<long long>(moments[i + 1]));
    std::fclose(file);
  }
  check(driver.cuMemFree_v2(data), "cuMemFree");
  std::printf(
      "RESULT {\"digest\": \"%u x %llu, %llu wrong\", \"wrong\": %llu, \"steps\": %ld, \"steady_s\": %.6f, "
      "\"per_s\": %.3f, \"start_ns\": %lld, \"end_ns\": %lld, \"preloaded\": %s}\n",
      expected, static_cast<unsigned long long>(options.elements), static_cast<unsigned long long>(wrong),
      static_cast<unsigned long long>(wrong), step, static_cast<double>(end - begin) / 1e9,
      static_cast<double>(step - uncounted) * 1e9 / static_cast<double>(end - counted_from),
      static_cast<long long>(begin), static_cast<long long>(end), program.preloaded ? "true" : "false");
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace gpumux::tests

int main(int count, char** arguments) { return gpumux::tests::run(gpumux::tests::read_options(count, arguments)); }
