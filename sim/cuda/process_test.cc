// SPDX-License-Identifier: Apache-2.0
// Goal: several processes share one simulated machine: its memory, its GPUs' time, and memory handles. None of them can
// harm the others by dying or being stopped at any instruction. Method: helper processes (test_process.cc) are told
// what to do over pipes.
#include <signal.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <sstream>

#include "cuda/nvml_prototypes.h"
#include "sim/cuda/test_helper.h"
#include "sim/cuda/test_machine.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

std::string text(std::uint64_t number) { return std::to_string(number); }

constexpr std::uint64_t kMega = std::uint64_t{1} << 20;

class ProcessTest : public SimTest {
 protected:
  // Helpers of the test before are dead, but their memory may not be back yet.
  void SetUp() override {
    SimTest::SetUp();
    ASSERT_TRUE(eventually([] { return free_bytes() == kGpuBytes - kContextBytes; }));
  }
};

TEST_F(ProcessTest, CapacityIsSharedAndTheTruthIsOne) {
  Helper helper;
  ASSERT_EQ(helper.initialised(), "0");
  const std::uint64_t before = free_bytes();
  helper.get("context 0");
  EXPECT_EQ(free_bytes(), before - kContextBytes);
  const std::uint64_t theirs = helper.number("alloc " + text(32 * kMega));
  EXPECT_EQ(free_bytes(), before - kContextBytes - 32 * kMega);
  EXPECT_EQ(helper.number("info"), free_bytes());
  CUdeviceptr none = 0;
  EXPECT_EQ(cuMemAlloc_v2(&none, 30 * kMega), CUDA_ERROR_OUT_OF_MEMORY);
  helper.get("free " + text(theirs));
  EXPECT_NE(allocate(30 * kMega), 0u);
  EXPECT_EQ(helper.ask("alloc " + text(32 * kMega)).substr(0, 2), "2 ");
  // The other GPU is another matter.
  helper.get("context 1");
  helper.get("alloc " + text(50 * kMega));
}

TEST_F(ProcessTest, MemoryOfAKilledProcessComesBackAfterTheDelay) {
  const std::uint64_t before = free_bytes();
  auto helper = std::make_unique<Helper>();
  helper->get("context 0");
  helper->get("alloc " + text(40 * kMega));
  helper->kill_and_wait();
  // The first look notices the death; the memory is back at least 20 ms after that, and not before.
  const base::TimePoint noticed = now();
  if (free_bytes() != before) {
    EXPECT_TRUE(eventually([&] { return free_bytes() == before; }));
    EXPECT_GE((now() - noticed).count(), 20'000'000);
  } else {
    ADD_FAILURE() << "memory was back at once";
  }
  EXPECT_NE(allocate(50 * kMega), 0u);
}

TEST_F(ProcessTest, AnEndedProcessIsForgottenToo) {
  const std::uint64_t before = free_bytes();
  {
    Helper helper;
    helper.get("context 0");
    helper.get("alloc " + text(40 * kMega));
    helper.end_and_wait();
  }
  // Not looked at since: a process that needs the memory waits for it instead of failing.
  EXPECT_NE(allocate(50 * kMega), 0u);
  EXPECT_EQ(free_bytes(), before - 50 * kMega);
}

