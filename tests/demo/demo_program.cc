// SPDX-License-Identifier: Apache-2.0
// A program that knows nothing of gpumux: it computes on a GPU for some seconds and checks what came out.
//
//   gpumux_demo [--seconds 6] [--elements 1048576] [--launches 10] [--pause-ms 0] [--seed 1]
//
// Each step fills y, adds a * x to it several times, and has the GPU sum up a part of it; `a` and the part change from
// step to step. Every number is a small integer, so floats are exact and the CPU can say what each step's sum must be.
// Exit status: 0 all steps right, 1 wrong, 2 no GPU or wrong usage.
//
// It finds the driver as the CUDA runtime does: dlopen and dlsym, no link.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#include "cuda/driver.h"
#include "sim/cuda/kernels.gen.h"

namespace {

using namespace gpumux;
using Clock = std::chrono::steady_clock;

struct Options {
  double seconds = 6;
  std::uint64_t elements = 1u << 20;
  unsigned launches = 10;
  unsigned pause_ms = 0;
  unsigned seed = 1;
};

// Each step uses the next of these factors. 64 launches of 7 * 15 each stay far below 2^24, where floats stop being
// exact.
constexpr unsigned kFactors = 7;
constexpr unsigned kLargestX = 15;
constexpr unsigned kMaxLaunches = 64;
constexpr float kStart = 3.0F;
constexpr unsigned kThreads = 256;
// Summed up in each step: the checksum kernel has one thread, which takes about a millisecond for this much.
constexpr std::uint64_t kWindow = 65536;

cuda::Driver g_driver;

void check(cuda::CUresult result, const char* what) {
  if (result == cuda::CUDA_SUCCESS) return;
  const char* name = nullptr;
  if (g_driver.cuGetErrorName == nullptr || g_driver.cuGetErrorName(result, &name) != cuda::CUDA_SUCCESS) name = "?";
  std::fprintf(stderr, "gpumux_demo: %s failed: %s (%d)\n", what, name, static_cast<int>(result));
  std::exit(2);
}

std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    char* end = nullptr;
    const double value = std::strtod(argv[i + 1], &end);
    if (end == argv[i + 1] || *end != '\0' || !(value >= 0 && value < 1e10)) return false;
    if (name == "--seconds") {
      options.seconds = value;
    } else if (name == "--elements" && value >= 1) {
      options.elements = static_cast<std::uint64_t>(value);
    } else if (name == "--launches" && value >= 1 && value <= kMaxLaunches) {
      options.launches = static_cast<unsigned>(value);
    } else if (name == "--pause-ms") {
      options.pause_ms = static_cast<unsigned>(value);
    } else if (name == "--seed") {
      options.seed = static_cast<unsigned>(value);
    } else {
      return false;
    }
  }
  return argc % 2 == 1;
}

struct Part {
  std::uint64_t first;
  std::uint64_t count;
};

Part part_of_step(std::uint64_t step, std::uint64_t elements) {
  const std::uint64_t parts = (elements + kWindow - 1) / kWindow;
  const std::uint64_t first = step % parts * kWindow;
  return {first, std::min(kWindow, elements - first)};
}

// The sum that the GPU must report, computed on the host.
std::uint64_t expected_sum(const std::vector<float>& x, Part part, unsigned launches, unsigned factor) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < part.count; ++i) {
    const float y = kStart + static_cast<float>(launches * factor) * x[part.first + i];
    sum += bits_of(y) * (2 * i + 1);
  }
  return sum;
}

