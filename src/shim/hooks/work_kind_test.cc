// SPDX-License-Identifier: Apache-2.0
// Goal: what is likely to take the same time is one kind, and what is not is another.
#include "shim/hooks/work_kind.h"

#include <gtest/gtest.h>

namespace gpumux::shim {
namespace {

using namespace cuda;

template <class Handle>
Handle handle(std::uintptr_t value) {
  return reinterpret_cast<Handle>(value);
}

gate::WorkKind launch(std::uintptr_t function, unsigned blocks, unsigned threads, void** parameters = nullptr,
                      std::uintptr_t stream = 0) {
  return work_kind(Entry::cuLaunchKernel, handle<CUfunction>(function), blocks, 1u, 1u, threads, 1u, 1u, 0u,
                   handle<CUstream>(stream), parameters, parameters);
}

gate::WorkKind copy(CUdeviceptr to, const void* from, std::size_t bytes) {
  return work_kind(Entry::cuMemcpyHtoDAsync_v2, to, from, bytes, handle<CUstream>(0));
}

gate::WorkKind launch_ex(const CUlaunchConfig& config) {
  return work_kind(Entry::cuLaunchKernelEx, &config, handle<CUfunction>(64), static_cast<void**>(nullptr),
                   static_cast<void**>(nullptr));
}

TEST(WorkKindTest, AKernelOnAsManyThreadsWhateverItsParametersAndStream) {
  void* parameters[] = {nullptr};
  EXPECT_EQ(launch(64, 132, 256), launch(64, 132, 256, parameters, 4096));
  EXPECT_NE(launch(64, 132, 256), launch(128, 132, 256));
  EXPECT_NE(launch(64, 132, 256), launch(64, 1320, 256));
  EXPECT_NE(launch(64, 132, 256), launch(64, 132, 1024));
  EXPECT_EQ(launch(64, 1000, 256), launch(64, 1001, 256)) << "a word more is no other kind";
}

TEST(WorkKindTest, TheSameByALaunchConfiguration) {
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  const gate::WorkKind one = launch_ex(config);
  config.hStream = handle<CUstream>(4096);
  EXPECT_EQ(launch_ex(config), one);
  for (unsigned CUlaunchConfig::*const dimension :
       {&CUlaunchConfig::gridDimX, &CUlaunchConfig::gridDimY, &CUlaunchConfig::gridDimZ, &CUlaunchConfig::blockDimX,
        &CUlaunchConfig::blockDimY, &CUlaunchConfig::blockDimZ}) {
    CUlaunchConfig larger = config;
    larger.*dimension = 64;
    EXPECT_NE(launch_ex(larger), one);
  }
}

TEST(WorkKindTest, ACopyOfAsManyBytesWhereverTheyAre) {
  const char bytes[2] = {};
  EXPECT_EQ(copy(4096, bytes, 1 << 20), copy(8192, bytes + 1, 1 << 20));
  EXPECT_NE(copy(4096, bytes, 1 << 20), copy(4096, bytes, 1 << 30));
}

TEST(WorkKindTest, EachGraphAndEachEntryIsItsOwn) {
  const auto graph = [](Entry entry, std::uintptr_t which) {
    return work_kind(entry, handle<CUgraphExec>(which), handle<CUstream>(0));
  };
  EXPECT_EQ(graph(Entry::cuGraphLaunch, 64), graph(Entry::cuGraphLaunch, 64));
  EXPECT_NE(graph(Entry::cuGraphLaunch, 64), graph(Entry::cuGraphLaunch, 128));
  EXPECT_NE(graph(Entry::cuGraphLaunch, 64), graph(Entry::cuGraphUpload, 64));
}

}  // namespace
}  // namespace gpumux::shim
