// SPDX-License-Identifier: Apache-2.0
// A program that computes: each of its threads, on each of its streams and GPUs, steps through fills, increments,
// saxpys, checksums and copies, checks what comes back, and at the end adds its data to a digest that depends on the
// options alone.
//
// --log FILE: a line for each step that it has waited for, `gpu return_ns sure_ns`: from the return of the launch until
// the launch's entry plus the kernel's duration the GPU was certainly working for this process, whatever a scheduler
// says.
// --pageable 1: the result of each step is copied to memory that is not pinned, which waits for the step.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/programs/gpu.h"

namespace gpumux::programs {
namespace {

struct Work {
  const Api& api;
  const Options& options;
  int gpu;
  unsigned thread;
  int log_fd;
  SameCount& count;  // of contexts if there are several, one after the other; else of steps
};

std::atomic<std::uint64_t> g_digest{0};
std::atomic<std::uint64_t> g_steps{0};

struct Lane {
  CUstream stream = nullptr;
  CUdeviceptr data = 0, x = 0, y = 0, sum = 0;
  std::uint64_t* host_sum = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec graph_exec = nullptr;
  std::uint32_t value = 0;
  std::uint32_t steps = 0;
};

constexpr std::uint64_t kElements = std::uint64_t{16} * 1024;
constexpr std::uint32_t kFloatOne = 0x3f800000;

class Lanes {
 public:
  Lanes(const Work& work, unsigned count, unsigned salt)
      : work_(work),
        api_(work.api),
        per_thread_(work.options.flag("per-thread-stream")),
        kernels_(load_kernels(work.api)),
        lanes_(count) {
    for (unsigned i = 0; i < count; ++i) open(lanes_[i], salt + 17 * i + 3);
  }

  void step(std::uint64_t number) {
    const std::uint64_t spin_ns = work_.options.number("step-us") * 1000;
    CUevent before = nullptr;
    if (work_.options.flag("cross-events") && lanes_.size() > 1)
      GPUMUX_CALL(api_.cuEventCreate(&before, CU_EVENT_DISABLE_TIMING));
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      Lane& lane = lanes_[i];
      if (before != nullptr && i != 0) {
        GPUMUX_CALL(api_.cuEventRecord(before, lanes_[i - 1].stream));
        GPUMUX_CALL(api_.cuStreamWaitEvent(lane.stream, before, 0));
      }
      const std::uint64_t entry = now_ns();
      if (spin_ns != 0) launch(api_, kernels_.spin, lane.stream, per_thread_, spin_ns);
      const std::uint64_t returned = now_ns();
      if (work_.log_fd >= 0 && spin_ns != 0 && entry + spin_ns > returned) {
        char line[96];
        const int length =
            std::snprintf(line, sizeof line, "%d %llu %llu\n", work_.gpu, static_cast<unsigned long long>(returned),
                          static_cast<unsigned long long>(entry) + spin_ns);
        static_cast<void>(!::write(work_.log_fd, line, static_cast<std::size_t>(length)));
      }
      if (lane.graph_exec != nullptr) {
        GPUMUX_CALL(api_.cuGraphLaunch(lane.graph_exec, lane.stream));
      } else {
        submit(lane);
      }
      ++lane.value;
      ++lane.steps;
    }
    if (before != nullptr) GPUMUX_CALL(api_.cuEventDestroy_v2(before));
    if ((number + 1) % work_.options.number("sync-every") == 0) verify();
    g_steps.fetch_add(1, std::memory_order_relaxed);
  }

  void verify() {
    for (Lane& lane : lanes_) {
      GPUMUX_CALL(per_thread_ ? api_.cuStreamSynchronize_ptsz(nullptr) : api_.cuStreamSynchronize(lane.stream));
      if (lane.steps != 0 && *lane.host_sum != checksum_of(lane.value, kElements)) {
        wrong("checksum after step " + std::to_string(lane.steps) + " on gpu " + std::to_string(work_.gpu));
      }
    }
  }

