// SPDX-License-Identifier: Apache-2.0
// Goal: work of disabled channels stops in the middle and goes on when they are enabled, and nothing of it is lost.
// Frozen processes can end. Method: this program's import `ioctl` leads to the simulated kernel module. Kernels and
// copies work on pinned memory, which the test reads meanwhile. The machine's state says which process has the GPU.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "sim/cuda/process.h"
#include "sim/cuda/test_helper.h"
#include "sim/cuda/test_machine.h"
#include "sim/cuda/test_resource_manager.h"

namespace gpumux::sim {
namespace {

using namespace gpumux::cuda;

constexpr char kForEver[] = "spin 3600000000000";
constexpr std::uint64_t kMega = std::uint64_t{1} << 20;

// As long as work that is not frozen would need to be seen.
void let_time_pass() { sleep_until(now() + base::Duration(20'000'000)); }

class FreezeTest : public SimTest {
 protected:
  static void SetUpTestSuite() {
    // Kernels and copies that last long enough to be frozen in the middle.
    for (const char* name : {"GPUMUX_SIM_KERNEL_BANDWIDTH", "GPUMUX_SIM_H2D_BANDWIDTH", "GPUMUX_SIM_D2H_BANDWIDTH"})
      ::setenv(name, "64M", 1);
  }
  void SetUp() override {
    if (!see_own_objects()) GTEST_SKIP() << "this program does not import ioctl";
    SimTest::SetUp();
    groups_ = seen_groups();
    ASSERT_EQ(groups_.size(), 4u);
    stream_ = make_stream();
  }
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_EQ(thaw(seen_channels()), NV_OK);
    SimTest::TearDown();
  }

  SeenObjects kernel_channels() const { return channels_of(groups_[0]); }
  SeenObjects copy_channels(std::size_t groups = 3) const {
    SeenObjects channels;
    for (std::size_t i = 1; i <= groups; ++i) {
      for (const SeenObject& channel : channels_of(groups_[i])) channels.push_back(channel);
    }
    return channels;
  }
  std::uint32_t* pin(std::size_t bytes) {
    void* memory = nullptr;
    EXPECT_CUDA(cuMemHostAlloc(&memory, bytes, 0));
    return static_cast<std::uint32_t*>(memory);
  }
  static CUdeviceptr address_of(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }
  static std::uint32_t look(const std::uint32_t* word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }
  bool is_over() const { return cuStreamQuery(stream_) == CUDA_SUCCESS; }

  // Submits work that gives all words of `memory` the number of the round, and freezes the channels in the middle of
  // it.
  template <class Submit>
  void check_that_it_stops(const SeenObjects& channels, Submit submit) {
    constexpr std::size_t kWords = 8 * kMega / 4;
    std::uint32_t* const memory = pin(kWords * 4);
    std::fill_n(memory, kWords, 0);
    std::uint32_t rounds = 0;
    // Again, if this thread was so slow that the work was over before.
    for (bool caught = false; !caught;) {
      submit(memory, kWords, ++rounds);
      ASSERT_TRUE(eventually([&] { return look(memory) == rounds; }));
      ASSERT_EQ(freeze(channels), NV_OK);
      const std::vector<std::uint32_t> stopped(memory, memory + kWords);
      let_time_pass();
      EXPECT_TRUE(std::equal(stopped.begin(), stopped.end(), memory)) << "it went on";
      caught = stopped.back() != rounds;
      if (caught) {
        EXPECT_FALSE(is_over());
      }
      ASSERT_EQ(freeze(channels), NV_OK) << "twice";
      ASSERT_EQ(thaw(channels), NV_OK);
      ASSERT_EQ(thaw(channels), NV_OK) << "twice";
      ASSERT_CUDA(cuStreamSynchronize(stream_));
      EXPECT_EQ(std::count(memory, memory + kWords, rounds), static_cast<std::ptrdiff_t>(kWords));
    }
  }

