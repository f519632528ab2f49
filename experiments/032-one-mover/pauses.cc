// SPDX-License-Identifier: Apache-2.0
// Is giving access to chunks cheap in a pause between two copies to the host, and what do such pauses cost?
//
//   g++ -std=c++20 -O2 pauses.cc -I/usr/local/cuda/include -lcuda -lpthread -o pauses
//   ./pauses GIB CHUNK_MIB
//
// A mover copies so many GiB to the host and as many from it, both at once, piece by piece. For each piece as much
// memory is mapped, in two processes: the mover, and a program. (Both map chunks of their own here. An imported chunk
// takes as long, see imports.cc.) They map at any moment, as now, or only while no copy to the host is under way. Each
// row is the median of five runs. One run without any mapping is the baseline.
#include <cuda.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}
#define CHECK(call)                                \
  do {                                             \
    const CUresult result = (call);                \
    if (result != CUDA_SUCCESS) {                  \
      std::printf("%s: %d\n", #call, int(result)); \
      std::fflush(stdout);                         \
      ::_exit(3);                                  \
    }                                              \
  } while (0)

std::size_t g_chunk = 0;
std::size_t g_bytes = 0;
constexpr int kRuns = 5;

void make_current() {
  CHECK(cuInit(0));
  CUdevice device = 0;
  CHECK(cuDeviceGet(&device, 0));
  CUcontext context = nullptr;
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
}

// As many chunks as fill one piece, mapped and unmapped again and again.
struct Chunks {
  explicit Chunks(std::size_t piece) : handles(piece / g_chunk) {
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CHECK(cuMemAddressReserve(&region, g_chunk * handles.size(), 2 << 20, 0, 0));
    for (auto& handle : handles) CHECK(cuMemCreate(&handle, g_chunk, &kind, 0));
  }
  // Returns the milliseconds of giving access.
  double map() {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    double taken = 0;
    for (std::size_t i = 0; i < handles.size(); ++i) {
      const CUdeviceptr at = region + i * g_chunk;
      CHECK(cuMemMap(at, g_chunk, 0, handles[i], 0));
      const auto begin = Clock::now();
      CHECK(cuMemSetAccess(at, g_chunk, &access, 1));
      taken += ms_since(begin);
    }
    return taken;
  }
  void unmap() {
    for (std::size_t i = 0; i < handles.size(); ++i) CHECK(cuMemUnmap(region + i * g_chunk, g_chunk));
  }
  CUdeviceptr region = 0;
  std::vector<CUmemGenericAllocationHandle> handles;
};

// Maps a piece's chunks each time it is asked, and answers with the milliseconds of giving access.
[[noreturn]] void program(int socket, std::size_t piece) {
  make_current();
  Chunks chunks(piece);
  char asked = 0;
  while (::read(socket, &asked, 1) == 1) {
    const double taken = chunks.map();
    if (::write(socket, &taken, sizeof taken) != sizeof taken) ::_exit(6);
    chunks.unmap();
  }
  ::_exit(0);
}

enum class Mapping { kNone, kAnyTime, kInPauses };

struct Mover {
  explicit Mover(std::size_t a_piece) : piece(a_piece), chunks(a_piece) {
    CHECK(cuMemAlloc(&device_out, piece));
    CHECK(cuMemAlloc(&device_in, piece));
    CHECK(cuMemHostAlloc(&host_out, piece, 0));
    CHECK(cuMemHostAlloc(&host_in, piece, 0));
    CHECK(cuStreamCreate(&out, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&in, CU_STREAM_NON_BLOCKING));
  }
  // Both sides map a piece's chunks. Returns the milliseconds that giving access took, of both.
  double map_both(int socket) {
    char word = 'm';
    if (::write(socket, &word, 1) != 1) ::_exit(6);
    double taken = chunks.map(), of_program = 0;
    if (::read(socket, &of_program, sizeof of_program) != sizeof of_program) ::_exit(6);
    chunks.unmap();
    return taken + of_program;
  }
  // Returns {all in ms, giving access in ms}.
  std::pair<double, double> run(Mapping mapping, int socket) {
    const std::size_t pieces = g_bytes / piece;
    std::atomic<std::size_t> mapped{0};
    double access = 0;
    const auto begin = Clock::now();
    std::thread mapper;
    if (mapping == Mapping::kAnyTime) {
      mapper = std::thread([&] {
        make_current();
        for (std::size_t i = 0; i < pieces; ++i, ++mapped) access += map_both(socket);
      });
    }
    for (std::size_t i = 0; i < pieces; ++i) CHECK(cuMemcpyHtoDAsync(device_in, host_in, piece, in));
    for (std::size_t i = 0; i < pieces; ++i) {
      // A piece cannot be copied before its memory is mapped: the mapper is one piece ahead at most.
      while (mapping == Mapping::kAnyTime && mapped < i) std::this_thread::yield();
      CHECK(cuMemcpyDtoHAsync(host_out, device_out, piece, out));
      CHECK(cuStreamSynchronize(out));
      if (mapping == Mapping::kInPauses) access += map_both(socket);
    }
    CHECK(cuStreamSynchronize(in));
    if (mapper.joinable()) mapper.join();
    return {ms_since(begin), access};
  }

  const std::size_t piece;
  Chunks chunks;
  CUdeviceptr device_out = 0, device_in = 0;
  void *host_out = nullptr, *host_in = nullptr;
  CUstream out = nullptr, in = nullptr;
};

void measure(std::size_t piece) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) ::_exit(1);
  const pid_t mover = ::fork();
  if (mover == 0) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(pair[0]);
      program(pair[1], piece);
    }
    ::close(pair[1]);
    make_current();
    Mover it(piece);
    it.map_both(pair[0]);
    it.run(Mapping::kNone, pair[0]);
    double base = 0;
    for (const auto& [mapping, words] : {std::pair{Mapping::kNone, "nothing is mapped"},
                                         {Mapping::kAnyTime, "mapped at any time"},
                                         {Mapping::kInPauses, "mapped in pauses"}}) {
      std::vector<std::pair<double, double>> runs;
      for (int i = 0; i < kRuns; ++i) runs.push_back(it.run(mapping, pair[0]));
      std::sort(runs.begin(), runs.end());
      const auto [all, access] = runs[kRuns / 2];
      if (mapping == Mapping::kNone) base = all;
      const double chunks = 2.0 * double(g_bytes / piece) * double(it.chunks.handles.size());
      std::printf(
          "pieces of %4zu MiB, chunks of %3zu MiB, %-18s: %7.1f ms (%6.1f to %6.1f), %.3f of the copies; "
          "access %.3f ms a chunk\n",
          piece >> 20, g_chunk >> 20, words, all, runs.front().first, runs.back().first, all / base,
          mapping == Mapping::kNone ? 0.0 : access / chunks);
    }
    ::close(pair[0]);
    ::waitpid(child, nullptr, 0);
    ::_exit(0);
  }
  ::close(pair[0]);
  ::close(pair[1]);
  ::waitpid(mover, nullptr, 0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::printf("pauses GIB CHUNK_MIB\n"), 2;
  g_bytes = static_cast<std::size_t>(std::atoi(argv[1])) << 30;
  g_chunk = static_cast<std::size_t>(std::atoi(argv[2])) << 20;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (const std::size_t piece : {std::size_t{256} << 20, std::size_t{512} << 20, std::size_t{1024} << 20})
    if (piece % g_chunk == 0) measure(piece);
  return 0;
}
