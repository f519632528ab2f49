// SPDX-License-Identifier: Apache-2.0
// How much does a program lose while another process moves memory on its GPU, and through which step?
//
//   g++ -std=c++20 -O2 beside.cc -I/usr/local/cuda/include -lcuda -lpthread -o beside
//   ./beside CHUNK_MIB... [WORD]     only the rows that have the word in their names
//
// A program runs kernels without a pause: one kind walks over 1 GiB, the other over 16 MiB that stay in the GPU's
// cache. Beside it a mover takes these steps for one chunk after the other, some of them in each row: giving itself
// access to the chunk, running a kernel over it (as hashing does), copying it to the host, and copying as much from the
// host. Without a copy a chunk takes as long as its copy would. A row is the median of five runs of a second each. It
// says which part of its speed alone the program keeps, and the time that it loses for each chunk and each GiB.
#include <cuda.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels.h"

namespace {

using Clock = std::chrono::steady_clock;
#define CHECK(call)                                \
  do {                                             \
    const CUresult result = (call);                \
    if (result != CUDA_SUCCESS) {                  \
      std::printf("%s: %d\n", #call, int(result)); \
      std::fflush(stdout);                         \
      ::_exit(3);                                  \
    }                                              \
  } while (0)

constexpr int kRuns = 5;
constexpr auto kRun = std::chrono::seconds(1);
constexpr auto kStart = std::chrono::seconds(3);  // of a process
constexpr double kBytesPerSecond = 55e9;          // of one direction of the bus

struct Shared {
  std::atomic<std::uint64_t> launches{0};  // that have ended
  std::atomic<bool> stops{false};
};

CUfunction make_current() {
  CHECK(cuInit(0));
  CUdevice device = 0;
  CHECK(cuDeviceGet(&device, 0));
  CUcontext context = nullptr;
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CUmodule module = nullptr;
  CHECK(cuModuleLoadData(&module, kPtx));
  CUfunction walk = nullptr;
  CHECK(cuModuleGetFunction(&walk, module, "walk"));
  return walk;
}

void launch(CUfunction walk, CUdeviceptr at, std::size_t bytes, std::uint32_t passes, CUstream stream) {
  std::uint64_t words = bytes / 4;
  void* arguments[]{&at, &words, &passes};
  CHECK(cuLaunchKernel(walk, 1056, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr));
}

// Each launch takes some tenths of a millisecond. Four are under way.
[[noreturn]] void program(Shared& shared, std::size_t bytes, std::uint32_t passes) {
  const CUfunction walk = make_current();
  CUdeviceptr memory = 0;
  CHECK(cuMemAlloc(&memory, bytes));
  CUstream stream = nullptr;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUevent ended[4];
  for (CUevent& event : ended) CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (std::uint64_t i = 0; !shared.stops; ++i) {
    if (i >= 4) {
      CHECK(cuEventSynchronize(ended[i % 4]));
      ++shared.launches;
    }
    launch(walk, memory, bytes, passes, stream);
    CHECK(cuEventRecord(ended[i % 4], stream));
  }
  CHECK(cuStreamSynchronize(stream));
  ::_exit(0);
}

struct Steps {
  const char* name;
  bool maps, runs_kernel, copies_out, copies_in;
  unsigned together = 1;            // kernels one directly after the other, each time that so many chunks have come
  const char* host = nullptr;       // registered memory of a file in this folder; else the driver's own
  bool other_process_maps = false;  // a chunk, all the time
};
// mount -t tmpfs -o huge=always none /tmp/huge
constexpr char kHugeFolder[] = "/tmp/huge";
constexpr Steps kSteps[] = {
    {"nothing", false, false, false, false},
    {"copies to the host", false, false, true, false},
    {"copies from the host", false, false, false, true},
    {"both copies", false, false, true, true},
    {"access", true, false, false, false},
    {"a kernel over it", false, true, false, false},
    {"4 kernels for 4 chunks", false, true, false, false, 4},
    {"12 kernels for 12 chunks", false, true, false, false, 12},
    {"both copies, registered", false, false, true, true, 1, "/dev/shm"},
    {"both copies, registered huge pages", false, false, true, true, 1, kHugeFolder},
    {"another process maps", false, false, false, false, 1, nullptr, true},
    {"both copies, another process maps", false, false, true, true, 1, nullptr, true},
    {"both copies, access", true, false, true, true},
    {"both copies, a kernel", false, true, true, true},
    {"both copies, access, a kernel", true, true, true, true},
};

struct Chunk {
  explicit Chunk(std::size_t a_size) : size(a_size) {
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CHECK(cuMemCreate(&handle, size, &kind, 0));
    CHECK(cuMemAddressReserve(&address, size, 2 << 20, 0, 0));
  }
  void map() {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CHECK(cuMemMap(address, size, 0, handle, 0));
    CHECK(cuMemSetAccess(address, size, &access, 1));
  }
  void unmap() { CHECK(cuMemUnmap(address, size)); }

  std::size_t size;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
};

Clock::duration time_of(std::size_t bytes) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(static_cast<double>(bytes) / kBytesPerSecond));
}

[[noreturn]] void map_all_the_time(std::size_t size) {
  make_current();
  Chunk chunk(size);
  for (;;) {
    const auto begin = Clock::now();
    chunk.map();
    chunk.unmap();
    std::this_thread::sleep_until(begin + time_of(size));
  }
}

// Host memory of a file in the folder, registered with the driver. Null: there is no such folder.
void* registered(const char* folder, std::size_t bytes) {
  const int file = ::open(folder, O_TMPFILE | O_RDWR, 0600);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0) return nullptr;
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  ::close(file);
  if (at == MAP_FAILED) return nullptr;
  CHECK(cuMemHostRegister(at, bytes, 0));
  return at;
}

