// SPDX-License-Identifier: Apache-2.0
// What becomes of a process whose kernels are frozen: how it exits, is killed, execs, gives up its context. And what a
// freeze stops: kernels of several kinds, and copies that are under way.
//
//   g++ -std=c++20 -O2 -rdynamic ends.cc -I/usr/local/cuda/include -lcuda -lpthread -o ends
//   ./ends             every case, each in a process of its own
//   ./ends quiet       the same, with nothing else on the GPU
//   ./ends CASE        one of them
//
// While the cases run, the first process launches an empty kernel every 2 ms, and says how long the slowest one took.
#include <cuda.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <future>
#include <string>
#include <thread>

#include "frozen.h"

namespace {

constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry empty() { ret; }
.visible .entry spin(.param .u64 stop, .param .u64 flag) {
  .reg .u64 %p, %f, %x, %c; .reg .pred %q, %z; .reg .u32 %t, %b;
  ld.param.u64 %p, [stop]; ld.param.u64 %f, [flag]; mov.u64 %c, 0; mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x;
  or.b32 %t, %t, %b; setp.eq.u32 %z, %t, 0;
L: add.u64 %c, %c, 1; @!%z bra M; st.volatile.global.u64 [%p+8], %c; ld.volatile.global.u64 %x, [%p];
  st.volatile.global.u64 [%f], %x;
M: ld.volatile.global.u64 %x, [%f]; setp.eq.u64 %q, %x, 0; @%q bra L; ret;
}
.visible .entry shared(.param .u64 stop, .param .u64 flag) {
  .reg .u64 %p, %f, %x, %c; .reg .pred %q, %z; .reg .u32 %t, %b, %a, %v; .shared .align 8 .b8 room[49152];
  ld.param.u64 %p, [stop]; ld.param.u64 %f, [flag]; mov.u64 %c, 0; mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x;
  mov.u32 %a, room; mad.lo.u32 %a, %t, 8, %a; or.b32 %t, %t, %b; setp.eq.u32 %z, %t, 0;
L: add.u64 %c, %c, 1; ld.volatile.shared.u32 %v, [%a]; add.u32 %v, %v, 1; st.volatile.shared.u32 [%a], %v;
  @!%z bra M; st.volatile.global.u64 [%p+8], %c; ld.volatile.global.u64 %x, [%p]; st.volatile.global.u64 [%f], %x;
M: ld.volatile.global.u64 %x, [%f]; setp.eq.u64 %q, %x, 0; @%q bra L; ret;
}
.visible .entry walk(.param .u64 stop, .param .u64 flag, .param .u64 data, .param .u64 mask) {
  .reg .u64 %p, %f, %x, %c, %d, %m, %i, %v, %s; .reg .pred %q, %z; .reg .u32 %t, %b, %n;
  ld.param.u64 %p, [stop]; ld.param.u64 %f, [flag]; ld.param.u64 %d, [data]; ld.param.u64 %m, [mask];
  mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %n, %ntid.x; mad.lo.u32 %n, %b, %n, %t; cvt.u64.u32 %i, %n;
  or.b32 %t, %t, %b; setp.eq.u32 %z, %t, 0; mov.u64 %c, 0;
L: add.u64 %c, %c, 1; add.u64 %i, %i, 270336; and.b64 %i, %i, %m; shl.b64 %s, %i, 3; add.u64 %s, %s, %d;
  ld.global.u64 %v, [%s]; add.u64 %v, %v, 1; st.global.u64 [%s], %v;
  @!%z bra M; st.volatile.global.u64 [%p+8], %c; ld.volatile.global.u64 %x, [%p]; st.volatile.global.u64 [%f], %x;
M: ld.volatile.global.u64 %x, [%f]; setp.eq.u64 %q, %x, 0; @%q bra L; ret;
}
)";

struct Words {  // mapped: the kernel reads `stop` and counts
  std::uint64_t stop, count;
};

struct Program {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUmodule module = nullptr;
  volatile Words* words = nullptr;
  CUdeviceptr on_gpu = 0;  // the words, as kernels see them
  CUdeviceptr flag = 0;    // all threads but one look there whether to stop

