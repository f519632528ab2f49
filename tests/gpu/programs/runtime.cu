// SPDX-License-Identifier: Apache-2.0
// A program with the CUDA runtime, which run.py builds with it static and shared, with the legacy and the per-thread
// default stream. The static runtime reaches the driver by dlsym and cuGetProcAddress, with versions of its own.
//
//   runtime [ROUNDS]
//
// Two threads hash a buffer again and again by kernels, with copies, stream-ordered allocations and a captured graph.
// Prints one line `RESULT {json}`.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr int kCount = 1 << 20;

#define CHECK(call)                                                            \
  do {                                                                         \
    const cudaError_t check_result = (call);                                   \
    if (check_result != cudaSuccess) {                                         \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorName(check_result)); \
      std::exit(1);                                                            \
    }                                                                          \
  } while (0)

__global__ void hash(std::uint32_t* data, int count, std::uint32_t salt) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    std::uint32_t value = data[i] ^ salt;
    for (int round = 0; round < 32; ++round) value = (value ^ (value >> 15)) * 0x2c1b3c6du + 0x9e3779b9u;
    data[i] = value;
  }
}

void work(int rounds, std::uint32_t seed, std::uint64_t* digest) {
  std::uint32_t* data = nullptr;
  CHECK(cudaMalloc(&data, kCount * sizeof *data));
  std::vector<std::uint32_t> host(kCount);
  for (int i = 0; i < kCount; ++i) host[static_cast<std::size_t>(i)] = seed + static_cast<std::uint32_t>(i);
  CHECK(cudaMemcpy(data, host.data(), kCount * sizeof *data, cudaMemcpyHostToDevice));
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t graph_exec = nullptr;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (std::uint32_t i = 0; i < 8; ++i) hash<<<256, 256, 0, stream>>>(data, kCount, i);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&graph_exec, graph, 0));

  for (int round = 0; round < rounds; ++round) {
    std::uint32_t* copy = nullptr;
    CHECK(cudaMallocAsync(&copy, kCount * sizeof *copy, stream));
    CHECK(cudaGraphLaunch(graph_exec, stream));
    CHECK(cudaMemcpyAsync(copy, data, kCount * sizeof *copy, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaMemsetAsync(data, 0, sizeof *data, stream));
    CHECK(cudaMemcpyAsync(data, copy, kCount * sizeof *copy, cudaMemcpyDeviceToDevice, stream));
    CHECK(cudaFreeAsync(copy, stream));
    CHECK(cudaStreamSynchronize(stream));
    hash<<<256, 256>>>(data, kCount, static_cast<std::uint32_t>(round));
    CHECK(cudaGetLastError());
    CHECK(cudaStreamSynchronize(nullptr));
  }
  CHECK(cudaMemcpy(host.data(), data, kCount * sizeof *data, cudaMemcpyDeviceToHost));
  for (const std::uint32_t value : host) *digest = (*digest ^ value) * 0x100000001b3ull;
  CHECK(cudaGraphExecDestroy(graph_exec));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(data));
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 300;
  CHECK(cudaFree(nullptr));
  std::uint64_t digests[2] = {0xcbf29ce484222325ull, 0xcbf29ce484222325ull};
  std::thread other(work, rounds, 2u, &digests[1]);
  work(rounds, 1, &digests[0]);
  other.join();
  std::printf("RESULT {\"digest\": \"%016llx %016llx\"}\n", static_cast<unsigned long long>(digests[0]),
              static_cast<unsigned long long>(digests[1]));
  return 0;
}