struct Mover {
  explicit Mover(std::size_t a_chunk) : chunk(a_chunk), walk(make_current()), mapped(a_chunk) {
    CHECK(cuMemAlloc(&device_out, chunk));
    CHECK(cuMemAlloc(&device_in, chunk));
    for (CUstream* const stream : {&out, &in, &kernels}) CHECK(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
  }
  bool take_host_memory(const char* folder) {
    auto& [to, from] = host[folder];
    if (folder == nullptr && to == nullptr) {
      CHECK(cuMemHostAlloc(&to, chunk, 0));
      CHECK(cuMemHostAlloc(&from, chunk, 0));
    } else if (to == nullptr) {
      to = registered(folder, chunk);
      from = registered(folder, chunk);
    }
    host_out = to;
    host_in = from;
    return to != nullptr && from != nullptr;
  }
  void move_one(const Steps& steps, Clock::time_point begin) {
    if (steps.copies_out) CHECK(cuMemcpyDtoHAsync(host_out, device_out, chunk, out));
    if (steps.copies_in) CHECK(cuMemcpyHtoDAsync(device_in, host_in, chunk, in));
    if (steps.maps) mapped.map();
    if (steps.runs_kernel && ++waiting >= steps.together) {
      for (; waiting > 0; --waiting) launch(walk, device_out, chunk, 1, kernels);
    }
    for (const CUstream stream : {kernels, out, in}) CHECK(cuStreamSynchronize(stream));
    if (steps.maps) mapped.unmap();
    std::this_thread::sleep_until(begin + time_of(chunk));
  }

  const std::size_t chunk;
  const CUfunction walk;
  unsigned waiting = 0;
  Chunk mapped;
  CUdeviceptr device_out = 0, device_in = 0;
  std::map<const char*, std::pair<void*, void*>> host;
  void *host_out = nullptr, *host_in = nullptr;
  CUstream out = nullptr, in = nullptr, kernels = nullptr;
};

struct Rates {
  double launches = 0, chunks = 0;  // a second
};
Rates run(Mover& mover, const Steps& steps, const Shared& shared) {
  const std::uint64_t before = shared.launches;
  const auto begin = Clock::now();
  std::uint64_t chunks = 0;
  while (Clock::now() < begin + kRun) {
    mover.move_one(steps, Clock::now());
    ++chunks;
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return {static_cast<double>(shared.launches - before) / seconds, static_cast<double>(chunks) / seconds};
}

// In a process of its own: the driver does not survive a fork.
void measure(Shared& shared, std::size_t chunk, const char* kind, const char* only) {
  const pid_t mover = ::fork();
  if (mover == 0) {
    Mover it(chunk);
    double alone = 0;
    for (const Steps& steps : kSteps) {
      if (&steps != kSteps && std::strstr(steps.name, only) == nullptr) continue;
      if (!it.take_host_memory(steps.host)) {
        std::printf("%s: %s is not there\n", steps.name, steps.host);
        continue;
      }
      pid_t other = -1;
      if (steps.other_process_maps && (other = ::fork()) == 0) {
        ::execl("/proc/self/exe", "beside", "maps", std::to_string(chunk).c_str(), nullptr);
        ::_exit(3);
      }
      if (other > 0) std::this_thread::sleep_for(kStart);
      std::vector<double> kept, lost;
      double rate = 0;
      for (int i = 0; i < kRuns; ++i) {
        const Rates rates = run(it, steps, shared);
        if (&steps == kSteps) alone = std::max(alone, rates.launches);
        kept.push_back(rates.launches / alone);
        lost.push_back((1 - rates.launches / alone) / rates.chunks * 1e3);
        rate = rates.chunks;
      }
      if (other > 0) ::kill(other, SIGKILL), ::waitpid(other, nullptr, 0);
      std::sort(kept.begin(), kept.end());
      std::sort(lost.begin(), lost.end());
      std::printf(
          "%s; chunks of %3zu MiB, %4.0f a second: %-30s keeps %.3f (%.3f to %.3f); lost %.3f ms a chunk, %.2f a GiB\n",
          kind, chunk >> 20, rate, steps.name, kept[kRuns / 2], kept.front(), kept.back(), lost[kRuns / 2],
          lost[kRuns / 2] * static_cast<double>(std::size_t{1} << 30) / static_cast<double>(chunk));
    }
    std::fflush(stdout);
    ::_exit(0);
  }
  ::waitpid(mover, nullptr, 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::printf("beside CHUNK_MIB...\n"), 2;
  if (std::strcmp(argv[1], "maps") == 0) map_all_the_time(std::strtoull(argv[2], nullptr, 10));
  const char* const only = std::atoi(argv[argc - 1]) == 0 ? argv[argc - 1] : "";
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  void* const room = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  for (const auto& [kind, bytes, passes] :
       {std::tuple{"memory", std::size_t{1} << 30, 1u}, {"cache ", std::size_t{16} << 20, 60u}}) {
    Shared& shared = *new (room) Shared();
    const pid_t child = ::fork();
    if (child == 0) program(shared, bytes, passes);
    while (shared.launches < 1000 && ::waitpid(child, nullptr, WNOHANG) == 0) ::usleep(1000);
    for (int i = 1; i < argc; ++i) {
      const int chunk = std::atoi(argv[i]);
      if (chunk > 0) measure(shared, static_cast<std::size_t>(chunk) << 20, kind, only);
    }
    shared.stops = true;
    ::waitpid(child, nullptr, 0);
  }
  return 0;
}
