// SPDX-License-Identifier: Apache-2.0
// What the test programs have in common: the driver by whichever door is asked for, options, output, time.
//
// They are ordinary programs of the driver API: they know nothing of gpumux, and give the same digests with it and
// without. A call that fails ends the program with a line on stderr and exit code 3; a wrong result with exit code 4.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cuda/driver.gen.h"

namespace gpumux::programs {

using namespace cuda;

// Through which door the program gets the driver's functions.
enum class Door { kLinked, kDlsym, kProcAddress };

// Entries that the programs use, by the symbols that today's cuda.h gives their names.
// clang-format off
#define GPUMUX_PROGRAM_ENTRIES(X) \
  X(cuInit) X(cuDeviceGet) X(cuDeviceGetCount) X(cuDeviceGetUuid_v2) X(cuCtxCreate_v2) X(cuCtxDestroy_v2) \
  X(cuCtxSetCurrent) X(cuCtxGetCurrent) X(cuCtxSynchronize) X(cuCtxEnablePeerAccess) X(cuDevicePrimaryCtxRetain) \
  X(cuDevicePrimaryCtxRelease_v2) X(cuDevicePrimaryCtxReset_v2) X(cuModuleLoadData) X(cuModuleGetFunction) \
  X(cuModuleUnload) X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemcpyHtoD_v2) X(cuMemcpyDtoH_v2) X(cuMemcpyHtoDAsync_v2) \
  X(cuMemcpyDtoHAsync_v2) X(cuMemsetD32_v2) X(cuMemsetD32Async) X(cuMemcpyDtoHAsync_v2_ptsz) X(cuMemHostAlloc) \
  X(cuMemFreeHost) X(cuLaunchKernel) X(cuLaunchKernel_ptsz) X(cuStreamCreate) X(cuStreamDestroy_v2) \
  X(cuStreamSynchronize) X(cuStreamSynchronize_ptsz) X(cuStreamQuery) X(cuStreamWaitEvent) \
  X(cuStreamBeginCapture_v2) X(cuStreamEndCapture) X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) \
  X(cuGraphExecDestroy) X(cuGraphDestroy) X(cuEventCreate) X(cuEventRecord) X(cuEventSynchronize) \
  X(cuEventDestroy_v2) X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle_v2) X(cuIpcCloseMemHandle) X(cuMemAddressReserve) \
  X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemAllocAsync) \
  X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) \
  X(cuMemFreeAsync) X(cuMemAllocAsync_ptsz) X(cuMemFreeAsync_ptsz) X(cuMemAllocFromPoolAsync) X(cuMemPoolCreate) \
  X(cuMemPoolDestroy) X(cuMemPoolGetAttribute) X(cuMemPoolSetAttribute) X(cuMemPoolSetAccess) X(cuMemPoolTrimTo) \
  X(cuDeviceGetDefaultMemPool) X(cuPointerGetAttribute) X(cuMemGetAddressRange_v2) X(cuMemGetInfo_v2) \
  X(cuMemAllocManaged) X(cuMemRangeGetAttribute) X(cuDeviceTotalMem_v2) X(cuGraphCreate) X(cuGraphAddMemcpyNode) \
  X(cuGraphAddMemsetNode) X(cuGraphAddNode) X(cuGraphAddNode_v2) X(cuGraphMemcpyNodeSetParams) \
  X(cuGraphNodeSetParams) X(cuGraphExecMemcpyNodeSetParams) X(cuGraphExecNodeSetParams) X(cuMemcpyPeerAsync) \
  X(cuMemcpyDtoDAsync_v2)
// clang-format on

struct Api {
// NOLINTNEXTLINE(bugprone-macro-parentheses): the name that a declaration declares.
#define GPUMUX_FIELD(name) decltype(Driver::name) name = nullptr;
  GPUMUX_PROGRAM_ENTRIES(GPUMUX_FIELD)
#undef GPUMUX_FIELD
};

// Fills the table; ends the program if a function is missing.
Api open_driver(Door door);