  explicit Program(bool is_primary) {
    CUdevice device = 0;
    CHECK(cuDeviceGet(&device, 0));
    if (is_primary) {
      CHECK(cuDevicePrimaryCtxRetain(&context, device));
      CHECK(cuCtxSetCurrent(context));
    } else {
#if CUDA_VERSION >= 13000
      CHECK(cuCtxCreate(&context, nullptr, 0, device));
#else
      CHECK(cuCtxCreate(&context, 0, device));
#endif
    }
    CHECK(cuModuleLoadData(&module, kPtx));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    void* memory = nullptr;
    CHECK(cuMemHostAlloc(&memory, sizeof(Words), CU_MEMHOSTALLOC_DEVICEMAP));
    words = static_cast<Words*>(memory);
    words->stop = 0;
    words->count = 0;
    CHECK(cuMemHostGetDevicePointer(&on_gpu, memory, 0));
    CHECK(cuMemAlloc(&flag, 8));
    CHECK(cuMemsetD32(flag, 0, 2));
    launch("empty", nullptr);
    CHECK(cuStreamSynchronize(stream));
  }
  void launch(const char* name, void** arguments) {
    CUfunction function = nullptr;
    CHECK(cuModuleGetFunction(&function, module, name));
    CHECK(cuLaunchKernel(function, 132 * 8, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr));
  }
  void begin(const char* name) {
    void* arguments[] = {&on_gpu, &flag};
    launch(name, arguments);
    while (words->count == 0) ::usleep(100);
  }
};

// ---- cases --------------------------------------------------------------------------------------

int say_objects() {
  const auto count = [](const char* when) {
    const std::lock_guard lock(g_mutex);
    std::size_t channels = 0, groups = 0;
    for (const Object& one : g_objects) {
      channels += is_channel(one.kind);
      groups += one.kind == kGroup;
    }
    std::printf("  %s: %zu channels, %zu groups\n", when, channels, groups);
  };
  count("initialised");
  Program program(true);
  count("one context");
  for (int i = 0; i < 64; ++i) {
    CUstream stream = nullptr;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    program.stream = stream;
    program.launch("empty", nullptr);
    CHECK(cuMemsetD8Async(program.on_gpu, 0, 8, stream));
  }
  CHECK(cuCtxSynchronize());
  count("64 streams");
  Program second(false);
  count("a second context");
  CHECK(cuCtxDestroy(second.context));
  const std::lock_guard lock(g_mutex);
  for (const Object& one : g_objects) {
    if (is_channel(one.kind) || one.kind == kGroup || one.kind == kSubdevice || one.kind == 0x80)
      std::printf("    class %4x client %x parent %x object %x fd %d\n", one.kind, one.client, one.parent, one.object,
                  one.fd);
    if (one.kind != kSubdevice) continue;
    std::uint32_t id = 0;
    Control control{one.client, one.object, 0x20800142, 0, reinterpret_cast<std::uint64_t>(&id), sizeof id, 0};
    const long result =
        ::syscall(SYS_ioctl, one.fd, _IOC(_IOC_READ | _IOC_WRITE, 'F', kControl, sizeof control), &control);
    char bus[32] = {};
    CUdevice device = 0;
    cuDeviceGet(&device, 0);
    cuDeviceGetPCIBusId(bus, sizeof bus, device);
    std::printf("    GPU_GET_ID: %ld, status %x, id %x; PCI %s\n", result, control.status, id, bus);
  }
  return 0;
}

