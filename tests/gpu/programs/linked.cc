// SPDX-License-Identifier: Apache-2.0
// A program linked to libcuda.so.1, compiled with the vendor's header as its users do (the header renames functions to
// their newest versions, and to the per-thread ones with -DCUDA_API_PER_THREAD_DEFAULT_STREAM): the first door.
//
//   linked KERNELS.ptx [ROUNDS]
//
// Two threads increment two buffers through launches on the default stream, a created stream and a captured graph, with
// copies and memsets of several kinds between them. Prints one line `RESULT {json}`.
#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kCount = 1 << 20;

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  std::fprintf(stderr, "%s: %s\n", what, name != nullptr ? name : "?");
  std::exit(1);
}
#define CHECK(call) check((call), #call)

void launch(CUfunction function, CUdeviceptr data, CUstream stream) {
  unsigned long long count = kCount;
  void* parameters[] = {&data, &count};
  CHECK(cuLaunchKernel(function, 256, 1, 1, 256, 1, 1, 0, stream, parameters, nullptr));
}

// The sum of all elements in the end.
std::uint64_t work(CUcontext context, CUfunction increment, int rounds) {
  CHECK(cuCtxSetCurrent(context));
  CUdeviceptr first = 0, second = 0;
  CHECK(cuMemAlloc(&first, kCount * 4));
  CUstream stream = nullptr;
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK(cuMemAllocAsync(&second, kCount * 4, stream));
  CHECK(cuMemsetD32Async(first, 1, kCount, stream));
  CHECK(cuMemsetD8Async(second, 0, kCount * 4, stream));

  CUgraph graph = nullptr;
  CUgraphExec graph_exec = nullptr;
  CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  for (int i = 0; i < 4; ++i) launch(increment, first, stream);
  CHECK(cuMemcpyDtoDAsync(second, first, kCount * 4, stream));
  CHECK(cuStreamEndCapture(stream, &graph));
  CHECK(cuGraphInstantiate(&graph_exec, graph, 0));
  CUevent event = nullptr;
  CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CHECK(cuStreamSynchronize(stream));

  std::vector<std::uint32_t> host(kCount);
  for (int round = 0; round < rounds; ++round) {
    CHECK(cuGraphLaunch(graph_exec, stream));
    launch(increment, second, stream);
    CHECK(cuEventRecord(event, stream));
    CHECK(cuEventSynchronize(event));
    launch(increment, second, nullptr);
    CHECK(cuStreamSynchronize(nullptr));
    CHECK(cuMemcpyDtoH(host.data(), second, kCount * 4));
    CHECK(cuMemcpyHtoDAsync(first, host.data(), kCount * 4, stream));
    CHECK(cuStreamSynchronize(stream));
  }
  // Pinned, so that the copy that infers directions from addresses knows this one.
  std::uint32_t* pinned = nullptr;
  CHECK(cuMemHostAlloc(reinterpret_cast<void**>(&pinned), kCount * 4, CU_MEMHOSTALLOC_PORTABLE));
  CHECK(cuMemcpy(reinterpret_cast<CUdeviceptr>(pinned), first, kCount * 4));
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kCount; ++i) sum += pinned[i];
  CHECK(cuMemFreeHost(pinned));
  CHECK(cuGraphExecDestroy(graph_exec));
  CHECK(cuGraphDestroy(graph));
  CHECK(cuEventDestroy(event));
  CHECK(cuMemFreeAsync(second, stream));
  CHECK(cuStreamSynchronize(stream));
  CHECK(cuStreamDestroy(stream));
  CHECK(cuMemFree(first));
  return sum;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) return 2;
  const int rounds = count > 2 ? std::atoi(arguments[2]) : 300;
  CHECK(cuInit(0));
  CUdevice device = 0;
  CHECK(cuDeviceGet(&device, 0));
  CUcontext context = nullptr;
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CUmodule module = nullptr;
  CHECK(cuModuleLoad(&module, arguments[1]));
  CUfunction increment = nullptr;
  CHECK(cuModuleGetFunction(&increment, module, "gpumux_increment"));

  std::uint64_t sums[2] = {};
  std::thread other([&] { sums[1] = work(context, increment, rounds); });
  sums[0] = work(context, increment, rounds);
  other.join();
  CHECK(cuModuleUnload(module));
  CHECK(cuDevicePrimaryCtxRelease(device));

  // Each round adds four in the graph, one on the created stream and one on the default stream.
  const std::uint64_t expected = kCount * (1 + 6 * static_cast<std::uint64_t>(rounds));
  const bool right = sums[0] == expected && sums[1] == expected;
  std::printf("RESULT {\"digest\": \"%llu %llu\", \"right\": %s}\n", static_cast<unsigned long long>(sums[0]),
              static_cast<unsigned long long>(sums[1]), right ? "true" : "false");
  return right ? 0 : 1;
}
