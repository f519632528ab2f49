// SPDX-License-Identifier: Apache-2.0
// Which calls of the driver return while a kernel of their process is frozen, and another thread waits for that kernel?
//
//   g++ -std=c++20 -O2 -rdynamic calls.cc -I/usr/local/cuda/include -lcuda -lpthread -o calls
//   ./calls            every way to wait, each in a process of its own
//   ./calls WAY        one of them
//
// For each way to wait and each call: a kernel runs, a thread waits for it, the channels of the kernel's group are
// disabled, and a third thread makes the call. It "blocks" if it has not returned after half a second. Then the
// channels are enabled, and everything ends before the next call is tried. A watchdog enables them after five seconds.
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "frozen.h"

namespace {

// ---- the program --------------------------------------------------------------------------------

constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 out, .param .u64 loops) {
  .reg .u64 %x, %n, %p; .reg .pred %q;
  ld.param.u64 %n, [loops]; ld.param.u64 %p, [out]; mov.u64 %x, 0;
L: add.u64 %x, %x, 1; setp.lt.u64 %q, %x, %n; @%q bra L;
  st.global.u64 [%p], %x; ret;
}
)";
constexpr std::size_t kBytes = std::size_t{32} << 20;

struct Program {
  CUcontext context = nullptr;  // the kernel's
  CUstream work = nullptr;      // where it runs
  CUstream other = nullptr;     // of the mover
  CUfunction spin = nullptr;
  CUmodule module = nullptr;
  CUdeviceptr word = 0;
  CUdeviceptr copied = 0;      // what the program itself copies
  CUcontext movers = nullptr;  // a context of the mover's own
  CUstream movers_stream = nullptr;
  CUfunction movers_spin = nullptr;
  CUdeviceptr movers_word = 0;
  std::uint64_t loops = 1000;
  std::vector<char> pageable = std::vector<char>(kBytes);
  void* pinned = nullptr;
  void* pinned_later = std::aligned_alloc(4096, kBytes);
  CUdeviceptr region = 0;  // of the mover: a part of it is mapped
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp kind{};
  CUmemAccessDesc access{};