int stop_kernel(const char* name) {
  Program program(true);
  CUdeviceptr data = 0;
  const std::size_t bytes = std::size_t{2} << 30;
  std::uint64_t mask = bytes / 8 - 1;
  if (std::string(name) == "walk") {
    CHECK(cuMemAlloc(&data, bytes));
    CHECK(cuMemsetD8(data, 0, bytes));
  }
  void* arguments[] = {&program.on_gpu, &program.flag, &data, &mask};
  program.launch(name, arguments);
  while (program.words->count == 0) ::usleep(100);
  std::vector<double> stopped, took, thaws, resumed;
  std::size_t moved = 0;
  for (int round = 0; round < 50; ++round) {
    ::usleep(20'000);
    const auto begin = Clock::now();
    std::atomic<bool> done{false};
    double last = 0;
    std::thread watcher([&] {
      std::uint64_t seen = program.words->count;
      while (!done) {
        const std::uint64_t now = program.words->count;
        if (now != seen) last = ms_since(begin);
        seen = now;
      }
    });
    set_frozen(true);
    took.push_back(ms_since(begin));
    const std::uint64_t at_return = program.words->count;
    ::usleep(5000);
    moved += program.words->count != at_return;
    done = true;
    watcher.join();
    stopped.push_back(last);
    const std::uint64_t frozen_at = program.words->count;
    const auto thaw = Clock::now();
    std::thread resumes([&] {
      while (program.words->count == frozen_at) {
      }
      resumed.push_back(ms_since(thaw));
    });
    set_frozen(false);
    thaws.push_back(ms_since(thaw));
    resumes.join();
  }
  std::sort(stopped.begin(), stopped.end());
  for (auto* all : {&took, &thaws, &resumed}) std::sort(all->begin(), all->end());
  std::printf(
      "  %s, %u channels: its counter stops after %.2f ms (max %.2f), and the call takes %.2f (max %.2f); it moved on "
      "after the call in %zu of 50. It goes on %.2f ms after the thaw begins (max %.2f), which takes %.2f (max %.2f)\n",
      name, g_count, stopped[25], stopped[49], took[25], took[49], moved, resumed[25], resumed[49], thaws[25],
      thaws[49]);
  program.words->stop = 1;
  CHECK(cuStreamSynchronize(program.stream));
  return 0;
}

// A copy to the host is under way: what of it still arrives after the call?
int stop_copy() {
  Program program(true);
  const std::size_t bytes = std::size_t{4} << 30;
  CUdeviceptr data = 0;
  void* host = nullptr;
  CHECK(cuMemAlloc(&data, bytes));
  CHECK(cuMemHostAlloc(&host, bytes, 0));
  auto* const words = static_cast<std::uint32_t*>(host);
  const std::size_t count = bytes / 4;
  for (std::uint32_t round = 1; round <= 5; ++round) {
    CHECK(cuMemsetD32Async(data, round, count, program.stream));
    CHECK(cuStreamSynchronize(program.stream));
    CHECK(cuMemcpyDtoHAsync(host, data, bytes, program.stream));
    ::usleep(20'000);
    const auto begin = Clock::now();
    set_frozen(true);
    const double took = ms_since(begin);
    const auto arrived = [&] {
      std::size_t here = 0;
      for (std::size_t i = 0; i < count; i += 4096) here += words[i] == round;
      return here;
    };
    const std::size_t first = arrived();
    ::usleep(100'000);
    const std::size_t later = arrived();
    set_frozen(false);
    CHECK(cuStreamSynchronize(program.stream));
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) wrong += words[i] != round;
    std::printf(
        "  a copy of 4 GiB, %u channels: the call takes %.2f ms; %zu of %zu pages are there after it, %zu after 0.1 s; "
        "wrong at the end: %zu\n",
        g_count, took, first, count / 4096, later, wrong);
  }
  return 0;
}

// The case's thread makes the call while the kernel is frozen.
template <class Act>
int frozen_then(const char* name, bool is_primary, Act act) {
  Program program(is_primary);
  program.begin("spin");
  set_frozen(true);
  auto done = std::make_shared<std::promise<void>>();
  auto future = done->get_future();
  std::thread([&program, done, act] {
    cuCtxSetCurrent(program.context);
    act(program);
    done->set_value();
  }).detach();
  const auto begin = Clock::now();
  const bool returned = future.wait_for(2s) == std::future_status::ready;
  std::printf("  %s: %s", name, returned ? "returns" : "blocks");
  if (returned) std::printf(" after %.1f ms", ms_since(begin));
  if (!returned) {
    program.words->stop = 1;
    set_frozen(false);
    std::printf(", and %s after the thaw",
                future.wait_for(4s) == std::future_status::ready ? "returns" : "still blocks");
  }
  std::printf("\n");
  std::fflush(stdout);
  ::_exit(0);
}

int ends(bool waits) {
  Program program(true);
  program.begin("spin");
  if (waits)
    std::thread([&program] {
      cuCtxSetCurrent(program.context);
      cuCtxSynchronize();
    }).detach();
  ::usleep(50'000);
  set_frozen(true);
  std::printf("  frozen, now the end\n");
  std::fflush(stdout);
  return 0;
}

int run(const std::string& name) {
  std::thread(watch).detach();
  CHECK(cuInit(0));
  if (name.ends_with(", all")) g_whole = true;
  const std::string what = name.substr(0, name.find(','));
  if (what == "objects") return say_objects();
  if (what == "spin" || what == "shared" || what == "walk") return stop_kernel(what.c_str());
  if (what == "copy") return stop_copy();
  if (what == "exit" || what == "kill" || what == "exec") {
    ends(name.find("wait") != std::string::npos);
    if (what == "exit") std::exit(0);
    if (what == "exec") ::execl("/bin/true", "true", nullptr);
    ::pause();
  }
  if (what == "destroy")
    return frozen_then("cuCtxDestroy", false, [](Program& p) { static_cast<void>(cuCtxDestroy(p.context)); });
  if (what == "reset")
    return frozen_then("cuDevicePrimaryCtxReset", true,
                       [](Program&) { static_cast<void>(cuDevicePrimaryCtxReset(0)); });
  if (what == "context") return frozen_then("a new context", true, [](Program&) { static_cast<void>(Program(false)); });
  if (what == "alloc")
    return frozen_then("cuMemAlloc, cuMemHostAlloc", true, [](Program&) {
      CUdeviceptr memory = 0;
      void* host = nullptr;
      CHECK(cuMemAlloc(&memory, 1 << 20));
      CHECK(cuMemHostAlloc(&host, 1 << 20, 0));
    });
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const bool is_quiet = argc > 1 && std::string(argv[1]) == "quiet";
  if (argc > 1 && !is_quiet) return run(argv[1]);
  const char* const cases[] = {
      "objects", "spin",      "spin, all",       "shared",    "shared, all",  "walk",  "walk, all",
      "copy",    "copy, all", "alloc, all",      "destroy",   "destroy, all", "reset", "context, all",
      "exit",    "exit, all", "exit, wait, all", "exec, all", "kill, all",    "kill"};
  std::vector<pid_t> children;
  CHECK(cuInit(0));
  Program own(true);
  double longest = 0;
  const auto work = [&] {
    if (is_quiet) return static_cast<void>(::usleep(2000));
    const auto begin = Clock::now();
    own.launch("empty", nullptr);
    CHECK(cuStreamSynchronize(own.stream));
    longest = std::max(longest, ms_since(begin));
    ::usleep(2000);
  };
  for (int i = 0; i < 100; ++i) work();
  std::printf("alone, an empty kernel takes %.2f ms at most\n", longest);
  for (const char* const name : cases) {
    std::printf("%s\n", name);
    longest = 0;
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl("/proc/self/exe", argv[0], name, nullptr);
      ::_exit(127);
    }
    int status = 0;
    const auto begin = Clock::now();
    bool killed = false;
    auto killed_at = begin;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      work();
      if (std::strncmp(name, "kill", 4) == 0 && !killed && ms_since(begin) > 3000) {
        killed = true;
        killed_at = Clock::now();
        ::kill(child, SIGKILL);
        longest = 0;
      }
      if (ms_since(begin) > 30'000) {
        std::printf("  not over after 30 s: killed\n");
        ::kill(child, SIGKILL);
        ::waitpid(child, &status, 0);
        break;
      }
    }
    const double took = ms_since(killed ? killed_at : begin);
    for (int i = 0; i < 100; ++i) work();
    std::printf("  over after %.0f ms%s (status %x); the other process's slowest empty kernel: %.2f ms\n", took,
                killed ? " from the kill" : "", static_cast<unsigned>(status), longest);
  }
}
