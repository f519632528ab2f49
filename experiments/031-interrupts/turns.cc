// SPDX-License-Identifier: Apache-2.0
// Programs for measure.py, in one:
//
//   turns spin KERNEL_MS SECONDS [BYTES_MIB]   kernels of this length that fill the GPU; each result is checked. With
//                                              BYTES_MIB each walks over that much memory.
//   turns endless SECONDS [KIND FILE]          one kernel that goes on until it is told to stop, and counts. It looks
//   at
//                                              the host each 64th time: what a look takes differs by 12 %. KIND: spin,
//                                              memory (it walks over 2 GiB) or shared (128 KiB of it a block). Its
//                                              counter lies in FILE.
//   turns request PERIOD_MS WORK_US SECONDS    waits, launches a kernel of this length, waits for it; latencies
//   turns react PERIOD_MS WORK_US SECONDS FILE the same, and looks all the time at the counter in FILE: when it
//   stopped,
//                                              and when its own kernel began
//   turns churn SECONDS                        allocates and frees all the time, and launches nothing
//
// EVENTS and NO_COPIES in the environment: see `spin` and record_event.
//
//   g++ -std=c++20 -O2 turns.cc -I/usr/local/cuda/include -lcuda -lpthread -o turns
//
// Each prints one line of key=value when it is done; `spin` and `endless` count what they got done.
#include <cuda.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
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
.visible .entry endless(.param .u64 words, .param .u64 flag, .param .u64 data, .param .u64 mask) {
  .reg .u64 %p, %f, %x, %c, %d, %m, %i, %a; .reg .pred %q, %z, %w, %h; .reg .u32 %t, %b, %k;
  ld.param.u64 %p, [words]; ld.param.u64 %f, [flag]; mov.u64 %c, 0; mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x;
  ld.param.u64 %d, [data]; ld.param.u64 %m, [mask]; setp.eq.u64 %w, %d, 0;
  mov.u32 %k, %ntid.x; mad.lo.u32 %k, %b, %k, %t; cvt.u64.u32 %i, %k;
  or.b32 %t, %t, %b; setp.eq.u32 %z, %t, 0;
L: add.u64 %c, %c, 1; @%w bra K;
  add.u64 %i, %i, 270336; and.b64 %i, %i, %m; shl.b64 %a, %i, 3; add.u64 %a, %a, %d; ld.global.u64 %x, [%a];
  add.u64 %x, %x, 1; st.global.u64 [%a], %x;
K: and.b64 %x, %c, 63; setp.eq.and.u64 %h, %x, 0, %z; @!%h bra M;
  st.volatile.global.u64 [%p+8], %c; ld.volatile.global.u64 %x, [%p]; st.volatile.global.u64 [%f], %x;
M: ld.volatile.global.u64 %x, [%f]; setp.eq.u64 %q, %x, 0; @%q bra L; ret;
}
.extern .shared .align 16 .b8 room[];
.visible .entry endless_shared(.param .u64 words, .param .u64 flag, .param .u64 data, .param .u64 mask) {
  .reg .u64 %p, %f, %x, %c; .reg .pred %q, %z; .reg .u32 %t, %b, %r, %i;
  ld.param.u64 %p, [words]; ld.param.u64 %f, [flag]; mov.u64 %c, 0; mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x;
  mov.u32 %r, room; shl.b32 %i, %t, 3; or.b32 %t, %t, %b; setp.eq.u32 %z, %t, 0;
L: add.u64 %c, %c, 1; add.u32 %i, %i, 1024; and.b32 %i, %i, 131064; add.u32 %b, %r, %i; st.volatile.shared.u64 [%b], %c;
  and.b64 %x, %c, 63; setp.eq.and.u64 %q, %x, 0, %z; @!%q bra M;
  st.volatile.global.u64 [%p+8], %c; ld.volatile.global.u64 %x, [%p]; st.volatile.global.u64 [%f], %x;
M: ld.volatile.global.u64 %x, [%f]; setp.eq.u64 %q, %x, 0; @%q bra L; ret;
}
.visible .entry started(.param .u64 word, .param .u64 number) {
  .reg .u64 %p, %n; ld.param.u64 %p, [word]; ld.param.u64 %n, [number]; st.volatile.global.u64 [%p], %n; ret;
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

// Two words that the GPU and other processes see: [0] tells the kernel of `endless` to stop, [1] is its counter.
volatile std::uint64_t* shared_words(const char* path) {
  if (path == nullptr) {
    void* memory = nullptr;
    CHECK(cuMemHostAlloc(&memory, 16, CU_MEMHOSTALLOC_DEVICEMAP));
    std::memset(memory, 0, 16);
    return static_cast<volatile std::uint64_t*>(memory);
  }
  constexpr std::size_t kBytes = 4096;
  const int file = ::open(path, O_RDWR | O_CREAT, 0666);
  if (file < 0 || ::ftruncate(file, kBytes) != 0) std::perror(path), ::_exit(3);
  void* const memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) std::perror(path), ::_exit(3);
  ::close(file);
  return static_cast<volatile std::uint64_t*>(memory);
}

