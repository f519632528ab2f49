// SPDX-License-Identifier: Apache-2.0
// Programs for measure.py, in one:
//
//   turns spin KERNEL_MS SECONDS [BYTES_MIB]   kernels of this length that fill the GPU; each result is checked. With
//                                              BYTES_MIB each walks over that much memory.
//   turns endless SECONDS                      one kernel that goes on until it is told to stop, and counts
//   turns request PERIOD_MS WORK_US SECONDS    waits, launches a kernel of this length, waits for it; latencies
//
// EVENTS and NO_COPIES in the environment: see `spin` and record_event.
//
//   g++ -std=c++20 -O2 turns.cc -I/usr/local/cuda/include -lcuda -lpthread -o turns
//
// Each prints one line of key=value when it is done; `spin` and `endless` count what they got done.
#include <cuda.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  std::printf("%s: %s\n", call, name != nullptr ? name : "?");
  std::fflush(stdout);
  ::_exit(3);
}
#define CHECK(call) check(call, #call)

constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 out, .param .u64 loops, .param .u64 data, .param .u64 mask) {
  .reg .u64 %x, %y, %n, %p, %a, %d, %m, %i, %v; .reg .pred %q, %w; .reg .u32 %t, %b, %k;
  ld.param.u64 %n, [loops]; ld.param.u64 %p, [out]; ld.param.u64 %d, [data]; ld.param.u64 %m, [mask];
  mov.u64 %x, 0; mov.u64 %y, 0; mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %k, %ntid.x;
  mad.lo.u32 %t, %b, %k, %t; cvt.u64.u32 %i, %t; setp.eq.u64 %w, %d, 0;
L: add.u64 %x, %x, 1; mul.lo.u64 %y, %x, 3; add.u64 %y, %y, %x; @%w bra M;
  add.u64 %i, %i, 270336; and.b64 %i, %i, %m; shl.b64 %a, %i, 3; add.u64 %a, %a, %d; ld.global.u64 %v, [%a];
  add.u64 %v, %v, 1; st.global.u64 [%a], %v;
M: setp.lt.u64 %q, %x, %n; @%q bra L;
  mul.wide.u32 %a, %t, 8; add.u64 %a, %a, %p; st.global.u64 [%a], %y; ret;
}
.visible .entry endless(.param .u64 words, .param .u64 flag) {
  .reg .u64 %p, %f, %x, %c; .reg .pred %q, %z; .reg .u32 %t, %b;
  ld.param.u64 %p, [words]; ld.param.u64 %f, [flag]; mov.u64 %c, 0; mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x;
  or.b32 %t, %t, %b; setp.eq.u32 %z, %t, 0;
L: add.u64 %c, %c, 1; @!%z bra M; st.volatile.global.u64 [%p+8], %c; ld.volatile.global.u64 %x, [%p];
  st.volatile.global.u64 [%f], %x;
M: ld.volatile.global.u64 %x, [%f]; setp.eq.u64 %q, %x, 0; @%q bra L; ret;
}
)";

constexpr unsigned kThreads = 128;

struct Program {
  CUmodule module = nullptr;
  CUstream stream = nullptr;
  unsigned blocks = 0;
  CUdeviceptr out = 0, data = 0;
  std::uint64_t mask = 0;
  double loops_per_second = 0;

  explicit Program(std::size_t data_bytes = 0) {
    CUdevice device = 0;
    CUcontext context = nullptr;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    int processors = 0;
    CHECK(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    blocks = static_cast<unsigned>(processors) * 16;
    CHECK(cuModuleLoadData(&module, kPtx));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc(&out, 8ull * blocks * kThreads));
    if (data_bytes != 0) {
      std::size_t bytes = 1;
      while (bytes * 2 <= data_bytes) bytes *= 2;
      CHECK(cuMemAlloc(&data, bytes));
      CHECK(cuMemsetD8(data, 0, bytes));
      mask = bytes / 8 - 1;
    }
  }
  void launch(std::uint64_t loops) {
    CUfunction function = nullptr;
    CHECK(cuModuleGetFunction(&function, module, "spin"));
    void* arguments[] = {&out, &loops, &data, &mask};
    CHECK(cuLaunchKernel(function, blocks, 1, 1, kThreads, 1, 1, 0, stream, arguments, nullptr));
  }
  void wait() { CHECK(cuStreamSynchronize(stream)); }
  // With the GPU to itself: LOOPS_PER_MS in the environment, or measured.
  void calibrate() {
    const char* const known = std::getenv("LOOPS_PER_MS");
    launch(1000);
    wait();
    if (known != nullptr) {
      loops_per_second = std::atof(known) * 1000;
      return;
    }
    const auto begin = Clock::now();
    launch(200'000);
    wait();
    loops_per_second = 200'000 / seconds_since(begin);
  }
  std::uint64_t loops_of(double seconds) const {
    return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(seconds * loops_per_second));
  }
};

void say(const char* what) {
  std::printf("%s\n", what);
  std::fflush(stdout);
}