  void launch(std::uint64_t count) {
    void* arguments[] = {&word, &count};
    CHECK(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, work, arguments, nullptr));
  }
  void map() {
    CHECK(cuMemCreate(&handle, kBytes, &kind, 0));
    CHECK(cuMemMap(region, kBytes, 0, handle, 0));
    CHECK(cuMemSetAccess(region, kBytes, &access, 1));
  }
  explicit Program(CUcontext its) : context(its) {
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, kPtx));
    CHECK(cuModuleGetFunction(&spin, module, "spin"));
    CHECK(cuMemAlloc(&word, 8));
    CHECK(cuMemAlloc(&copied, kBytes));
    CHECK(cuMemHostAlloc(&pinned, kBytes, 0));
    CHECK(cuStreamCreate(&work, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CHECK(cuMemAddressReserve(&region, 4 * kBytes, 0, 0, 0));
    map();
    launch(loops);
    CHECK(cuStreamSynchronize(work));
    const auto begin = Clock::now();
    launch(loops = 20'000'000);
    CHECK(cuStreamSynchronize(work));
    loops = static_cast<std::uint64_t>(static_cast<double>(loops) * 300 / ms_since(begin));  // 0.3 s
    CHECK(cuMemcpyDtoHAsync(pinned, region, kBytes, other));
    CHECK(cuStreamSynchronize(other));
    CUdevice device = 0;
    CHECK(cuCtxGetDevice(&device));
    std::size_t free_before = 0, free_after = 0, total = 0;
    CHECK(cuMemGetInfo(&free_before, &total));
    const auto created = Clock::now();
#if CUDA_VERSION >= 13000
    CHECK(cuCtxCreate(&movers, nullptr, 0, device));
#else
    CHECK(cuCtxCreate(&movers, 0, device));
#endif
    const double took = ms_since(created);
    CHECK(cuMemGetInfo(&free_after, &total));
    std::printf("(the mover's context: %.0f ms, %zu MiB)\n", took, (free_before - free_after) >> 20);
    CUmodule movers_module = nullptr;
    CHECK(cuModuleLoadData(&movers_module, kPtx));
    CHECK(cuModuleGetFunction(&movers_spin, movers_module, "spin"));
    CHECK(cuMemAlloc(&movers_word, 8));
    CHECK(cuStreamCreate(&movers_stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemcpyDtoHAsync(pinned, region, kBytes, movers_stream));
    CHECK(cuStreamSynchronize(movers_stream));
    CHECK(cuCtxSetCurrent(context));
  }
};

using Act = std::function<void(Program&)>;

// Each returns when the kernel is done, or has the driver queue for it.
const std::vector<std::pair<std::string, Act>>& waits() {
  static const std::vector<std::pair<std::string, Act>> all = {
      {"nothing", [](Program&) {}},
      {"cuStreamSynchronize", [](Program& p) { CHECK(cuStreamSynchronize(p.work)); }},
      {"cuCtxSynchronize", [](Program&) { CHECK(cuCtxSynchronize()); }},
      {"cuEventSynchronize",
       [](Program& p) {
         CUevent event = nullptr;
         CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
         CHECK(cuEventRecord(event, p.work));
         CHECK(cuEventSynchronize(event));
       }},
      {"cuEventSynchronize, blocking",
       [](Program& p) {
         CUevent event = nullptr;
         CHECK(cuEventCreate(&event, CU_EVENT_BLOCKING_SYNC));
         CHECK(cuEventRecord(event, p.work));
         CHECK(cuEventSynchronize(event));
       }},
      {"cuMemFree",
       [](Program&) {
         CUdeviceptr memory = 0;
         CHECK(cuMemAlloc(&memory, kBytes));
         CHECK(cuMemFree(memory));
       }},
      {"cuMemFreeHost",
       [](Program&) {
         void* memory = nullptr;
         CHECK(cuMemHostAlloc(&memory, kBytes, 0));
         CHECK(cuMemFreeHost(memory));
       }},
      {"a pageable copy behind the kernel",
       [](Program& p) {
         CHECK(cuMemcpyDtoHAsync(p.pageable.data(), p.copied, kBytes, p.work));
         CHECK(cuStreamSynchronize(p.work));
       }},
      {"cuModuleLoadData, first launch",
       [](Program& p) {
         CUmodule module = nullptr;
         CUfunction spin = nullptr;
         CHECK(cuModuleLoadData(&module, kPtx));
         CHECK(cuModuleGetFunction(&spin, module, "spin"));
         std::uint64_t count = 1;
         void* arguments[] = {&p.word, &count};
         CHECK(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, p.work, arguments, nullptr));
       }},
      {"cuModuleUnload",
       [](Program&) {
         CUmodule module = nullptr;
         CHECK(cuModuleLoadData(&module, kPtx));
         CHECK(cuModuleUnload(module));
       }},
      {"a stack that grows (cuCtxSetLimit)",
       [](Program&) {
         static std::size_t bytes = 1024;
         CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes += 1024));
       }},
      {"cuMemAllocAsync and cuMemFreeAsync",
       [](Program& p) {
         CUdeviceptr memory = 0;
         CHECK(cuMemAllocAsync(&memory, kBytes, p.work));
         CHECK(cuMemFreeAsync(memory, p.work));
         CHECK(cuStreamSynchronize(p.work));
       }},
      {"launches until the queue is full",
       [](Program& p) {
         for (int i = 0; i < 5000; ++i) p.launch(1);
         CHECK(cuStreamSynchronize(p.work));
       }},
      {"graph launches until the queue is full",
       [](Program& p) {
         CUgraph graph = nullptr;
         CUgraphExec ready = nullptr;
         CHECK(cuStreamBeginCapture(p.work, CU_STREAM_CAPTURE_MODE_RELAXED));
         for (int i = 0; i < 20; ++i) p.launch(1);
         CHECK(cuStreamEndCapture(p.work, &graph));
         CHECK(cuGraphInstantiate(&ready, graph, 0));
         for (int i = 0; i < 2000; ++i) CHECK(cuGraphLaunch(ready, p.work));
         CHECK(cuStreamSynchronize(p.work));
         CHECK(cuGraphExecDestroy(ready));
         CHECK(cuGraphDestroy(graph));
       }},
      {"cuMemHostRegister and unregister",
       [](Program& p) {
         CHECK(cuMemHostRegister(p.pageable.data(), kBytes, 0));
         CHECK(cuMemHostUnregister(p.pageable.data()));
       }},
      {"cuStreamDestroy",
       [](Program& p) {
         CUstream stream = nullptr;
         CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
         CUstream before = p.work;
         p.work = stream;
         p.launch(1);
         p.work = before;
         CHECK(cuStreamDestroy(stream));
       }},
  };
  return all;
}