int endless(double seconds, const std::string& kind, const char* path) {
  Program program(kind == "memory" ? std::size_t{2} << 30 : 0);
  volatile std::uint64_t* const host = shared_words(path);
  auto* const memory = const_cast<std::uint64_t*>(host);
  if (path != nullptr) CHECK(cuMemHostRegister(memory, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
  host[0] = 0;
  host[1] = 0;
  CUdeviceptr words = 0, flag = 0;
  CHECK(cuMemHostGetDevicePointer(&words, memory, 0));
  CHECK(cuMemAlloc(&flag, 8));
  CHECK(cuMemsetD8(flag, 0, 8));
  const bool shared = kind == "shared";
  constexpr int kShared = 128 << 10;
  CUfunction function = nullptr;
  CHECK(cuModuleGetFunction(&function, program.module, shared ? "endless_shared" : "endless"));
  if (shared) CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kShared));
  void* arguments[] = {&words, &flag, &program.data, &program.mask};
  say("ready");
  const auto begin = Clock::now();
  const unsigned blocks = program.blocks / (shared ? 16 : 2);
  CHECK(
      cuLaunchKernel(function, blocks, 1, 1, kThreads, 1, 1, shared ? kShared : 0, program.stream, arguments, nullptr));
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

// "NAME: p50=… p90=… p99=… max=…" of milliseconds.
void print_times(const char* name, std::vector<double> took) {
  std::sort(took.begin(), took.end());
  if (took.empty()) took.push_back(0);
  const auto at = [&](double part) {
    return took[std::min(took.size() - 1, static_cast<std::size_t>(part * static_cast<double>(took.size())))];
  };
  std::printf("%s=%zu p50=%.3f p90=%.3f p99=%.3f max=%.3f\n", name, took.size(), at(0.5), at(0.9), at(0.99),
              took.back());
}

int react(double period_s, double work_s, double seconds, const char* path) {
  Program program;
  program.calibrate();
  const std::uint64_t loops = program.loops_of(work_s);
  volatile std::uint64_t* const victim = shared_words(path) + 1;
  void* memory = nullptr;
  CHECK(cuMemHostAlloc(&memory, 8, CU_MEMHOSTALLOC_DEVICEMAP));
  auto* const begun = static_cast<volatile std::uint64_t*>(memory);
  *begun = 0;
  CUdeviceptr word = 0;
  CHECK(cuMemHostGetDevicePointer(&word, memory, 0));
  CUfunction started = nullptr;
  CHECK(cuModuleGetFunction(&started, program.module, "started"));
  say("ready");

  const auto begin = Clock::now();
  const auto now = [&] { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count(); };
  // Written by the looking thread, in nanoseconds since `begin`: when the victim's counter last moved, and when the
  // newest request's kernel began.
  std::atomic<std::int64_t> moved_at = 0, begun_at = 0;
  std::atomic<bool> done = false;
  std::thread looks([&] {
    std::uint64_t count = *victim, kernel = 0;
    while (!done) {
      if (*victim != count) count = *victim, moved_at = now();
      if (*begun != kernel) kernel = *begun, begun_at = now();
    }
  });
  std::vector<double> to_stop, to_begin, to_end;
  std::uint64_t number = 0;
  unsigned random = 1;
  while (seconds_since(begin) < seconds) {
    random = random * 1664525u + 1013904223u;
    ::usleep(static_cast<unsigned>(period_s * 1e6 * (0.5 + (random >> 8) / double(1 << 24))));
    begun_at = 0;
    const std::int64_t asked_at = now();
    ++number;
    void* arguments[] = {&word, &number};
    CHECK(cuLaunchKernel(started, 1, 1, 1, 1, 1, 1, 0, program.stream, arguments, nullptr));
    program.launch(loops);
    program.wait();
    // The victim has not got the GPU back yet.
    const std::int64_t stopped_at = moved_at;
    to_end.push_back(static_cast<double>(now() - asked_at) / 1e6);
    while (begun_at.load() == 0) ::usleep(1);
    to_begin.push_back(static_cast<double>(begun_at - asked_at) / 1e6);
    to_stop.push_back(static_cast<double>(std::max<std::int64_t>(stopped_at - asked_at, 0)) / 1e6);
  }
  done = true;
  looks.join();
  print_times("victim_stopped", to_stop);
  print_times("kernel_began", to_begin);
  print_times("request_done", to_end);
  return 0;
}

int churn(double seconds) {
  Program program;
  say("ready");
  const auto begin = Clock::now();
  unsigned random = 1;
  std::size_t rounds = 0;
  for (; seconds_since(begin) < seconds; ++rounds) {
    random = random * 1664525u + 1013904223u;
    CUdeviceptr memory = 0;
    CHECK(cuMemAlloc(&memory, std::size_t{2} << (20 + (random >> 8) % 10)));
    CHECK(cuMemFree(memory));
  }
  std::printf("allocations=%zu\n", rounds);
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
  print_times("requests", std::move(took));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int index) { return argc > index ? std::atof(argv[index]) : 0.0; };
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "spin") return spin(number(2) / 1e3, number(3), static_cast<std::size_t>(number(4)) << 20);
  if (what == "endless") return endless(number(2), argc > 3 ? argv[3] : "spin", argc > 4 ? argv[4] : nullptr);
  if (what == "request") return request(number(2) / 1e3, number(3) / 1e6, number(4));
  if (what == "react" && argc > 5) return react(number(2) / 1e3, number(3) / 1e6, number(4), argv[5]);
  if (what == "churn") return churn(number(2));
  return 2;
}
