// SPDX-License-Identifier: Apache-2.0
// What a launch costs its thread, and what starting costs.
//
//   launch [--batches N] [--launches N] [--device N]
//
// Batches of launches of an empty kernel, the GPU idle before each, only the launching timed: for the legacy default
// stream, a created stream and the per-thread default stream. Batches go in turn through the function that the program
// got from dlsym (ours, under gpumux) and through the driver's own, so that the difference is taken within one process,
// where clocks and caches are the same; without gpumux the two are the same function and the difference is the noise.
// Then long runs of launches without pauses, until the GPU has done them, in turn in the same way, for the rate. Prints
// one line `RESULT {json}`.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/gpu/programs/driver_program.h"

namespace gpumux::tests {
namespace {

using Launch = decltype(cuda::Driver::cuLaunchKernel);

struct Options {
  int device = 0;
  long batches = 200;
  long launches = 400;  // fewer than a channel's queue holds (1,024 were seen), so that no launch waits for the GPU
};

Options read_options(int count, char** arguments) {
  Options options;
  if (count % 2 == 0) fail("every option has a value");
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = arguments[i];
    if (name == "--device")
      options.device = std::atoi(arguments[i + 1]);
    else if (name == "--batches")
      options.batches = std::atol(arguments[i + 1]);
    else if (name == "--launches")
      options.launches = std::atol(arguments[i + 1]);
    else
      fail("unknown option " + name);
  }
  if (options.batches < 1 || options.launches < 1) fail("--batches and --launches have to be at least 1");
  return options;
}

// Nanoseconds for each of `count` launches.
double time_launches(const Program& program, Launch launch, cuda::CUstream stream, long count) {
  std::uint64_t nothing = 0;
  void* parameters[] = {&nothing};
  void** const list = program.has_empty ? nullptr : parameters;
  const std::int64_t begin = now_ns();
  for (long i = 0; i < count; ++i) {
    check(launch(program.empty, 1, 1, 1, 1, 1, 1, 0, stream, list, nullptr), "cuLaunchKernel");
  }
  return static_cast<double>(now_ns() - begin) / static_cast<double>(count);
}

struct Figures {
  double offered_ns = 0;  // through what dlsym gave
  double direct_ns = 0;
  double difference_ns = 0;  // median of the pairs' differences
};

Figures measure(const Program& program, const Options& options, Launch offered, Launch direct, cuda::CUstream stream) {
  std::vector<double> offered_times, direct_times, differences;
  for (long batch = 0; batch < options.batches; ++batch) {
    double times[2] = {};
    // Whichever comes second finds warmer caches, so they change places.
    for (int turn = 0; turn < 2; ++turn) {
      const bool is_direct = (turn + batch) % 2 != 0;
      times[is_direct ? 1 : 0] = time_launches(program, is_direct ? direct : offered, stream, options.launches);
      check(program.driver.cuCtxSynchronize(), "cuCtxSynchronize");
    }
    offered_times.push_back(times[0]);
    direct_times.push_back(times[1]);
    differences.push_back(times[0] - times[1]);
  }
  return {median(offered_times), median(direct_times), median(differences)};
}

struct Rate {
  double launches_per_s = 0;  // through what dlsym gave
  double of_direct = 0;       // median of the pairs' ratios
};

Rate measure_rate(const Program& program, const Options& options, Launch offered, Launch direct,
                  cuda::CUstream stream) {
  constexpr int kPairs = 10;
  const long count = options.launches * options.batches / 2;
  std::vector<double> rates, ratios;
  for (int pair = 0; pair < kPairs; ++pair) {
    double per_s[2] = {};
    for (int turn = 0; turn < 2; ++turn) {
      const bool is_direct = (turn + pair) % 2 != 0;
      const std::int64_t begin = now_ns();
      time_launches(program, is_direct ? direct : offered, stream, count);
      check(program.driver.cuCtxSynchronize(), "cuCtxSynchronize");
      per_s[is_direct ? 1 : 0] = static_cast<double>(count) * 1e9 / static_cast<double>(now_ns() - begin);
    }
    rates.push_back(per_s[0]);
    ratios.push_back(per_s[0] / per_s[1]);
  }
  return {median(rates), median(ratios)};
}

template <class Function>
Function direct(const Program& program, const char* symbol) {
  void* const address = direct_entry(program.library, symbol);
  Function function = nullptr;
  std::memcpy(&function, &address, sizeof address);
  return function;
}

int run(const Options& options) {
  const Program program = start_program(options.device);
  const cuda::Driver& driver = program.driver;
  cuda::CUstream stream = nullptr;
  check(driver.cuStreamCreate(&stream, cuda::CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  const auto plain = direct<Launch>(program, "cuLaunchKernel");
  const auto per_thread = direct<Launch>(program, "cuLaunchKernel_ptsz");
  for (int i = 0; i < 5; ++i)
    measure(program, {options.device, 1, options.launches}, driver.cuLaunchKernel, plain, stream);

  const Figures null_stream = measure(program, options, driver.cuLaunchKernel, plain, nullptr);
  const Figures created = measure(program, options, driver.cuLaunchKernel, plain, stream);
  const Figures thread = measure(program, options, driver.cuLaunchKernel_ptsz, per_thread, nullptr);

  const Rate rate = measure_rate(program, options, driver.cuLaunchKernel, plain, stream);

  const auto print = [](const char* name, const Figures& figures) {
    std::printf("\"%s\": {\"offered_ns\": %.1f, \"direct_ns\": %.1f, \"added_ns\": %.2f}, ", name, figures.offered_ns,
                figures.direct_ns, figures.difference_ns);
  };
  std::printf("RESULT {");
  print("null", null_stream);
  print("created", created);
  print("per_thread", thread);
  std::printf(
      "\"launches_per_s\": %.0f, \"rate_of_direct\": %.5f, \"preloaded\": %s, \"kernel\": \"%s\", \"open_ms\": %.3f, "
      "\"init_ms\": %.3f, \"context_ms\": %.3f, \"first_launch_ms\": %.3f}\n",
      rate.launches_per_s, rate.of_direct, program.preloaded ? "true" : "false", program.has_empty ? "empty" : "spin",
      static_cast<double>(program.open_ns) / 1e6, static_cast<double>(program.init_ns) / 1e6,
      static_cast<double>(program.context_ns) / 1e6, static_cast<double>(program.first_launch_ns) / 1e6);
  return 0;
}

}  // namespace
}  // namespace gpumux::tests

int main(int count, char** arguments) { return gpumux::tests::run(gpumux::tests::read_options(count, arguments)); }