// --name value, or --name alone (value "1"). An unknown name ends the program with exit code 2.
class Options {
 public:
  Options(int argc, char** argv, std::map<std::string, std::string> defaults);
  const std::string& text(const std::string& name) const { return values_.at(name); }
  std::uint64_t number(const std::string& name) const;
  bool flag(const std::string& name) const { return text(name) != "0"; }
  Door door() const;
  // "0,1" -> {0, 1}
  std::vector<int> list(const std::string& name) const;
  // --until FILE, which every program knows: FILE exists, or none was named. A program with rounds or steps does at
  // least as many as it is told, and goes on until FILE exists. So a test waits for what it wants to see, on a machine
  // of any speed.
  bool may_end() const;

 private:
  std::map<std::string, std::string> values_;
};

[[noreturn]] void fail(const char* what, CUresult result);
[[noreturn]] void wrong(const std::string& what);
inline void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) fail(what, result);
}
#define GPUMUX_CALL(expression) ::gpumux::programs::check((expression), #expression)

std::uint64_t now_ns();  // CLOCK_MONOTONIC
// One line, written at once, so that lines of threads do not mix and a killed program has written what it said.
[[gnu::format(printf, 1, 2)]] void say(const char* format, ...);

// The option with which the program does as much again, for a run to compare with (tests/framework/case.py).
inline void say_again(const char* option, std::uint64_t count) {
  say("again --%s %llu", option, static_cast<unsigned long long>(count));
}

struct Kernels {
  CUmodule module = nullptr;
  CUfunction fill = nullptr, saxpy = nullptr, checksum = nullptr, spin = nullptr, increment = nullptr,
             rendezvous = nullptr;
};
Kernels load_kernels(const Api& api);

// Launches with the given arguments, to the calling thread's default stream if `per_thread`.
template <class... Arguments>
void launch(const Api& api, CUfunction kernel, CUstream stream, bool per_thread, Arguments... arguments) {
  void* parameters[] = {&arguments...};
  const auto entry = per_thread ? api.cuLaunchKernel_ptsz : api.cuLaunchKernel;
  GPUMUX_CALL(entry(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr));
}

// How often the threads of a program do something: each of them equally often, at least as often as asked for, and
// until the program may end (Options::may_end).
class SameCount {
 public:
  SameCount(const Options& options, std::uint64_t at_least) : options_(options), at_least_(at_least) {}
  // Whether the calling thread, which has done it `done` times, does it once more.
  bool goes_on(std::uint64_t done);
  // How often it was done, once all threads are through.
  std::uint64_t count() const { return end_.value_or(0); }

 private:
  const Options& options_;
  const std::uint64_t at_least_;
  std::mutex mutex_;
  std::uint64_t begun_ = 0;  // by the furthest thread
  std::optional<std::uint64_t> end_;
};

// A running hash of bytes.
std::uint64_t hash(const void* data, std::size_t bytes, std::uint64_t seed = 0xcbf29ce484222325u);

// A program whose work is `rounds` rounds of `Work` in one context on the first GPU named: round(number), and at the
// end finish(), which checks everything and returns the digest.
template <class Work>
int run_in_rounds(const Options& options) {
  const Api api = open_driver(options.door());
  GPUMUX_CALL(api.cuInit(0));
  CUdevice device = 0;
  CUcontext context = nullptr;
  GPUMUX_CALL(api.cuDeviceGet(&device, options.list("gpu").front()));
  std::size_t total = 0;
  GPUMUX_CALL(api.cuDeviceTotalMem_v2(&total, device));
  say("before a context total=%zu", total);
  GPUMUX_CALL(api.cuCtxCreate_v2(&context, 0, device));
  std::uint64_t digest = 0;
  {
    Work work(api, options);
    say("ready");
    std::uint64_t rounds = 0;
    while (rounds < options.number("rounds") || !options.may_end()) {
      work.round(rounds);
      say("round n=%llu", static_cast<unsigned long long>(++rounds));
    }
    say_again("rounds", rounds);
    digest = work.finish();
  }
  GPUMUX_CALL(api.cuCtxDestroy_v2(context));
  say("digest=%016llx t=%llu", static_cast<unsigned long long>(digest), static_cast<unsigned long long>(now_ns()));
  return 0;
}

// The sum that gpumux_checksum gives for `count` elements of one value.
inline std::uint64_t checksum_of(std::uint32_t value, std::uint64_t count) { return value * (count * count); }

}  // namespace gpumux::programs