// The calls of the mover and the drainer.
const std::vector<std::pair<std::string, Act>>& calls() {
  static const std::vector<std::pair<std::string, Act>> all = {
      {"query", [](Program& p) { cuStreamQuery(p.work); }},
      {"copy out",
       [](Program& p) {
         CHECK(cuMemcpyDtoHAsync(p.pinned, p.region, kBytes, p.other));
         while (cuStreamQuery(p.other) == CUDA_ERROR_NOT_READY) ::usleep(100);
       }},
      {"copy in",
       [](Program& p) {
         CHECK(cuMemcpyHtoDAsync(p.region, p.pinned, kBytes, p.other));
         while (cuStreamQuery(p.other) == CUDA_ERROR_NOT_READY) ::usleep(100);
       }},
      {"unmap, release",
       [](Program& p) {
         CHECK(cuMemUnmap(p.region, kBytes));
         CHECK(cuMemRelease(p.handle));
         p.handle = 0;
       }},
      {"create, map",
       [](Program& p) {
         CUmemGenericAllocationHandle made = 0;
         CHECK(cuMemCreate(&made, kBytes, &p.kind, 0));
         CHECK(cuMemMap(p.region + kBytes, kBytes, 0, made, 0));
         CHECK(cuMemSetAccess(p.region + kBytes, kBytes, &p.access, 1));
         CHECK(cuMemUnmap(p.region + kBytes, kBytes));
         CHECK(cuMemRelease(made));
       }},
      {"make stream",
       [](Program&) {
         CUstream made = nullptr;
         CHECK(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
       }},
      {"event",
       [](Program& p) {
         CUevent made = nullptr;
         CHECK(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
         CHECK(cuEventRecord(made, p.other));
         cuEventQuery(made);
         CHECK(cuEventDestroy(made));
       }},
      {"register host", [](Program&) { CHECK(cuMemHostRegister(std::aligned_alloc(4096, kBytes), kBytes, 0)); }},
      {"unregister", [](Program& p) { CHECK(cuMemHostUnregister(p.pinned_later)); }},
      {"launch",
       [](Program& p) {
         std::uint64_t count = 1;
         void* arguments[] = {&p.word, &count};
         CHECK(cuLaunchKernel(p.spin, 1, 1, 1, 32, 1, 1, 0, p.other, arguments, nullptr));
       }},
      {"own ctx: out",
       [](Program& p) {
         CHECK(cuCtxSetCurrent(p.movers));
         CHECK(cuMemcpyDtoHAsync(p.pinned, p.region, kBytes, p.movers_stream));
         while (cuStreamQuery(p.movers_stream) == CUDA_ERROR_NOT_READY) ::usleep(100);
       }},
      {"own ctx: event",
       [](Program& p) {
         CHECK(cuCtxSetCurrent(p.movers));
         CUevent made = nullptr;
         CHECK(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING));
         CHECK(cuEventRecord(made, p.movers_stream));
         cuEventQuery(made);
         CHECK(cuEventDestroy(made));
       }},
      {"own ctx: reg.",
       [](Program& p) {
         CHECK(cuCtxSetCurrent(p.movers));
         CHECK(cuMemHostRegister(std::aligned_alloc(4096, kBytes), kBytes, 0));
       }},
      {"own ctx: unreg.",
       [](Program& p) {
         CHECK(cuCtxSetCurrent(p.movers));
         void* memory = std::aligned_alloc(4096, kBytes);
         CHECK(cuMemHostRegister(memory, kBytes, 0));
         CHECK(cuMemHostUnregister(memory));
       }},
      {"own ctx: stream",
       [](Program& p) {
         CHECK(cuCtxSetCurrent(p.movers));
         CUstream made = nullptr;
         CHECK(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
       }},
      {"own ctx: launch",
       [](Program& p) {
         CHECK(cuCtxSetCurrent(p.movers));
         std::uint64_t count = 1;
         void* arguments[] = {&p.movers_word, &count};
         CHECK(cuLaunchKernel(p.movers_spin, 1, 1, 1, 32, 1, 1, 0, p.movers_stream, arguments, nullptr));
         CHECK(cuStreamSynchronize(p.movers_stream));
       }},
  };
  return all;
}

// Whether it has returned by then; the milliseconds that it took.
std::pair<bool, double> try_call(Program& program, const Act& act) {
  auto done = std::make_shared<std::promise<void>>();
  auto future = done->get_future();
  const auto begin = Clock::now();
  std::thread([&program, act, done] {
    cuCtxSetCurrent(program.context);
    act(program);
    done->set_value();
  }).detach();
  const bool returned = future.wait_for(500ms) == std::future_status::ready;
  const double took = ms_since(begin);
  if (!returned) {
    set_frozen(false);
    if (future.wait_for(4s) != std::future_status::ready) {
      std::printf("a call has not returned after the thaw\n");
      ::_exit(5);
    }
  }
  return {returned, took};
}

int run(const std::string& way) {
  std::thread(watch).detach();
  CHECK(cuInit(0));
  CUdevice device = 0;
  CUcontext context = nullptr;
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  Program program(context);
  for (const auto& [name, wait] : waits()) {
    if (name != way) continue;
    std::printf("%-40s", way.c_str());
    for (const auto& [call_name, call] : calls()) {
      if (call_name == "unregister") CHECK(cuMemHostRegister(program.pinned_later, kBytes, 0));
      program.launch(program.loops);
      std::thread waiter([&] {
        cuCtxSetCurrent(program.context);
        wait(program);
      });
      ::usleep(60'000);
      set_frozen(true);
      const auto [returned, took] = try_call(program, call);
      if (g_frozen) set_frozen(false);
      if (returned)
        std::printf(" | %11.2f ms", took);
      else
        std::printf(" | %14s", "blocks");
      std::fflush(stdout);
      waiter.join();
      CHECK(cuCtxSynchronize());
      if (program.handle == 0) program.map();
    }
    for (auto& took : g_took) std::sort(took.begin(), took.end());
    std::printf(" | freeze %.2f, thaw %.2f ms (medians)\n", g_took[1][g_took[1].size() / 2],
                g_took[0][g_took[0].size() / 2]);
    return 0;
  }
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) return run(argv[1]);
  std::printf("%-40s", "a thread waits in");
  for (const auto& [name, call] : calls()) std::printf(" | %14s", name.c_str());
  std::printf("\n");
  std::fflush(stdout);
  for (const auto& [name, wait] : waits()) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl("/proc/self/exe", argv[0], name.c_str(), nullptr);
      ::_exit(127);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status != 0) std::printf(" (ended with %x)\n", static_cast<unsigned>(status));
    std::fflush(stdout);
  }
}