class Gpu {
 public:
  Gpu(const Options& options, const std::vector<float>& x) : options_(options) {
    check(g_driver.cuInit(0), "cuInit");
    check(g_driver.cuDeviceGet(&device_, 0), "cuDeviceGet");
    check(g_driver.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
    check(g_driver.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    check(g_driver.cuModuleLoadData(&module_, kGpumuxSimKernelsPtx), "cuModuleLoadData");
    check(g_driver.cuModuleGetFunction(&fill_, module_, "gpumux_fill"), "cuModuleGetFunction");
    check(g_driver.cuModuleGetFunction(&saxpy_, module_, "gpumux_saxpy"), "cuModuleGetFunction");
    check(g_driver.cuModuleGetFunction(&checksum_, module_, "gpumux_checksum"), "cuModuleGetFunction");
    const std::size_t bytes = options.elements * sizeof(float);
    check(g_driver.cuMemAlloc_v2(&x_, bytes), "cuMemAlloc");
    check(g_driver.cuMemAlloc_v2(&y_, bytes), "cuMemAlloc");
    check(g_driver.cuMemAlloc_v2(&sum_, sizeof(std::uint64_t)), "cuMemAlloc");
    check(g_driver.cuMemcpyHtoD_v2(x_, x.data(), bytes), "cuMemcpyHtoD");
  }

  std::uint64_t step(unsigned factor, Part part) {
    auto a = static_cast<float>(factor);
    std::uint64_t elements = options_.elements;
    std::uint32_t start = bits_of(kStart);
    void* fill[] = {&y_, &elements, &start};
    launch(fill_, fill);
    void* saxpy[] = {&y_, &x_, &a, &elements};
    for (unsigned i = 0; i < options_.launches; ++i) launch(saxpy_, saxpy);
    check(g_driver.cuMemsetD8_v2(sum_, 0, sizeof(std::uint64_t)), "cuMemsetD8");
    cuda::CUdeviceptr from = y_ + part.first * sizeof(float);
    void* checksum[] = {&from, &part.count, &sum_};
    launch(checksum_, checksum);
    std::uint64_t sum = 0;
    check(g_driver.cuMemcpyDtoH_v2(&sum, sum_, sizeof sum), "cuMemcpyDtoH");
    return sum;
  }

  void close() {
    check(g_driver.cuModuleUnload(module_), "cuModuleUnload");
    check(g_driver.cuDevicePrimaryCtxRelease_v2(device_), "cuDevicePrimaryCtxRelease");
  }

 private:
  void launch(cuda::CUfunction function, void** parameters) {
    // The kernels stride over any number of elements; 1024 blocks fill every GPU.
    const std::uint64_t blocks = std::min<std::uint64_t>((options_.elements + kThreads - 1) / kThreads, 1024);
    check(g_driver.cuLaunchKernel(function, static_cast<unsigned>(blocks), 1, 1, kThreads, 1, 1, 0, nullptr, parameters,
                                  nullptr),
          "cuLaunchKernel");
  }

  const Options& options_;
  cuda::CUdevice device_ = 0;
  cuda::CUcontext context_ = nullptr;
  cuda::CUmodule module_ = nullptr;
  cuda::CUfunction fill_ = nullptr;
  cuda::CUfunction saxpy_ = nullptr;
  cuda::CUfunction checksum_ = nullptr;
  cuda::CUdeviceptr x_ = 0;
  cuda::CUdeviceptr y_ = 0;
  cuda::CUdeviceptr sum_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: gpumux_demo [--seconds S] [--elements N] [--launches 1..%u] [--pause-ms MS] [--seed N]\n",
                 kMaxLaunches);
    return 2;
  }
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "gpumux_demo: no CUDA driver: %s\n", ::dlerror());
    return 2;
  }
  cuda::load_driver(
      g_driver, [](void* from, const char* symbol) { return ::dlsym(from, symbol); }, library);

  std::vector<float> x(options.elements);
  for (std::uint64_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>((i * 2654435761u + options.seed) % (kLargestX + 1));

  const auto begin = Clock::now();
  Gpu gpu(options, x);
  std::uint64_t steps = 0;
  std::uint64_t wrong = 0;
  while (std::chrono::duration<double>(Clock::now() - begin).count() < options.seconds || steps == 0) {
    const unsigned factor = 1 + static_cast<unsigned>(steps % kFactors);
    const Part part = part_of_step(steps, options.elements);
    if (gpu.step(factor, part) != expected_sum(x, part, options.launches, factor)) ++wrong;
    ++steps;
    if (options.pause_ms != 0) std::this_thread::sleep_for(std::chrono::milliseconds(options.pause_ms));
  }
  gpu.close();
  const double took = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf("%llu steps in %.1f s, %s\n", static_cast<unsigned long long>(steps), took,
              wrong == 0 ? "every result right" : "RESULTS WRONG");
  if (wrong != 0) std::printf("%llu of them wrong\n", static_cast<unsigned long long>(wrong));
  return wrong == 0 ? 0 : 1;
}