  // Everything read back, element by element.
  std::uint64_t finish() {
    verify();
    std::uint64_t digest = 0;
    std::vector<std::uint32_t> data(kElements);
    std::vector<float> y(kElements);
    for (Lane& lane : lanes_) {
      GPUMUX_CALL(api_.cuMemcpyDtoH_v2(data.data(), lane.data, kElements * 4));
      GPUMUX_CALL(api_.cuMemcpyDtoH_v2(y.data(), lane.y, kElements * 4));
      for (std::uint64_t i = 0; i < kElements; ++i) {
        if (data[i] != lane.value) wrong("element " + std::to_string(i) + " is " + std::to_string(data[i]));
        if (y[i] != 0.5f * static_cast<float>(lane.steps)) wrong("y[" + std::to_string(i) + "]");
      }
      digest += hash(data.data(), kElements * 4, hash(y.data(), kElements * 4));
      close(lane);
    }
    GPUMUX_CALL(api_.cuModuleUnload(kernels_.module));
    return digest;
  }

 private:
  void open(Lane& lane, std::uint32_t value) {
    if (!per_thread_ && !work_.options.flag("legacy-stream"))
      GPUMUX_CALL(api_.cuStreamCreate(&lane.stream, CU_STREAM_NON_BLOCKING));
    for (CUdeviceptr* pointer : {&lane.data, &lane.x, &lane.y}) GPUMUX_CALL(api_.cuMemAlloc_v2(pointer, kElements * 4));
    GPUMUX_CALL(api_.cuMemAlloc_v2(&lane.sum, 8));
    if (work_.options.flag("pageable")) {
      lane.host_sum = new std::uint64_t;
    } else {
      void* host = nullptr;
      GPUMUX_CALL(api_.cuMemHostAlloc(&host, 8, 0));
      lane.host_sum = static_cast<std::uint64_t*>(host);
    }
    lane.value = value;
    GPUMUX_CALL(api_.cuMemsetD32_v2(lane.data, value, kElements));
    GPUMUX_CALL(api_.cuMemsetD32_v2(lane.x, kFloatOne, kElements));
    GPUMUX_CALL(api_.cuMemsetD32_v2(lane.y, 0, kElements));
    GPUMUX_CALL(api_.cuCtxSynchronize());
    if (!work_.options.flag("graph")) return;
    // Other threads go on meanwhile; a thread-local capture does not mind them.
    GPUMUX_CALL(api_.cuStreamBeginCapture_v2(lane.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    submit(lane);
    GPUMUX_CALL(api_.cuStreamEndCapture(lane.stream, &lane.graph));
    GPUMUX_CALL(api_.cuGraphInstantiateWithFlags(&lane.graph_exec, lane.graph, 0));
  }

  void submit(Lane& lane) {
    launch(api_, kernels_.increment, lane.stream, per_thread_, lane.data, kElements);
    launch(api_, kernels_.saxpy, lane.stream, per_thread_, lane.y, lane.x, 0.5f, kElements);
    launch(api_, kernels_.checksum, lane.stream, per_thread_, lane.data, kElements, lane.sum);
    GPUMUX_CALL(per_thread_ ? api_.cuMemcpyDtoHAsync_v2_ptsz(lane.host_sum, lane.sum, 8, nullptr)
                            : api_.cuMemcpyDtoHAsync_v2(lane.host_sum, lane.sum, 8, lane.stream));
  }

  void close(Lane& lane) {
    if (lane.graph_exec != nullptr) GPUMUX_CALL(api_.cuGraphExecDestroy(lane.graph_exec));
    if (lane.graph != nullptr) GPUMUX_CALL(api_.cuGraphDestroy(lane.graph));
    for (CUdeviceptr pointer : {lane.data, lane.x, lane.y, lane.sum}) GPUMUX_CALL(api_.cuMemFree_v2(pointer));
    if (work_.options.flag("pageable")) {
      delete lane.host_sum;
    } else {
      GPUMUX_CALL(api_.cuMemFreeHost(lane.host_sum));
    }
    if (lane.stream != nullptr) GPUMUX_CALL(api_.cuStreamDestroy_v2(lane.stream));
  }

  const Work& work_;
  const Api& api_;
  const bool per_thread_;
  Kernels kernels_;
  std::vector<Lane> lanes_;
};

// --begin FILE: says that there is a context, and has nothing else before FILE exists.
void meet(const Options& options) {
  if (options.text("begin").empty()) return;
  say("context");
  while (::access(options.text("begin").c_str(), F_OK) != 0) ::usleep(10'000);
}

bool has_contexts(const Options& options) { return options.number("contexts") > 1; }

// One thread's work on one GPU, in one context or in several, one after the other.
void work_on(const Work& work) {
  const Options& options = work.options;
  const bool counts_contexts = has_contexts(options);
  CUdevice device = 0;
  GPUMUX_CALL(work.api.cuDeviceGet(&device, work.gpu));
  std::uint64_t digest = 0;
  for (std::uint64_t round = 0; counts_contexts ? work.count.goes_on(round) : round == 0; ++round) {
    CUcontext context = nullptr;
    const bool primary = options.flag("primary");
    if (primary) {
      GPUMUX_CALL(work.api.cuDevicePrimaryCtxRetain(&context, device));
      GPUMUX_CALL(work.api.cuCtxSetCurrent(context));
    } else {
      GPUMUX_CALL(work.api.cuCtxCreate_v2(&context, 0, device));
    }
    if (round == 0) meet(options);
    if (options.number("alloc") != 0) {
      CUdeviceptr ballast = 0;
      GPUMUX_CALL(work.api.cuMemAlloc_v2(&ballast, options.number("alloc")));
    }
    Lanes lanes(work, static_cast<unsigned>(options.number("streams")),
                1000 * work.thread + static_cast<unsigned>(round));
    if (round == 0) say("ready gpu=%d thread=%u", work.gpu, work.thread);
    for (std::uint64_t step = 0; counts_contexts ? step < options.number("steps") : work.count.goes_on(step); ++step) {
      lanes.step(step);
      if (options.number("say-every") != 0 && (step + 1) % options.number("say-every") == 0) {
        say("step gpu=%d n=%llu t=%llu", work.gpu, static_cast<unsigned long long>(step) + 1,
            static_cast<unsigned long long>(now_ns()));
      }
      if (options.number("pause-us") != 0) ::usleep(static_cast<useconds_t>(options.number("pause-us")));
    }
    digest += lanes.finish();
    if (primary) {
      GPUMUX_CALL(work.api.cuDevicePrimaryCtxRelease_v2(device));
    } else {
      GPUMUX_CALL(work.api.cuCtxDestroy_v2(context));
    }
  }
  g_digest.fetch_add(digest, std::memory_order_relaxed);
}

}  // namespace
}  // namespace gpumux::programs

int main(int argc, char** argv) {
  using namespace gpumux::programs;
  const Options options(argc, argv,
                        {{"gpu", "0"},
                         {"steps", "100"},
                         {"step-us", "200"},
                         {"streams", "1"},
                         {"threads", "1"},
                         {"graph", "0"},
                         {"per-thread-stream", "0"},
                         {"legacy-stream", "0"},
                         {"cross-events", "0"},
                         {"contexts", "1"},
                         {"primary", "0"},
                         {"sync-every", "4"},
                         {"say-every", "0"},
                         {"pause-us", "0"},
                         {"alloc", "0"},
                         {"pageable", "0"},
                         {"hold", "0"},
                         {"begin", ""},
                         {"log", ""}});
  const Api api = open_driver(options.door());
  GPUMUX_CALL(api.cuInit(0));
  const int log_fd = options.text("log").empty()
                         ? -1
                         : ::open(options.text("log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const char* const counter = has_contexts(options) ? "contexts" : "steps";
  SameCount count(options, options.number(counter));
  std::vector<Work> works;
  for (const int gpu : options.list("gpu")) {
    for (unsigned thread = 0; thread < options.number("threads"); ++thread)
      works.push_back({api, options, gpu, thread, log_fd, count});
  }
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < works.size(); ++i) threads.emplace_back(work_on, std::cref(works[i]));
  work_on(works[0]);
  for (std::thread& thread : threads) thread.join();
  say_again(counter, count.count());
  say("digest=%016llx steps=%llu t=%llu", static_cast<unsigned long long>(g_digest.load()),
      static_cast<unsigned long long>(g_steps.load()), static_cast<unsigned long long>(now_ns()));
  if (options.number("hold") != 0) ::sleep(static_cast<unsigned>(options.number("hold")));
  return 0;
}