TEST_F(ProcessTest, LegacyIpcSharesMemoryAndKeepsItAlive) {
  const std::uint64_t before = free_bytes();
  auto helper = std::make_unique<Helper>();
  helper->get("context 0");
  const std::uint64_t theirs = helper->number("alloc " + text(4 * kMega));
  helper->get("fill " + text(theirs) + " 1000 7");
  helper->get("sync");
  const std::string hex = helper->get("ipc " + text(theirs));
  CUipcMemHandle handle{};
  for (std::size_t i = 0; i < sizeof handle.reserved; ++i) {
    handle.reserved[i] = static_cast<char>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  }
  CUdeviceptr here = 0;
  ASSERT_CUDA(cuIpcOpenMemHandle_v2(&here, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  EXPECT_EQ(free_bytes(), before - kContextBytes - 4 * kMega) << "charged once";
  EXPECT_EQ(read(here, 1)[0], 7u);
  EXPECT_CUDA(increment(nullptr, here, 1000));
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(helper->get("read " + text(theirs + 3996)), "8");
  helper->kill_and_wait();
  EXPECT_TRUE(eventually([&] { return free_bytes() == before - 4 * kMega; }));
  EXPECT_EQ(read(here, 1)[0], 8u) << "the memory outlives its owner while it is open";
  EXPECT_CUDA(cuIpcCloseMemHandle(here));
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(cuIpcOpenMemHandle_v2(&here, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_HANDLE);
  const CUdeviceptr own = allocate(4);
  ASSERT_CUDA(cuIpcGetMemHandle(&handle, own));
  EXPECT_EQ(cuIpcOpenMemHandle_v2(&here, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT)
      << "not in the process that exported it";
}

TEST_F(ProcessTest, CollectiveKernelsMeetAcrossProcessesOnOneGpu) {
  // Both spin on the one GPU, so they meet only because a spinning kernel gives up its slice.
  Helper helper;
  helper.get("context 0");
  const CUdeviceptr flags = allocate(8);
  EXPECT_CUDA(cuMemsetD32_v2(flags, 0, 2));
  EXPECT_CUDA(cuCtxSynchronize());
  CUipcMemHandle handle{};
  ASSERT_CUDA(cuIpcGetMemHandle(&handle, flags));
  std::string hex;
  for (const char byte : handle.reserved) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(byte));
    hex += two;
  }
  const std::uint64_t theirs = helper.number("open " + hex);
  const CUstream stream = make_stream();
  for (std::uint32_t round = 1; round <= 3; ++round) {
    EXPECT_CUDA(launch("gpumux_rendezvous", stream, flags, flags + 4, round));
    helper.get("rendezvous " + text(theirs + 4) + " " + text(theirs) + " " + text(round));
  }
  EXPECT_CUDA(cuStreamSynchronize(stream));
  helper.get("sync");
  EXPECT_EQ(read(flags, 2), (std::vector<std::uint32_t>{3, 3}));
}

TEST_F(ProcessTest, ProcessesShareAGpusTimeButNotTwoGpus) {
  // 60 ms of kernels in each of two processes: on one GPU 120 ms at least, for they take turns. Without a free machine
  // only a lower bound can be checked.
  Helper first;
  Helper second;
  first.get("context 0");
  second.get("context 0");
  const base::TimePoint start = now();
  first.tell("time 60 1000000");
  second.tell("time 60 1000000");
  const std::string first_answer = first.answer();
  const std::string second_answer = second.answer();
  EXPECT_GE((now() - start).count(), 119'000'000);
  // They took turns rather than one after the other: the one that was ready first waited for the other at least once.
  EXPECT_GE(std::strtoull(first_answer.substr(2).c_str(), nullptr, 10), 70'000u);
  EXPECT_GE(std::strtoull(second_answer.substr(2).c_str(), nullptr, 10), 70'000u);
  // Changes of process cost 100 us each: 120 ms in slices of 2 ms are at least 30 changes each way.
  unsigned count = 0;
  EXPECT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  nvmlDevice_t device = nullptr;
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, nullptr), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
}

TEST_F(ProcessTest, AKilledOwnerOfTheGpuHoldsUpNobody) {
  for (int round = 0; round < 5; ++round) {
    Helper helper;
    helper.get("context 0");
    helper.get("spin 3600000000000");
    const CUstream stream = make_stream();
    EXPECT_CUDA(spin(stream, 1'000'000));
    EXPECT_CUDA(cuStreamSynchronize(stream));
    helper.kill_and_wait();
    const base::TimePoint start = now();
    EXPECT_CUDA(spin(stream, 1'000'000));
    EXPECT_CUDA(cuStreamSynchronize(stream));
    EXPECT_LT((now() - start).count(), 5'000'000'000);
  }
}

TEST_F(ProcessTest, AStoppedOwnerOfTheGpuHoldsUpNobody) {
  Helper helper;
  helper.get("context 0");
  helper.get("spin 300000000");
  const CUstream stream = make_stream();
  EXPECT_CUDA(spin(stream, 1'000'000));
  EXPECT_CUDA(cuStreamSynchronize(stream));
  helper.signal(SIGSTOP);
  const base::TimePoint start = now();
  for (int i = 0; i < 10; ++i) {
    EXPECT_CUDA(spin(stream, 5'000'000));
    EXPECT_CUDA(cuStreamSynchronize(stream));
  }
  EXPECT_LT((now() - start).count(), 5'000'000'000);
  helper.signal(SIGCONT);
  helper.get("sync");
}

TEST_F(ProcessTest, AForkedChildOfAnInitialisedProcessHasNoDriver) {
  Helper helper;
  helper.get("context 0");
  EXPECT_EQ(helper.get("fork"), "3 3");
  helper.get("alloc 4096");
}

TEST_F(ProcessTest, AForkBeforeInitialisationIsFine) {
  // This helper is the child of a process that has the driver loaded, but has not initialised it.
  Helper helper({"GPUMUX_TEST_FORK_FIRST=1"});
  EXPECT_EQ(helper.initialised(), "0");
  helper.get("context 0");
  const std::uint64_t data = helper.number("alloc 4096");
  helper.get("fill " + text(data) + " 1 3");
  helper.get("sync");
  EXPECT_EQ(helper.get("read " + text(data)), "3");
}

TEST_F(ProcessTest, FaultsAreScripted) {
  Helper helper({"GPUMUX_SIM_FAULTS=cuMemAlloc_v2:2=OUT_OF_MEMORY;cuStreamSynchronize:1+=719"});
  helper.get("context 0");
  helper.get("alloc 4096");
  EXPECT_EQ(helper.ask("alloc 4096"), "2 0");
  helper.get("alloc 4096");
  EXPECT_EQ(helper.ask("sync"), "719");
  EXPECT_EQ(helper.ask("sync"), "719");
}

TEST_F(ProcessTest, VisibleDevicesChooseAndOrder) {
  const auto machine = Machine::get();
  ASSERT_TRUE(machine.has_value());
  const std::uint64_t before = (*machine)->memory(1).used;
  {
    Helper helper({"CUDA_VISIBLE_DEVICES=1,0"});
    helper.get("context 0");
    EXPECT_EQ((*machine)->memory(1).used, before + kContextBytes);
  }
  EXPECT_TRUE(eventually([&] { return (*machine)->memory(1).used == before; }));
  {
    Helper helper({"CUDA_VISIBLE_DEVICES=" + (*machine)->uuid(1).to_string()});
    helper.get("context 0");
    EXPECT_EQ((*machine)->memory(1).used, before + kContextBytes);
    EXPECT_EQ(helper.ask("context 1"), "101");
  }
  Helper none({"CUDA_VISIBLE_DEVICES="});
  EXPECT_EQ(none.initialised(), "100");
}

TEST_F(ProcessTest, RandomKillsAndStopsNeverWedgeOrLoseMemory) {
  const auto seed = static_cast<unsigned>(std::random_device()());
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  const std::uint64_t before = free_bytes();
  std::vector<std::unique_ptr<Helper>> helpers;
  const auto work = [this, stream = make_stream()](std::uint64_t nanoseconds) {
    EXPECT_CUDA(spin(stream, nanoseconds));
    EXPECT_CUDA(cuStreamSynchronize(stream));
  };
  ASSERT_NO_FATAL_FAILURE(kill_at_random(
      random, 200, 3, helpers, [] { return std::make_unique<Helper>(); }, work));
  helpers.clear();
  EXPECT_TRUE(eventually([&] { return free_bytes() == before; })) << before - free_bytes() << " bytes lost";
}

}  // namespace
}  // namespace gpumux::sim