// EVENTS=timing or EVENTS=plain: an event of that kind before and after each kernel.
void record_event(CUstream stream) {
  static const char* const kind = std::getenv("EVENTS");
  if (kind == nullptr) return;
  static std::vector<CUevent> events;
  static std::size_t next = 0;
  constexpr std::size_t kMost = 64;
  if (events.size() < kMost) {
    events.push_back(nullptr);
    CHECK(cuEventCreate(&events.back(), std::strcmp(kind, "timing") == 0 ? 0 : CU_EVENT_DISABLE_TIMING));
  }
  CHECK(cuEventRecord(events[next++ % events.size()], stream));
}

int spin(double kernel_s, double seconds, std::size_t bytes) {
  Program program(bytes);
  program.calibrate();
  const std::uint64_t loops = program.loops_of(kernel_s);
  std::vector<std::uint64_t> host(program.blocks * kThreads);
  std::printf("loops_per_ms=%.0f\n", program.loops_per_second / 1000);
  say("ready");
  const auto begin = Clock::now();
  std::size_t kernels = 0, wrong = 0;
  double longest = 0;
  const bool copies = std::getenv("NO_COPIES") == nullptr;  // results go to the host, and are checked
  while (seconds_since(begin) < seconds) {
    const auto started = Clock::now();
    CHECK(cuMemsetD8Async(program.out, 0, 8 * host.size(), program.stream));
    record_event(program.stream);
    program.launch(loops);
    record_event(program.stream);
    if (!copies) {
      program.wait();
      ++kernels;
      continue;
    }
    CHECK(cuMemcpyDtoHAsync(host.data(), program.out, 8 * host.size(), program.stream));
    program.wait();
    longest = std::max(longest, seconds_since(started));
    for (const std::uint64_t word : host) wrong += word != loops * 4;
    ++kernels;
  }
  const double took = seconds_since(begin);
  std::printf("kernels=%zu busy=%.4f of=%.4f longest_ms=%.2f wrong=%zu\n", kernels,
              static_cast<double>(kernels) * kernel_s, took, longest * 1e3, wrong);
  return wrong != 0;
}

int endless(double seconds) {
  Program program;
  void* memory = nullptr;
  CUdeviceptr words = 0, flag = 0;
  CHECK(cuMemHostAlloc(&memory, 16, CU_MEMHOSTALLOC_DEVICEMAP));
  std::memset(memory, 0, 16);
  auto* const host = static_cast<volatile std::uint64_t*>(memory);
  CHECK(cuMemHostGetDevicePointer(&words, memory, 0));
  CHECK(cuMemAlloc(&flag, 8));
  CHECK(cuMemsetD8(flag, 0, 8));
  CUfunction function = nullptr;
  CHECK(cuModuleGetFunction(&function, program.module, "endless"));
  void* arguments[] = {&words, &flag};
  say("ready");
  const auto begin = Clock::now();
  CHECK(cuLaunchKernel(function, program.blocks / 2, 1, 1, kThreads, 1, 1, 0, program.stream, arguments, nullptr));
  // The time in which its counter moves, and in which it stands, in looks of 0.2 ms.
  std::uint64_t seen = 0;
  double moving = 0, stood = 0, longest = 0;
  auto last = Clock::now();
  auto moved_at = last;
  while (seconds_since(begin) < seconds) {
    ::usleep(200);
    const auto now = Clock::now();
    const std::uint64_t count = host[1];
    const double step = std::chrono::duration<double>(now - last).count();
    (count != seen ? moving : stood) += step;
    if (count != seen) {
      longest = std::max(longest, std::chrono::duration<double>(now - moved_at).count());
      moved_at = now;
    }
    seen = count;
    last = now;
  }
  std::printf("moving=%.4f stood=%.4f longest_stand_ms=%.2f count=%llu\n", moving, stood, longest * 1e3,
              static_cast<unsigned long long>(seen));
  std::fflush(stdout);
  host[0] = 1;
  program.wait();
  std::printf("ended=1\n");
  return 0;
}

int request(double period_s, double work_s, double seconds) {
  Program program;
  program.calibrate();
  const std::uint64_t loops = program.loops_of(work_s);
  say("ready");
  const auto begin = Clock::now();
  std::vector<double> took;
  unsigned random = 1;
  while (seconds_since(begin) < seconds) {
    random = random * 1664525u + 1013904223u;
    ::usleep(static_cast<unsigned>(period_s * 1e6 * (0.5 + (random >> 8) / double(1 << 24))));
    const auto started = Clock::now();
    program.launch(loops);
    program.wait();
    took.push_back(seconds_since(started) * 1e3);
  }
  std::sort(took.begin(), took.end());
  const auto at = [&](double part) {
    return took[std::min(took.size() - 1, static_cast<std::size_t>(part * static_cast<double>(took.size())))];
  };
  std::printf("requests=%zu p50=%.3f p90=%.3f p99=%.3f max=%.3f\n", took.size(), at(0.5), at(0.9), at(0.99),
              took.back());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int index) { return argc > index ? std::atof(argv[index]) : 0.0; };
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "spin") return spin(number(2) / 1e3, number(3), static_cast<std::size_t>(number(4)) << 20);
  if (what == "endless") return endless(number(2));
  if (what == "request") return request(number(2) / 1e3, number(3) / 1e6, number(4));
  return 2;
}