  SeenObjects groups_;
  CUstream stream_ = nullptr;
};

TEST_F(FreezeTest, AKernelStopsInTheMiddleAndGoesOn) {
  check_that_it_stops(kernel_channels(), [this](std::uint32_t* memory, std::size_t words, std::uint32_t) {
    EXPECT_CUDA(increment(stream_, address_of(memory), words));
  });
}

TEST_F(FreezeTest, AFillStopsInTheMiddleAndGoesOn) {
  check_that_it_stops(seen_channels(), [this](std::uint32_t* memory, std::size_t words, std::uint32_t round) {
    EXPECT_CUDA(cuMemsetD32Async(address_of(memory), round, words, stream_));
  });
}

TEST_F(FreezeTest, ACopyStopsInTheMiddleAndGoesOn) {
  check_that_it_stops(copy_channels(), [this, device = CUdeviceptr{0}](std::uint32_t* memory, std::size_t words,
                                                                       std::uint32_t round) mutable {
    if (device == 0) device = allocate(words * 4);
    EXPECT_CUDA(cuMemsetD32Async(device, round, words, stream_));
    EXPECT_CUDA(cuMemcpyDtoHAsync_v2(memory, device, words * 4, stream_));
  });
}

TEST_F(FreezeTest, OnlyAllChannelsOfAKindStopIt) {
  std::uint32_t* const memory = pin(4096);
  const CUdeviceptr device = allocate(4096);
  SeenObjects most = seen_channels();
  std::erase_if(most, [&](const SeenObject& channel) { return channel.handle == kernel_channels()[7].handle; });
  ASSERT_EQ(freeze(most), NV_OK);
  memory[0] = 1;
  EXPECT_CUDA(increment(stream_, address_of(memory), 1));
  EXPECT_CUDA(cuStreamSynchronize(stream_));
  EXPECT_EQ(look(memory), 2u);
  ASSERT_EQ(thaw(most), NV_OK);

  SeenObjects others = kernel_channels();
  for (const SeenObject& channel : copy_channels(2)) others.push_back(channel);
  ASSERT_EQ(freeze(others), NV_OK);
  EXPECT_CUDA(cuMemcpyHtoDAsync_v2(device, memory, 4096, stream_));
  EXPECT_CUDA(cuStreamSynchronize(stream_));
  ASSERT_EQ(freeze(channels_of(groups_[3])), NV_OK);
  EXPECT_CUDA(cuMemcpyHtoDAsync_v2(device, memory, 4096, stream_));
  let_time_pass();
  EXPECT_FALSE(is_over());
  // One channel is enough for copies to go on.
  ASSERT_EQ(thaw({channels_of(groups_[2])[0]}), NV_OK);
  EXPECT_CUDA(cuStreamSynchronize(stream_));
}

// A collective's kernels spin until they see each other's.
TEST_F(FreezeTest, AKernelThatPollsStops) {
  std::uint32_t* const flags = pin(4096);
  flags[0] = flags[1] = 0;
  SlotGpu& own = Process::get()->machine().own().gpu[0];
  EXPECT_CUDA(launch("gpumux_rendezvous", stream_, address_of(flags), address_of(flags + 1), std::uint32_t{1}));
  ASSERT_TRUE(eventually([&] { return look(flags) == 1 && own.running.load() != 0; }));
  ASSERT_EQ(freeze(kernel_channels()), NV_OK);
  EXPECT_EQ(own.running.load(), 0u) << "the control returned before the kernel had left the GPU";
  __atomic_store_n(flags + 1, 1, __ATOMIC_SEQ_CST);
  let_time_pass();
  EXPECT_FALSE(is_over());
  EXPECT_EQ(own.running.load(), 0u);
  ASSERT_EQ(thaw(kernel_channels()), NV_OK);
  EXPECT_CUDA(cuStreamSynchronize(stream_));
}

TEST_F(FreezeTest, NothingStartsWhileFrozen) {
  std::uint32_t* const words = pin(4096);
  words[0] = words[1] = words[2] = 0;
  ASSERT_EQ(freeze(seen_channels()), NV_OK);
  EXPECT_CUDA(increment(stream_, address_of(words), 1));
  const CUstream other = make_stream();
  EXPECT_CUDA(cuStreamWriteValue32_v2(other, address_of(words + 1), 1, 0));
  const CUstream waiting = make_stream();
  EXPECT_CUDA(cuStreamWaitValue32_v2(waiting, address_of(words + 2), 1, CU_STREAM_WAIT_VALUE_EQ));
  __atomic_store_n(words + 2, 1, __ATOMIC_SEQ_CST);
  let_time_pass();
  EXPECT_EQ(look(words), 0u);
  EXPECT_EQ(look(words + 1), 0u);
  EXPECT_EQ(cuStreamQuery(waiting), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(thaw(seen_channels()), NV_OK);
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(look(words), 1u);
  EXPECT_EQ(look(words + 1), 1u);
}

TEST_F(FreezeTest, ContextsAreApart) {
  std::uint32_t* const words = pin(4096);
  words[0] = words[1] = words[2] = 0;
  const SeenObjects ours = seen_channels();
  ASSERT_EQ(freeze(ours), NV_OK);
  EXPECT_CUDA(increment(stream_, address_of(words), 1));
  for (const std::uint32_t which : {1u, 2u}) {
    CUcontext second = nullptr;
    ASSERT_CUDA(cuCtxCreate_v2(&second, 0, 0)) << "made while the first one is frozen";
    load_kernels();
    const CUstream stream = make_stream();
    EXPECT_CUDA(increment(stream, address_of(words + which), 1));
    EXPECT_CUDA(cuStreamSynchronize(stream));
    EXPECT_EQ(look(words + which), 1u);
    EXPECT_CUDA(cuCtxDestroy_v2(second));
  }
  EXPECT_EQ(look(words), 0u);
  ASSERT_EQ(thaw(ours), NV_OK);
  EXPECT_CUDA(cuStreamSynchronize(stream_));
  EXPECT_EQ(look(words), 1u);
}

TEST_F(FreezeTest, AnUnknownHandleChangesNothing) {
  std::uint32_t* const word = pin(4096);
  word[0] = 0;
  SeenObjects channels = kernel_channels();
  channels.push_back({.fd = channels[0].fd, .client = channels[0].client, .handle = 1});
  EXPECT_EQ(freeze(channels), NV_ERR_INVALID_OBJECT_HANDLE);
  EXPECT_CUDA(increment(stream_, address_of(word), 1));
  EXPECT_CUDA(cuStreamSynchronize(stream_));
  ASSERT_EQ(freeze(kernel_channels()), NV_OK);
  EXPECT_EQ(thaw(channels), NV_ERR_INVALID_OBJECT_HANDLE);
  EXPECT_CUDA(increment(stream_, address_of(word), 1));
  let_time_pass();
  EXPECT_EQ(look(word), 1u);
  ASSERT_EQ(thaw(kernel_channels()), NV_OK);
  EXPECT_CUDA(cuStreamSynchronize(stream_));
  EXPECT_EQ(look(word), 2u);
}

TEST_F(FreezeTest, TheCallsTakeTheirTime) {
  const Settings& settings = Process::get()->machine().settings();
  base::TimePoint start = now();
  ASSERT_EQ(freeze(seen_channels()), NV_OK);
  EXPECT_GE((now() - start).count(), static_cast<std::int64_t>(settings.freeze_nanoseconds));
  start = now();
  ASSERT_EQ(thaw(seen_channels()), NV_OK);
  EXPECT_GE((now() - start).count(), static_cast<std::int64_t>(settings.thaw_nanoseconds));
}

TEST_F(FreezeTest, AContextIsDestroyedAfterTheThaw) {
  CUcontext second = nullptr;
  ASSERT_CUDA(cuCtxCreate_v2(&second, 0, 0));
  ASSERT_CUDA(cuCtxPopCurrent_v2(nullptr));
  SeenObjects theirs = seen_channels();
  theirs.erase(theirs.begin(), theirs.begin() + 20);
  ASSERT_EQ(freeze(theirs), NV_OK);
  std::atomic<bool> destroyed{false};
  std::thread thread([&] {
    EXPECT_CUDA(cuCtxDestroy_v2(second));
    destroyed = true;
  });
  let_time_pass();
  EXPECT_FALSE(destroyed.load());
  ASSERT_EQ(thaw(theirs), NV_OK);
  thread.join();
  EXPECT_EQ(seen_channels().size(), 20u);
}

// With helpers at work while this process freezes and thaws again and again: nothing is lost, and nothing runs twice.
TEST_F(FreezeTest, ManyTimesInARow) {
  constexpr std::size_t kWords = 4 * kMega / 4;
  constexpr std::uint32_t kKernels = 8;
  std::uint32_t* const memory = pin(kWords * 4);
  std::fill_n(memory, kWords, 0);
  const CUdeviceptr device = allocate(kWords * 4);
  const CUstream copies = make_stream();
  EXPECT_CUDA(cuMemsetD32Async(device, 0, kWords, copies));
  for (std::uint32_t i = 0; i < kKernels; ++i) {
    EXPECT_CUDA(increment(stream_, address_of(memory), kWords));
    EXPECT_CUDA(increment(copies, device, kWords));
    EXPECT_CUDA(cuMemcpyDtoDAsync_v2(device, device, kWords * 4, copies));
  }
  for (int round = 0; round < 50; ++round) {
    ASSERT_EQ(freeze(round % 2 == 0 ? kernel_channels() : seen_channels()), NV_OK);
    ASSERT_EQ(thaw(seen_channels()), NV_OK);
  }
  EXPECT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(std::count(memory, memory + kWords, kKernels), static_cast<std::ptrdiff_t>(kWords));
  const std::vector<std::uint32_t> words = read(device, kWords);
  EXPECT_EQ(std::count(words.begin(), words.end(), kKernels), static_cast<std::ptrdiff_t>(kWords));
}

class FrozenProcessTest : public FreezeTest {
 protected:
  // A helper with a kernel that never ends.
  static std::unique_ptr<Helper> start() {
    auto helper = std::make_unique<Helper>();
    EXPECT_EQ(helper->initialised(), "0");
    helper->get("context 0");
    helper->get(kForEver);
    return helper;
  }
  static SlotGpu& gpu_of(const Helper& helper) {
    Machine& machine = Process::get()->machine();
    std::uint32_t slot = 0;
    while (machine.state().slots[slot].pid.load() != helper.pid() || !machine.alive(slot)) ++slot;
    return machine.state().slots[slot].gpu[0];
  }
  void use_gpu() {
    EXPECT_CUDA(spin(stream_, 1'000'000));
    EXPECT_CUDA(cuStreamSynchronize(stream_));
  }
};

TEST_F(FrozenProcessTest, LeavesTheGpuToOthers) {
  const auto helper = start();
  SlotGpu& theirs = gpu_of(*helper);
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(eventually([&] { return theirs.running.load() != 0; }));
    EXPECT_EQ(helper->get("freeze"), "0");
    // A process that was waiting for its turn has a place in the line until the turn comes.
    EXPECT_TRUE(eventually([&] { return theirs.running.load() == 0 && theirs.wait_ticket.load() == 0; }));
    use_gpu();
    EXPECT_EQ(theirs.running.load(), 0u);
    EXPECT_EQ(theirs.wait_ticket.load(), 0u);
    EXPECT_EQ(helper->get("thaw"), "0");
  }
}

TEST_F(FrozenProcessTest, Exits) {
  for (const bool is_killed : {false, true}) {
    auto helper = start();
    ASSERT_TRUE(eventually([&] { return gpu_of(*helper).running.load() != 0; }));
    EXPECT_EQ(helper->get("freeze"), "0");
    is_killed ? helper->kill_and_wait() : helper->end_and_wait();
    use_gpu();
    EXPECT_TRUE(eventually([] { return free_bytes() == kGpuBytes - kContextBytes; }));
  }
}

}  // namespace
}  // namespace gpumux::sim
